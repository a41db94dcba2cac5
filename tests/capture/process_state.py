"""A picture of everything in the process that a recorder may touch and must put back."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import threading
from collections import Counter
from typing import Any

import torch
import torch.utils.checkpoint
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers

from aten_dump.capture.torch_internals.engine import top_saved_hooks

_NAMESPACES: dict[str, Any] = {
    "torch": torch,
    "torch.Tensor": torch.Tensor,
    "torch._tensor": torch._tensor,
    "torch._C": torch._C,
    "torch.nn.functional": torch.nn.functional,
    "torch.nn.Module": torch.nn.Module,
    "torch.autograd": torch.autograd,
    "torch.autograd.Function": torch.autograd.Function,
    "torch.autograd.graph": torch.autograd.graph,
    "torch.optim.Optimizer": torch.optim.Optimizer,
    "torch.optim.SGD": torch.optim.SGD,
    "torch.optim.AdamW": torch.optim.AdamW,
    "torch.utils.checkpoint": torch.utils.checkpoint,
    "torch.distributed": torch.distributed,
}

_HOOK_TABLES: dict[str, Any] = {
    "module forward hooks": modules._global_forward_hooks,
    "module forward pre-hooks": modules._global_forward_pre_hooks,
    "module backward hooks": modules._global_backward_hooks,
    "module backward pre-hooks": modules._global_backward_pre_hooks,
    "optimizer pre-hooks": optimizers._global_optimizer_pre_hooks,
    "optimizer post-hooks": optimizers._global_optimizer_post_hooks,
}


def _attributes() -> dict[str, int]:
    return {
        f"{space}.{name}": id(value)
        for space, owner in _NAMESPACES.items()
        for name, value in list(vars(owner).items())
        if callable(value)
    }


def _files() -> list[str]:
    names = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            names.append(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            continue
    return sorted(name for name in names if name.startswith("/") and not name.startswith(("/dev", "/proc")))


def picture() -> dict[str, Any]:
    """Modes, hooks, patched attributes, threads, open files and the tracing hooks of the interpreter."""
    gc.collect()  # a dump that an earlier test read may still hold its files
    return {
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "function modes": torch._C._len_torch_function_stack(),
        "saved tensor hooks": top_saved_hooks(False),
        "hook tables": {name: list(table) for name, table in _HOOK_TABLES.items()},
        "attributes": _attributes(),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "files": _files(),
        "grad enabled": torch.is_grad_enabled(),
        "gc enabled": gc.isenabled(),
        "gc callbacks": len(gc.callbacks),
        "trace": sys.gettrace(),
        "profile": sys.getprofile(),
        "signal handlers": {number: signal.getsignal(number) for number in sorted(signal.valid_signals())},
        "anomaly": torch.is_anomaly_enabled(),
    }


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What differs between two pictures, in words."""
    found = []
    for key, value in before.items():
        if key == "attributes":
            # Lazy modules may add names while the program runs; none may change or vanish.
            found += [f"{name} was replaced" for name, identity in value.items() if after[key].get(name) != identity]
        elif key == "threads":  # those of a server that another test has used end when they like
            started = Counter(after[key]) - Counter(value)
            found += [f"thread {name} was started" for name in started.elements()]
        elif after[key] != value:
            found.append(f"{key}: {after[key]}, before {value}")
    return found


def module_hooks(model: torch.nn.Module) -> dict[str, int]:
    """How many hooks stand on each module and parameter."""
    tables = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    counts = {
        f"{name}.{table}": len(getattr(module, table)) for name, module in model.named_modules() for table in tables
    }
    counts |= {f"{name}.instance": len(vars(module)) for name, module in model.named_modules()}
    counts |= {f"{name}.hooks": len(parameter._backward_hooks or ()) for name, parameter in model.named_parameters()}
    counts |= {
        f"{name}.after": len(getattr(parameter, "_post_accumulate_grad_hooks", None) or ())
        for name, parameter in model.named_parameters()
    }
    return counts


def resident() -> int:
    """Resident memory of this process in bytes, without free memory that malloc holds back."""
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
