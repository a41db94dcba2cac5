"""A vector follows the weight of its module: a bias is permuted, fused and split as the weight's rows are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .layouts import Apart, Layout, Piece, as_float64, check
from .profiles import Profile, View, is_alike

_ELEMENTS = View((0,), ())


def follow(tensor: Profile, sibling: Layout, spare: Sequence[Profile]) -> Layout | None:
    """Return the layout of a vector, by that of a weight of its module; None if the other side has none alike.

    Args:
        tensor: of one dimension, with an element for each vector of the weight's view.
        sibling: the weight's layout.
        spare: vectors of the other side.
    """
    if len(sibling.view.counts) != 1 or len(sibling.unknown):
        return None
    pieces = []
    for piece in sibling.pieces:
        if len(piece.view.counts) != 1:
            return None
        size = piece.source.shape[piece.view.counts[0]]
        leaf = tensor.name.rpartition(".")[2]
        likely = [one for one in spare if one.stored.module == piece.source.stored.module and one.shape == (size,)]
        likely.sort(key=lambda one: one.name.rpartition(".")[2] != leaf)
        if not likely:
            return None
        pieces.append(Piece(likely[0], _ELEMENTS, piece.given, piece.indexes, np.ones(len(piece.given))))
    unknown = np.zeros(0, dtype=np.int64)
    return Layout(tensor, _ELEMENTS, sibling.count, pieces, sibling.empty, unknown)


def permuted(tensor: Profile, other: Profile) -> tuple[Layout, Apart] | None:
    """Return the layout of a vector that has the elements of another in another order, or None if it is none."""
    if tensor.shape != other.shape or not is_alike(tensor, other):
        return None
    ours, theirs = (np.argsort(as_float64(one.read()), kind="stable") for one in (tensor, other))
    order = np.empty_like(ours)
    order[ours] = theirs
    count = len(order)
    piece = Piece(other, _ELEMENTS, np.arange(count), order, np.ones(count))
    none = np.zeros(0, dtype=np.int64)
    layout = Layout(tensor, _ELEMENTS, count, [piece], none, none)
    apart = check(layout)
    return None if apart.differing else (layout, apart)
