"""Which rows or positions of a tensor differ: "from index 7 on" or "index 2 alone" often names a mistake by itself."""

from __future__ import annotations

from typing import Final

import torch

from ...dump import Value

_MOST_ELEMENTS: Final = 1 << 22
_MOST_NAMED: Final = 3  # most indices to list
_LEAST: Final = 1e-4  # least difference, relative to the baseline's root mean square
_ROUNDINGS: Final = 8  # the same, in eps of the coarser dtype


def touched_sentence(target: Value, baseline: Value) -> str:
    """Return a sentence on the dimensions in which only some indices differ; "" if all do, or that is unknown.

    Args:
        target: a recorded tensor.
        baseline: its counterpart.
    """
    shape = tuple(target.shape)
    if shape != tuple(baseline.shape) or not 1 < target.numel <= _MOST_ELEMENTS:
        return ""
    if {target.layout_name, baseline.layout_name} != {"strided"} or target.extra.get("quantized"):
        return ""
    differs = _differs(target, baseline)
    found = []
    for dim, size in enumerate(shape):
        others = [other for other in range(len(shape)) if other != dim]
        touched = (differs.any(others) if others else differs).nonzero().flatten().tolist()
        where = _where(touched, size)
        if where:
            found.append(f"{where} of {size} along dimension {dim}")
    return f"It differs only at {' and at '.join(found)}" if found else ""


def _differs(target: Value, baseline: Value) -> torch.Tensor:
    """Return True for each element that differs by more than rounding."""
    one, other = target.shared_tensor(), baseline.shared_tensor()
    if not (one.is_floating_point() and other.is_floating_point()):
        return one != other
    eps = max(torch.finfo(one.dtype).eps, torch.finfo(other.dtype).eps)
    one, other = one.double(), other.double()
    finite = other[other.isfinite()]
    size = float(finite.square().mean().sqrt()) if finite.numel() else 0.0
    apart = (one - other).abs() > max(_LEAST, _ROUNDINGS * eps) * size
    return torch.where(one.isfinite() & other.isfinite(), apart, (one != other) & ~(one.isnan() & other.isnan()))


def _where(touched: list[int], size: int) -> str:
    """Return some of the indices of a dimension in words; "" for all of them, for none, and for many."""
    if not 0 < len(touched) < size:
        return ""
    first, last = touched[0], touched[-1]
    if len(touched) == 1:
        return f"index {first}"
    if len(touched) == last - first + 1:
        return f"indices {first} to {last}"
    return f"indices {', '.join(map(str, touched))}" if len(touched) <= _MOST_NAMED else ""
