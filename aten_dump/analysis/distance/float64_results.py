"""Are two results of float64 the same? And what a rounding of what they were made of moves them.

Theory of operation
    Two float64 computations of the same thing differ by so little that no difference of meaning hides below it, but
    where they start from values that were rounded: those of one side alone, or of both, if what is left of the rounding
    cancels on one of them. So starts are shaken: rounded otherwise, and the results are looked at again.

    Beside the -1e9 of a mask all else is small. So what is much smaller than the greatest element is looked at by
    itself as well.
"""

from __future__ import annotations

import math
from typing import Final

import torch

from ...dump import Value
from .metrics import measure

SAME_NORM: Final = 1e-8  # relative L2 of two float64 computations of the same
SAME_ELEMENT: Final = 1e-7
_OF_ROUNDING: Final = 1e-6  # float64 is so much finer than the recorded dtypes, also where sums cancel
_ROUNDINGS: Final = 4.0  # of starts
_SMALL: Final = 1e-3  # times the greatest element
_NEAR: Final = 1e-3  # relative L2
_OF_CHAINS: Final = 1e-6  # relative L2 of what may come of the rounding of many calls
_SEEDS: Final = 1_000_003  # apart, as values have seeds of their own


def shake(tensor: torch.Tensor, value: Value, seed: int = 0) -> None:
    """Put the rounding error of a value's dtype on its elements, up or down."""
    generator = torch.Generator().manual_seed(value.id + seed * _SEEDS)
    if tensor.layout is not torch.strided:
        tensor = tensor._values() if tensor.is_sparse else tensor.values()
    kept = tuple(slice(0, 1) if step == 0 else slice(None) for step in tensor.stride())
    signs = torch.randint(0, 2, tensor[kept].shape, generator=generator).double() * 2 - 1
    tensor[kept] *= 1 + torch.finfo(value.dtype).eps / 2 * signs


def is_shaken_as_far(one: torch.Tensor, other: torch.Tensor, shaken: tuple[object, object], calls: int = 1) -> bool:
    """Tell whether two results are no further apart than the rounding of what one side alone starts from moves them.

    What one side alone starts from was itself computed. Of many such starts the errors add up, as the root of their
    number; but no more than is far from any meaning.

    Args:
        one: the target's result.
        other: the baseline's.
        shaken: both, with the rounding of their starts put on these.
        calls: how many calls lie between.
    """
    apart = measure(one, other)
    moved = [
        measure(found, result)
        for found, result in zip(shaken, (one, other), strict=True)
        if isinstance(found, torch.Tensor)
    ]
    norm, greatest = sum(m.rmse for m in moved), sum(m.max_abs for m in moved)
    most = _ROUNDINGS * (math.sqrt(calls) if apart.rel_l2 <= _OF_CHAINS else 1.0)
    return not apart.nonfinite and apart.rmse <= most * norm and apart.max_abs <= 2 * most * greatest


def is_same(value: Value, one: torch.Tensor, other: torch.Tensor) -> bool:
    """Tell whether two float64 results are the same, as far as float64 is exact."""
    if one.dtype == other.dtype and torch.equal(one, other) and bool(one.isfinite().all()):
        return True
    apart = measure(one, other)
    if apart.nonfinite:
        return False
    if apart.rel_l2 <= SAME_NORM and apart.max_scaled <= SAME_ELEMENT:
        return _are_small_the_same(one, other)
    if not value.is_floating or not value.has_data:
        return False
    rounding = measure(value.tensor().to_dense().to(one.dtype), one)
    return apart.rmse <= _OF_ROUNDING * rounding.rmse and apart.max_abs <= _OF_ROUNDING * rounding.max_abs


def _are_small_the_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Tell whether elements that are much smaller than the greatest are the same beside each other, too."""
    if other.dtype == torch.bool:
        return True
    size = other.abs()
    finite = size[size.isfinite()]
    small = size <= _SMALL * finite.max() if finite.numel() else torch.zeros_like(size, dtype=torch.bool)
    return not bool(small.any()) or measure(one[small], other[small]).rel_l2 <= SAME_NORM


def are_near(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Tell whether two results may differ by the rounding of what they start from, if most of it cancels."""
    if one.shape != other.shape or not one.is_floating_point():
        return False
    apart = measure(one, other)
    return not apart.nonfinite and apart.rel_l2 <= _NEAR


def is_as_large(apart: torch.Tensor, moved: torch.Tensor) -> bool:
    """Tell whether a difference is no larger than what it moves by when its starts are rounded otherwise."""
    nothing = torch.zeros_like(apart)
    size, way = measure(apart, nothing), measure(moved, nothing)
    if size.nonfinite or way.nonfinite:
        return False
    return size.rmse <= _ROUNDINGS * way.rmse and size.max_abs <= 2 * _ROUNDINGS * way.max_abs
