"""Run the recorder's own torch ops so that nobody sees them.

Inside ``with quiet():`` no dispatch or function mode (ours or the user's), no autograd, no autocast and no
functorch transform is consulted: the ops go straight to the device's kernels and leave no trace.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Final

import torch

_KEYS = (
    "Python",
    "PythonTLSSnapshot",
    "AutogradFunctionality",
    "ADInplaceOrView",
    "AutocastCPU",
    "AutocastCUDA",
    "AutocastPrivateUse1",
    "AutocastXPU",
    "FuncTorchDynamicLayerFrontMode",
    "FuncTorchDynamicLayerBackMode",
    "Functionalize",
)


def _key_set() -> torch._C.DispatchKeySet:
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.Python)
    for name in _KEYS:
        key = getattr(torch._C.DispatchKey, name, None)
        if key is not None:
            keys = keys | torch._C.DispatchKeySet(key)
    return keys


_EXCLUDED = _key_set()
# A context in which reading an attribute of a tensor is no call that function modes see.
without_torch_functions: Final[Callable[[], AbstractContextManager[None]]] = torch._C.DisableTorchFunction


class quiet:
    """Context in which the recorder's torch ops are invisible and without gradient."""

    __slots__ = ("_autograd", "_function", "_keys")

    def __enter__(self) -> None:
        self._function = without_torch_functions()
        self._function.__enter__()
        self._autograd = torch._C._AutoDispatchBelowAutograd()
        self._autograd.__enter__()
        self._keys = torch._C._ExcludeDispatchKeyGuard(_EXCLUDED)
        self._keys.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._keys.__exit__(kind, error, trace)
        self._autograd.__exit__(kind, error, trace)
        self._function.__exit__(kind, error, trace)
