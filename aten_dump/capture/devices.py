"""Devices: the one place that may name a device package.

Importing this module imports neither torch nor a device package.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import torch

_AUTOLOAD: Final = "TORCH_DEVICE_BACKEND_AUTOLOAD"
# Packages that torch loads by itself when they are installed, and the driver library without which that fails.
_DRIVERS: Final = {"torch_npu": "libascendcl.so"}


def keep_torch_importable() -> None:
    """Let ``import torch`` succeed where a device package is installed but its driver is not.

    torch loads installed device packages on import, and fails with them: a dump could then not be read on a log-in node
    or a laptop. Nothing is changed where torch is loaded already, the driver is there, or the user has decided.
    """
    if "torch" in sys.modules or _AUTOLOAD in os.environ:
        return
    for package, library in _DRIVERS.items():
        if importlib.util.find_spec(package) is not None and not _loads(library):
            os.environ[_AUTOLOAD] = "0"


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def accelerator() -> torch.device | None:
    """Return the accelerator that torch computes on; None where there is none, whatever torch was built for."""
    import torch

    found = getattr(torch, "accelerator", None)
    # Builds for a device raise when asked for it on a machine without one, or name it (2.6, and newer).
    return found.current_accelerator() if found is not None and found.is_available() else None


def has_float64(device_type: str) -> bool:
    """Tell whether a device sums up float64 at a speed that does not matter."""
    return device_type in ("cpu", "cuda")


def has_triton(device_type: str) -> bool:
    """Tell whether kernels in Triton can be had for a device."""
    return device_type == "cuda" and importlib.util.find_spec("triton") is not None


def has_spare_core() -> bool:
    """Tell whether the program leaves a core of this machine to another thread.

    Torch's own threads on the CPU take one each, and wait for the next op with their core busy. Ranks on the same
    machine are counted by torchrun's LOCAL_WORLD_SIZE. A program with an accelerator is taken to compute there.
    """
    import torch

    if accelerator() is not None:
        return True
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    return torch.get_num_threads() * (int(ranks) if ranks.isdecimal() else 1) < cores
