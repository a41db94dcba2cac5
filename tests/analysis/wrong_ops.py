"""A program whose n-th call of an op is wrong, as on a device with a bug: below the recorder, above the kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Wrong(TorchDispatchMode):
    """Entered around a DumpMode, it changes the arguments or the result of one call out of the recorder's sight."""

    def __init__(
        self,
        op: Any,
        n: int,
        result: Callable[[Any], Any] = lambda r: r,
        args: Callable[[tuple[Any, ...]], tuple[Any, ...]] = lambda a: a,
    ) -> None:
        super().__init__()
        self.op, self.n, self.result, self.args = op, n, result, args

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is self.op:
            self.n -= 1
            if self.n == -1:
                return self.result(func(*self.args(args), **(kwargs or {})))
        return func(*args, **(kwargs or {}))


def zeroed(tensor: torch.Tensor, at: int = 137) -> torch.Tensor:
    tensor = tensor.clone()
    tensor.view(-1)[at] = 0
    return tensor


def replaced(position: int, value: Any) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    return lambda args: (*args[:position], value, *args[position + 1 :])
