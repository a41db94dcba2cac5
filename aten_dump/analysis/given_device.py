"""The device that ops are to run on again, checked before the first of them runs."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from typing import Final

import torch

from ..errors import ReplayError

_BACKENDS: Final = "torch.backends"  # the entry points by which torch finds packages of devices
_ALWAYS_THERE: Final = frozenset(("cpu", "meta"))


def usable_device(name: torch.device | str) -> torch.device:
    """Return a device that ops can run on in this process; the packages of devices are loaded where that takes it.

    Raises:
        ReplayError: there is none of that name here; the message says which part is missing.
    """
    device = _known_device(name)
    if device.type in _ALWAYS_THERE:
        return device
    module = getattr(torch, device.type, None)
    if module is None or not callable(getattr(module, "device_count", None)):
        raise ReplayError(f"device is {name}: torch {torch.__version__} has no module torch.{device.type}; use cpu")
    count = module.device_count() if module.is_available() else 0
    if not count:
        raise ReplayError(f"device is {name}: {_why_none(device.type)}; use cpu, or run this where there is one")
    if device.index is not None and device.index >= count:
        raise ReplayError(f"device is {name}: there are {count} here, {device.type}:0 to {device.type}:{count - 1}")
    return device


def why_no_op(op: str) -> str:
    """Return why this process lacks an op, and what to do, as the end of a sentence."""
    if not op.startswith("npu::"):
        return "import the module that registers it (on the command line: --import MODULE)"
    if importlib.util.find_spec("torch_npu") is None:
        return "torch_npu registers it, which is not installed here"
    return (
        "torch_npu registers it, which is installed and was not loaded: that takes its driver (libascendcl.so on "
        "LD_LIBRARY_PATH), but no device; TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps torch from loading it"
    )


def _known_device(name: torch.device | str) -> torch.device:
    try:
        return torch.device(name)
    except RuntimeError as error:
        failures = _load_packages()
        try:
            return torch.device(name)
        except RuntimeError:
            known = str(error).partition("\n")[0]
            text = "; ".join(failures) or "no package installed here brings it (for npu that is torch_npu)"
            raise ReplayError(f"device is {name!r}, which torch does not know: {text}. {known}") from None


def _load_packages() -> list[str]:
    """Load the packages of devices that torch left out (TORCH_DEVICE_BACKEND_AUTOLOAD=0); return what failed."""
    failures = []
    for entry in importlib.metadata.entry_points(group=_BACKENDS):
        try:
            entry.load()()
        except (ImportError, OSError, RuntimeError) as error:  # what loads a driver's libraries
            text = str(error).partition("\n")[0]
            failures.append(
                f"{entry.name} is installed and cannot be loaded ({text}): is its driver on LD_LIBRARY_PATH?"
            )
    return failures


def _why_none(kind: str) -> str:
    if kind == "cuda" and torch.version.cuda is None and torch.version.hip is None:
        return f"torch {torch.__version__} was built without CUDA"
    return f"its driver finds no {kind} device (see the variables that hide devices, *_VISIBLE_DEVICES)"
