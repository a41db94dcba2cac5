"""Kernels in Python: compositions of other ops of the device, which run later as those do."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

Kernel = Callable[..., Any]
KERNELS: dict[str, Kernel] = {}
_libraries: dict[str, torch.library.Library] = {}


def kernel(*names: str) -> Callable[[Kernel], Kernel]:
    """Make a function the device's kernel of ops (``npu::npu_swiglu``)."""

    def register(function: Kernel) -> Kernel:
        KERNELS.update(dict.fromkeys(names, function))
        return function

    return register


def _unseen(name: str) -> Kernel:
    """Return what is registered: the kernel of today, run below autograd and where no mode of the program's sees it."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd(), torch._C.DisableTorchFunction():
            return KERNELS[name](*args, **kwargs)

    return functools.update_wrapper(run, KERNELS[name])


def install() -> None:
    """Register all kernels."""
    for name in KERNELS:
        namespace, _, rest = name.partition("::")
        library = _libraries.setdefault(namespace, torch.library.Library(namespace, "IMPL"))
        library.impl(rest, _unseen(name), "PrivateUse1", allow_override=True)


@contextmanager
def replaced(name: str, wrong: Callable[[Kernel], Kernel]) -> Iterator[None]:
    """Let ``wrong(kernel)`` be the kernel of an op meanwhile."""
    right = KERNELS[name]
    KERNELS[name] = wrong(right)
    try:
        yield
    finally:
        KERNELS[name] = right
