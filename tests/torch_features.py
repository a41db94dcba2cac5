"""What the torch that is installed can do: tests of what an older one cannot are skipped by feature, not by number."""

from __future__ import annotations

import importlib.util
from inspect import unwrap
from typing import Any

import pytest
import torch
from torch import distributed
from torch.utils._python_dispatch import TorchDispatchMode

from aten_dump.capture.torch_internals.mode_stack import detaches_once


def _apply_takes_keywords() -> bool:
    class Same(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

    try:
        Same.apply(x=torch.ones(1))
    except TypeError:
        return False
    return True


def _compiled_wrapper_names_its_result() -> bool:
    import torch._dynamo.eval_frame as module

    from aten_dump.capture.torch_internals.compiler import wrapper_of

    wrapper = wrapper_of(module)
    return wrapper is not None and "result" in wrapper.co_varnames


def _shows_functions_of_distributed() -> bool:
    return (
        hasattr(distributed, "all_reduce")
        and "handle_torch_function" in unwrap(distributed.all_reduce).__code__.co_names
    )


def _shows_reductions() -> bool:
    return distributed.is_available() and bool(torch.classes.c10d.ReduceOp()._has_method("op"))


SHOWS_REDUCTIONS = _shows_reductions()  # to a mode; else only the frame of torch's function does
APPLY_TAKES_KEYWORDS = _apply_takes_keywords()  # that of an autograd function
_saved = getattr(torch._C._autograd, "SavedTensor", None)

needs_saved_tensors = pytest.mark.skipif(
    not hasattr(_saved, "data"), reason="this torch does not tell what a node saved without unpacking it"
)
needs_saved_hooks_shown = pytest.mark.skipif(
    not hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks"),
    reason="this torch does not say which saved-tensor hooks are on",
)
needs_higher_order_under_modes = pytest.mark.skipif(
    not hasattr(TorchDispatchMode, "supports_higher_order_operators"),
    reason="this torch raises where a higher-order operator meets a mode of the program's",
)
needs_backward_seen = pytest.mark.skipif(
    "handle_torch_function" not in torch.autograd.backward.__code__.co_names,
    reason="this torch shows no mode that torch.autograd.backward is called",
)
needs_debug_mode = pytest.mark.skipif(
    importlib.util.find_spec("torch.utils._debug_mode") is None, reason="this torch has no DebugMode"
)
needs_results_of_compiled = pytest.mark.skipif(
    not _compiled_wrapper_names_its_result(), reason="this torch does not tell what a compiled function returns"
)
needs_distributed_seen = pytest.mark.skipif(
    not _shows_functions_of_distributed(), reason="this torch shows no mode that its distributed functions are called"
)
needs_fsdp_on_cpu = pytest.mark.skipif(
    not hasattr(torch.cpu.Stream, "record_event"), reason="FSDP2 of this torch fails on the CPU, recorded or not"
)
needs_one_detach = pytest.mark.skipif(
    not detaches_once(), reason="this torch copies what a subclass detached by another detach, once for each mode"
)
