"""Modes that let everything pass, and count it; a tensor that hands its ops on."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class Passing(TorchDispatchMode):
    """Sees ops."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[str] = []

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let the compiler compile under it."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops.append(func.name())
        return func(*args, **(kwargs or {}))


class Asked(TorchFunctionMode):
    """Sees Python-level calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append(func)
        return func(*args, **(kwargs or {}))


class Scaled(torch.Tensor):
    """A tensor subclass whose ops run in Python."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*[a.inner if isinstance(a, Scaled) else a for a in args], **(kwargs or {}))
