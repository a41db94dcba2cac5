"""Do two values look at the same elements of what two calls made?

Theory of operation
    A view is geometry: offset, shape, stride. On both sides it is held against the geometry of the result as the call
    left it. Where strides are alike, numbers are compared; otherwise (one side made its result in another memory
    format) the elements are numbered in the order of the result, and the numbers that both views see are compared.
"""

from __future__ import annotations

from typing import Final

import torch

from ...dump import Value
from ...geometry import reach

_MOST_ELEMENTS: Final = 16 << 20
Pair = tuple[Value, Value]  # a view, and the result as its call left it


class ViewComparer:
    """Compares views, each kind once."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], bool] = {}

    def same(self, target: Pair, baseline: Pair) -> bool:
        """Tell whether two views see the same elements of two results, in the same order."""
        if target[0].id == target[1].id and baseline[0].id == baseline[1].id:
            return target[0].shape == baseline[0].shape
        if any(value.composed or not value.storage for value in (*target, *baseline)):
            return False
        if target[0].shape != baseline[0].shape or target[1].shape != baseline[1].shape:
            return False
        if _bits(target) != _bits(baseline) or not (_is_plain(target) and _is_plain(baseline)):
            return False
        key = _geometry(target), _geometry(baseline)
        if key not in self._known:
            may_count = all(view.dtype_name == made.dtype_name for view, made in (target, baseline))
            self._known[key] = key[0] == key[1] or (may_count and _same_elements(target, baseline))
        return self._known[key]


def _bits(pair: Pair) -> tuple[bool, bool]:
    return pair[0].conjugate != pair[1].conjugate, pair[0].negative != pair[1].negative


def _is_plain(pair: Pair) -> bool:
    return pair[0].layout_name == pair[1].layout_name == "strided"


def _geometry(pair: Pair) -> tuple[object, ...]:
    view, made = pair
    sizes = view.dtype.itemsize, made.dtype.itemsize
    offset = view.storage_offset * sizes[0] - made.storage_offset * sizes[1]
    if view.dtype_name == made.dtype_name:
        return tuple(view.shape), view.stride, offset // sizes[0], tuple(made.shape), made.stride
    return (
        tuple(view.shape), view.stride, offset, tuple(made.shape), made.stride, view.dtype_name, made.dtype_name
    )  # fmt: skip


def _same_elements(target: Pair, baseline: Pair) -> bool:
    seen = [elements_seen(*pair) for pair in (target, baseline)]
    return seen[0] is not None and seen[1] is not None and torch.equal(seen[0], seen[1])


def elements_seen(view: Value, made: Value) -> torch.Tensor | None:
    """Return which elements of a result a view of its memory sees; None if it sees others too."""
    whole = reach(made.shape, made.stride)
    first = view.storage_offset - made.storage_offset
    if first < 0 or first + reach(view.shape, view.stride) > whole or max(whole, view.numel) > _MOST_ELEMENTS:
        return None
    numbers = torch.full((whole,), -1, dtype=torch.int64)
    kept = tuple(slice(0, 1) if step == 0 else slice(None) for step in made.stride)
    order = torch.arange(made.numel).view(made.shape)
    numbers.as_strided(made.shape, made.stride)[kept] = order[kept]
    seen = numbers.as_strided(view.shape, view.stride, first)
    return None if bool((seen < 0).any()) else seen.contiguous()


def covers(made: Value, view: Value) -> bool:
    """Tell whether a result has all the elements that a view of its storage sees."""
    if made.id == view.id or view.composed or not view.storage:
        return True
    places = [(v.storage_offset, v.dtype_name, _dimensions(v)) for v in (made, view)]
    return places[0] == places[1] or elements_seen(view, made) is not None


def _dimensions(value: Value) -> list[tuple[int, int]]:
    """Return strides and sizes in the order of memory: transposed views have the same."""
    return sorted((step, size) for step, size in zip(value.stride, value.shape, strict=True) if size != 1)
