"""Hold a tensor against one other, element by element, and describe what differs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import permutations
from typing import Final

import numpy as np
import torch

from .descriptions import noun_of, ranges_text, rounding_text
from .layouts import Apart, Layout, as_float64, unit
from .profiles import LEAST_LENGTH, Profile, View
from .weight_records import Weight

UNRELATED: Final = 0.9  # relative L2 of tensors that have nothing in common
_MOST_DIMENSIONS: Final = 4
_CHUNK: Final = 1 << 22
_DIGITS: Final = 6
_MOST_DIGITS: Final = 17
_EXACT: Final = 1e-7  # of norms
_LEAST_SPREAD: Final = 8.0  # of what rounding moves: elements that are nearly all one number are alike by chance


def compare_named(tensor: Profile, other: Profile) -> Weight:
    """Hold a tensor against another, element by element, in the order of dimensions that is nearest."""
    ours, theirs = (tensor.name,), (other.name,)
    if sorted(tensor.shape) != sorted(other.shape):
        text = f"altered: its shape is {list(tensor.stored.shape)}, of the baseline {list(other.stored.shape)}"
        return Weight(ours, theirs, ("altered",), text, False, elements=tensor.stored.numel)
    found, wanted = tensor.read(), other.read()
    tried = [(_apart(found, wanted.permute(order), tensor, other), order) for order in _orders(tensor, other)]
    apart, order = min(tried, key=lambda item: item[0].squares)
    moved = _turned(order)
    kinds = ["transposed"] if moved else []
    if not apart.differing:
        rounded = rounding_text(apart, tensor, [other])
        described = [*moved, *([rounded[1]] if rounded else [])]
        kinds += [rounded[0]] if rounded else []
        return Weight(
            ours, theirs, tuple(kinds) or ("equal",), ", ".join(described) or "equal", ulp=apart.ulp,
            relative_l2=apart.relative_l2, differing=0, elements=apart.elements, layout=", ".join(moved) or "equal",
        )  # fmt: skip
    text = ", ".join([*moved, _text(apart, View((0,), ()), tensor.shape)])
    return Weight(
        ours, theirs, ("altered", *kinds), text, False,
        relative_l2=apart.relative_l2, differing=apart.differing, elements=apart.elements,
    )  # fmt: skip


def constant_of(tensor: Profile, other: Profile) -> Weight | None:
    """Return that a tensor is another but for one number that is added to all elements, or None if it is not."""
    spreads = _spread(tensor), _spread(other)
    rounded = tensor.rounding * tensor.norm + other.rounding * other.norm + _EXACT * max(tensor.norm, other.norm)
    if abs(spreads[0] - spreads[1]) > rounded or min(spreads) < _LEAST_SPREAD * rounded:
        return None
    found, wanted = tensor.read(), other.read()
    if found.is_complex() or wanted.is_complex() or found.numel() < LEAST_LENGTH:
        return None
    for order in _orders(tensor, other):
        turned = wanted.permute(order)
        middle = float((found.to(torch.float64) - turned.to(torch.float64)).median())
        for number in dict.fromkeys(float(f"{middle:.{digits}g}") for digits in range(1, _MOST_DIGITS)):
            apart = _apart(found, turned, tensor, other, number)
            if number and not apart.differing:
                return _with_constant(tensor, other, apart, _turned(order), number)
    return None


def _with_constant(tensor: Profile, other: Profile, apart: Apart, moved: Sequence[str], number: float) -> Weight:
    amount = f"{'plus' if number > 0 else 'less'} {abs(number):.{_DIGITS}g}"
    layout = ", ".join([*moved, f"{amount} in all elements (whether this is meant, the contents do not say)"])
    rounded = rounding_text(apart, tensor, [other])
    kinds = [*(["transposed"] if moved else []), "offset", *([rounded[0]] if rounded else [])]
    text = ", ".join([layout, *([rounded[1]] if rounded else [])])
    return Weight(
        (tensor.name,), (other.name,), tuple(kinds), text, ulp=apart.ulp, relative_l2=apart.relative_l2,
        differing=0, elements=apart.elements, layout=layout,
    )  # fmt: skip


def _spread(tensor: Profile) -> float:
    """Return the norm of a tensor less its mean."""
    return tensor.norm * float(np.sqrt(max(0.0, 1.0 - float(tensor.moments[0]) ** 2)))


def _orders(tensor: Profile, other: Profile) -> list[tuple[int, ...]]:
    """Return the orders of a tensor's dimensions that give the shape of another."""
    if not 2 <= len(tensor.shape) <= _MOST_DIMENSIONS:
        return [tuple(range(len(tensor.shape)))]
    return [
        order
        for order in permutations(range(len(tensor.shape)))
        if all(other.shape[dim] == size for dim, size in zip(order, tensor.shape, strict=True))
    ]


def _turned(order: tuple[int, ...]) -> list[str]:
    if order == tuple(range(len(order))):
        return []
    return ["transposed" if len(order) == 2 else f"its dimensions are those of the baseline in the order {order}"]


def _apart(found: torch.Tensor, wanted: torch.Tensor, tensor: Profile, other: Profile, plus: float = 0.0) -> Apart:
    apart = Apart()
    rows = found.shape[0] if found.ndim else 1
    step = max(1, _CHUNK * rows // max(1, found.numel()))
    for start in range(0, rows, step):
        mine, its = (
            as_float64((side[start : start + step] if side.ndim else side).reshape(min(step, rows - start), -1))
            for side in (found, wanted)
        )
        units_at = partial(unit, np.maximum(np.abs(mine), np.abs(its)), (tensor.exact_in, other.exact_in))
        apart.add(mine, its + plus, units_at, np.arange(start, start + len(mine)))
    return apart


def difference_text(layout: Layout, apart: Apart) -> str:
    """Describe the differences of a tensor most of whose vectors are found in others."""
    noun = noun_of(layout.view, layout.tensor.shape)
    texts = [_text(apart, layout.view, layout.tensor.shape)] if apart.differing else []
    if len(layout.unknown):
        texts.append(f"altered: {noun} {ranges_text(layout.unknown)} are in no tensor of the baseline")
    if not texts and any(piece.factor is None for piece in layout.pieces):
        texts.append("altered: nothing accounts for the factors")
    return ", ".join(texts) or "altered"


def _text(apart: Apart, view: View, shape: tuple[int, ...]) -> str:
    where = ""
    vectors = np.unique(apart.vectors)
    if len(shape) > 1 and len(vectors) < shape[view.counts[0]] if view.counts else False:
        where = f", in {noun_of(view, shape)} {ranges_text(vectors)}"
    elif len(shape) == 1 and len(vectors) < shape[0]:
        where = f", at {ranges_text(vectors)}"
    unrelated = "; the two have nothing in common" if apart.relative_l2 > UNRELATED else ""
    return (
        f"altered: {apart.differing} of {apart.elements} elements differ{where}, "
        f"relative L2 {apart.relative_l2:.2g}{unrelated}"
    )
