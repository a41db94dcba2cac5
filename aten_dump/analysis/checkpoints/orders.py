"""Say in words in which order vectors of a tensor come: ranges, heads, interleaved blocks.

In: positions. Out: short texts, such as ``rows 0-767`` or ``permuted within heads of 64``.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np

from .vector_table import Indexes

_MOST_RANGES: Final = 4


def ranges(positions: Indexes) -> list[tuple[int, int]]:
    """Return stretches of positions that follow one another, each as its first and last."""
    if not len(positions):
        return []
    ends = [0, *(np.flatnonzero(np.diff(positions) != 1) + 1).tolist(), len(positions)]
    return [(int(positions[start]), int(positions[stop - 1])) for start, stop in pairwise(ends)]


def ranges_text(positions: Indexes) -> str:
    """Return positions as text: ``0-767, 900``."""
    places = np.sort(positions)
    steps = np.unique(np.diff(places))
    if len(places) > _MOST_RANGES and len(steps) == 1 and steps[0] > 1:
        return f"{places[0]}, {places[1]}, ..., {places[-1]}"
    found = ranges(places)
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in found[:_MOST_RANGES]]
    left = len(found) - len(texts)
    return ", ".join(texts) + (f" and {left} more stretches" if left else "")


def permutation_text(order: Indexes, noun: str) -> str:
    """Say how a permutation of 0, 1, 2, ... is one; "" if it is none."""
    count = len(order)
    if np.array_equal(order, np.arange(count)):
        return ""
    for size in (size for size in range(count // 2, 1, -1) if count % size == 0):
        blocks = order.reshape(-1, size)
        if np.array_equal(blocks - blocks[:, :1], np.broadcast_to(np.arange(size), blocks.shape)):
            return f"blocks of {size} {noun} (heads) in another order"
    for size in (size for size in range(2, count + 1) if count % size == 0):
        blocks = order.reshape(-1, size)
        starts = blocks.min(1, keepdims=True)
        if np.array_equal(starts[:, 0], np.arange(0, count, size)):
            return _within(blocks - starts, size, noun)
    return f"{count} {noun} in another order"


def _within(blocks: Indexes, size: int, noun: str) -> str:
    """Say how each of some blocks is permuted within itself."""
    half = np.arange(size).reshape(2, -1) if size % 2 == 0 else np.zeros((1, 1))
    pattern = blocks[0]
    if not (blocks == pattern).all():
        return f"{blocks.size} {noun} in another order, within blocks of {size}"
    if size % 2 == 0 and np.array_equal(pattern, half.T.ravel()):
        return f"permuted within heads of {size}: halves became pairs (the other RoPE layout)"
    if size % 2 == 0 and np.array_equal(pattern, np.arange(size).reshape(-1, 2).T.ravel()):
        return f"permuted within heads of {size}: pairs became halves (the other RoPE layout)"
    if np.array_equal(pattern, np.arange(size)[::-1]):
        return f"{noun} in reverse order" if len(blocks) == 1 else f"{noun} reversed within blocks of {size}"
    return f"{noun} in another order" if len(blocks) == 1 else f"{noun} permuted alike within blocks of {size}"


def box_text(places: Indexes, sizes: tuple[int, ...], dims: tuple[int, ...], count: int) -> str:
    """Return positions among lines of a tensor as an index, ``[2, 0:32, :]``; "" if they are no box.

    Args:
        places: row-major, over the dimensions that count the lines.
        sizes: of these.
        dims: these.
        count: dimensions of the tensor.
    """
    along = [np.unique(one) for one in np.unravel_index(places, sizes)]
    if np.prod([len(one) for one in along]) != len(places) or any(len(ranges(one)) != 1 for one in along):
        return ""
    texts = [":"] * count
    for dim, one, size in zip(dims, along, sizes, strict=True):
        first, last = int(one[0]), int(one[-1])
        texts[dim] = ":" if len(one) == size else str(first) if first == last else f"{first}:{last + 1}"
    return f"[{', '.join(texts)}]"
