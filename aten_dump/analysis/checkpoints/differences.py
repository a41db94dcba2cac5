"""How far an altered tensor is from its counterpart: how many elements, where, relative L2."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import permutations
from typing import Final

import numpy as np
import torch

from .descriptions import noun_of, rounding_text
from .found_weights import Weight
from .layouts import Apart, Layout, Piece, as_float64, unit
from .orders import ranges_text
from .profiles import Array, Profile, View
from .vector_table import Indexes

_MOST_DIMENSIONS: Final = 4
_CHUNK: Final = 1 << 22
_UNRELATED: Final = 0.9


def compare_named(tensor: Profile, other: Profile) -> Weight:
    """Hold a tensor against another, element by element, in the order of dimensions that is nearest."""
    ours, theirs = (tensor.name,), (other.name,)
    if sorted(tensor.shape) != sorted(other.shape):
        text = f"altered: its shape is {list(tensor.stored.shape)}, of the baseline {list(other.stored.shape)}"
        return Weight(ours, theirs, ("altered",), text, False, elements=tensor.stored.numel)
    found, wanted = tensor.read(), other.read()
    orders = [tuple(range(len(tensor.shape)))]
    if 2 <= len(tensor.shape) <= _MOST_DIMENSIONS:
        orders = [
            order
            for order in permutations(range(len(tensor.shape)))
            if all(other.shape[dim] == size for dim, size in zip(order, tensor.shape, strict=True))
        ]
    tried = [(_apart(found, wanted.permute(order), tensor, other), order) for order in orders]
    apart, order = min(tried, key=lambda item: item[0].squares)
    turned = "transposed" if len(order) == 2 else f"its dimensions are those of the baseline in the order {order}"
    moved = [] if order == tuple(range(len(order))) else [turned]
    kinds = ["transposed"] if moved else []
    if not apart.differing:
        rounded = rounding_text(apart, tensor, [other])
        described = [*moved, *([rounded[1]] if rounded else [])]
        kinds += [rounded[0]] if rounded else []
        return Weight(
            ours, theirs, tuple(kinds) or ("equal",), ", ".join(described) or "equal", ulp=apart.ulp,
            relative_l2=apart.relative_l2, differing=0, elements=apart.elements,
        )  # fmt: skip
    text = ", ".join([*moved, _text(apart, View((0,), ()), tensor.shape)])
    return Weight(
        ours, theirs, ("altered", *kinds), text, False,
        relative_l2=apart.relative_l2, differing=apart.differing, elements=apart.elements,
    )  # fmt: skip


def _apart(found: torch.Tensor, wanted: torch.Tensor, tensor: Profile, other: Profile) -> Apart:
    apart = Apart()
    rows = found.shape[0] if found.ndim else 1
    step = max(1, _CHUNK * rows // max(1, found.numel()))
    for start in range(0, rows, step):
        mine, its = (
            as_float64((side[start : start + step] if side.ndim else side).reshape(min(step, rows - start), -1))
            for side in (found, wanted)
        )
        units_at = partial(unit, np.maximum(np.abs(mine), np.abs(its)), (tensor.exact_in, other.exact_in))
        apart.add(mine, its, units_at, np.arange(start, start + len(mine)))
    return apart


def completed(layout: Layout) -> Layout:
    """Return a layout in which vectors that nothing has have the counterparts that their place says.

    One beside a known vector goes on from it. Where all others of a source are known in another order, what is left on
    both sides belongs together.
    """
    owners = np.full(layout.count, -1)
    indexes = np.zeros(layout.count, dtype=np.int64)
    taken: list[set[int]] = []
    for number, piece in enumerate(layout.pieces):
        owners[piece.given], indexes[piece.given] = number, piece.indexes
        taken.append(set(piece.indexes.tolist()))
    counts = [len(piece.source.norms(piece.view)) for piece in layout.pieces]
    for step, places in ((1, layout.unknown), (-1, layout.unknown[::-1])):
        for place in places.tolist():
            beside = place - step
            if owners[place] >= 0 or not 0 <= beside < layout.count or owners[beside] < 0:
                continue
            owner, index = owners[beside], int(indexes[beside]) + step
            if 0 <= index < counts[owner] and index not in taken[owner]:
                owners[place], indexes[place] = owner, index
                taken[owner].add(index)
    left = np.flatnonzero(owners[layout.unknown] < 0)
    if len(left) and len(layout.pieces) == 1:
        rest = np.setdiff1d(np.arange(counts[0]), np.fromiter(taken[0], dtype=np.int64))
        if len(rest) == len(left):
            owners[layout.unknown[left]], indexes[layout.unknown[left]] = 0, rest
    pieces = [
        replace(piece, given=given, indexes=indexes[given], factors=_factors(piece, given))
        for number, piece in enumerate(layout.pieces)
        for given in [np.flatnonzero(owners == number)]
    ]
    return replace(layout, pieces=pieces, unknown=layout.unknown[owners[layout.unknown] < 0])


def _factors(piece: Piece, given: Indexes) -> Array:
    found: Array = np.full(len(given), float(np.median(piece.factors)))
    found[np.isin(given, piece.given)] = piece.factors
    return found


def difference_text(layout: Layout, apart: Apart) -> str:
    """Say what is other in a tensor of which most vectors are those of others."""
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
    unrelated = "; the two have nothing in common" if apart.relative_l2 > _UNRELATED else ""
    return (
        f"altered: {apart.differing} of {apart.elements} elements differ{where}, "
        f"relative L2 {apart.relative_l2:.2g}{unrelated}"
    )
