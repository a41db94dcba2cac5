"""Devices: the one place that may name a device package.

Importing this module imports neither torch nor a device package.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from typing import Final

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
