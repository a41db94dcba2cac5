"""Wrong kernels: one call of one op, on the target's device, returns what is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

KERNEL_SLIPS: dict[str, Callable[[Tensor], Tensor]] = {
    "x1.02": lambda t: t * 1.02,
    "an element lost": lambda t: _with_element(t, 0.0),
    "an element doubled": lambda t: _with_element(t, 2.0),
    "rows swapped": lambda t: t.flip(0) if t.dim() else t,
    "last column lost": lambda t: torch.cat([t[..., :-1], torch.zeros_like(t[..., -1:])], -1) if t.dim() else t,
    "sign": lambda t: -t,
    "in bfloat16": lambda t: t.bfloat16().to(t.dtype),
    "transposed": lambda t: (
        t.transpose(-1, -2) if t.dim() > 1 and t.shape[-1] == t.shape[-2] else t.flip(-1) if t.dim() else t
    ),
    "NaN": lambda t: _with_element(t, float("nan")),
}
_LEAST: float = 1e-3  # relative: what is less may be rounding


def _with_element(t: Tensor, factor: float) -> Tensor:
    """Change the element that is larger than two thirds of all."""
    t = t.clone(memory_format=torch.contiguous_format)
    flat = t.view(-1)
    at = int(flat.abs().float().sort().indices[flat.numel() * 2 // 3])
    flat[at] = flat[at] * factor
    return t


class WrongKernel(TorchDispatchMode):
    """Runs the program's ops; the `number`-th call of `op` gives something wrong. Without `op` it only counts."""

    def __init__(self, op: str = "", number: int = -1, slip: str = "") -> None:
        super().__init__()
        self.op, self.number, self.slip = op, number, slip
        self.count: Counter[str] = Counter()
        self.sites: list[tuple[str, int]] = []  # calls that compute floating numbers
        self.changed = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.name().partition("::")[2].partition(".")[0]
        number = self.count[name]
        self.count[name] += 1
        if self._computes(func, result):
            self.sites.append((name, number))
            if (name, number) == (self.op, self.number):
                self._spoil(result)
        return result

    @staticmethod
    def _computes(func: Any, result: Any) -> bool:
        if (
            func.namespace not in ("aten", "npu")
            or not isinstance(result, Tensor)
            or result.numel() < 2
            or result.is_sparse
            or type(result) not in (Tensor, torch.nn.Parameter)  # to change a DTensor would wait for other ranks
        ):
            return False
        returns = func._schema.returns
        is_new = len(returns) == 1 and returns[0].alias_info is None
        return is_new and result.dtype.is_floating_point and not _moves(func)

    def _spoil(self, result: Tensor) -> None:
        before = result.detach().clone()
        result.detach().copy_(KERNEL_SLIPS[self.slip](before))
        off = (result.detach().double() - before.double()).norm()
        self.changed = bool(off > _LEAST * before.double().norm()) or bool(off.isnan())


_PLAIN = frozenset(
    [
        "empty",
        "empty_like",
        "new_empty",
        "empty_strided",
        "new_empty_strided",
        "rand",
        "rand_like",
        "randn",
        "randn_like",
        "bernoulli",
        "detach",
        "_unsafe_view",
        "lift_fresh",
        "alias",
        "zeros",
        "zeros_like",
        "new_zeros",
        "ones",
        "ones_like",
        "full",
        "full_like",
        "arange",
        "reshape",
        "_reshape_alias",
        "_to_copy",
        "clone",
        "contiguous",
        "scalar_tensor",
    ]
)


def _moves(func: Any) -> bool:
    """Return True if an op makes memory or moves it, or draws numbers: no kernel to be wrong."""
    return func.name().partition("::")[2].partition(".")[0] in _PLAIN
