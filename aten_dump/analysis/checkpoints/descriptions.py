"""Describe in words the layout of a tensor in others.

In: positions. Out: short texts, such as ``rows 0-767`` or ``permuted within heads of 64``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import torch

from .layouts import Apart, Layout, Piece
from .profiles import ROUNDING, Profile, View
from .vector_table import Indexes

_MOST_RANGES: Final = 4

_DIGITS: Final = 6
_SAME_NORM: Final = 1e-6  # relative: of vectors that may hold one number
_UNEXPLAINED: Final = ", which no order of dimensions explains"
_NOT_TURNED: Final = " without a transposition (forgotten?)"


def noun_of(view: View, shape: Sequence[int]) -> str:
    """Return what the vectors of a view are called."""
    if not view.counts or len(shape) == 1:
        return "elements"
    if len(shape) == 2:
        return "rows" if view.counts == (0,) else "columns"
    if len(view.counts) == 1:
        return f"slices along dimension {view.counts[0]}"
    return f"lines along dimension {view.along[0]}"


def layout_texts(layout: Layout) -> Iterator[tuple[str, str]]:
    """Yield in which ways a tensor is laid out otherwise, each a kind and a text; nothing where it is the same."""
    tensor, pieces = layout.tensor, layout.pieces
    noun = noun_of(layout.view, tensor.shape)
    if len(pieces) > 1:
        yield "fused", _arrangement(layout, noun)
    turned_pieces = [piece for piece in pieces if _is_transposed(layout, piece)]
    if turned_pieces:
        where = "" if len(turned_pieces) == len(pieces) else f" in {noun} {_given_text(turned_pieces)}"
        yield "transposed", f"transposed{where}"
    elif not layout.view.counts and not pieces[0].view.counts and tensor.shape != pieces[0].source.shape:
        turned = len(tensor.shape) == 2 and tensor.shape == pieces[0].source.shape[::-1]
        yield "reshaped", f"reshaped from {list(pieces[0].source.stored.shape)}{_NOT_TURNED if turned else ''}"
    elif len(tensor.shape) != 2 and {layout.view} != {piece.view for piece in pieces} and len(pieces) == 1:
        source = pieces[0].source
        odd = _UNEXPLAINED if len(source.shape) == len(tensor.shape) and not is_part(pieces[0]) else ""
        yield "reshaped", f"its {noun} are {noun_of(pieces[0].view, source.shape)} there{odd}"
    yield from _of_pieces(layout, noun)
    padded = ", ".join(_padding_texts(layout, noun))
    if padded:
        yield "padded", f"padded: {padded}"
    factors = [piece.factor for piece in pieces]
    if None in factors:
        every = np.concatenate([piece.factors for piece in pieces])
        yield "scaled", f"each of its {noun} times a factor of its own ({every.min():.4g} to {every.max():.4g})"


def _of_pieces(layout: Layout, noun: str) -> Iterator[tuple[str, str]]:
    """Yield how vectors are ordered and scaled, and in which part of the tensor, if not in all of it."""
    places: dict[tuple[str, str], list[Piece]] = {}
    for piece in layout.pieces:
        for kind_and_text in _piece_texts(piece):
            places.setdefault(kind_and_text, []).append(piece)
    texts: dict[str, list[str]] = {}
    for (kind, text), some in places.items():
        where = "" if len(some) == len(layout.pieces) or not text else f" in {noun} {_given_text(some)}"
        texts.setdefault(kind, []).append(f"{text}{where}")
    yield from ((kind, ", ".join(some)) for kind, some in texts.items())


def _given_text(pieces: Sequence[Piece]) -> str:
    return ranges_text(np.concatenate([piece.given for piece in pieces]))


def _padding_texts(layout: Layout, noun: str) -> Iterator[str]:
    """Yield which vectors of a tensor, or of its sources, are no more than padding, and how the others moved."""
    pads = len(layout.empty) > 0 and layout.count > sum(_count(piece) for piece in layout.pieces)
    if pads:
        yield f"{noun} {ranges_text(layout.empty)} are {layout.padding:g}"
    for piece in layout.pieces:
        if len(rest := rest_of(piece)) and (number := number_in(piece, rest)) is not None:
            pads = True
            yield f"{noun_of(piece.view, piece.source.shape)} {ranges_text(rest)} of the baseline are {number:g}"
    moved = np.unique(np.concatenate([piece.given - piece.indexes for piece in layout.pieces]))
    if pads and len(moved) == 1 and moved[0]:
        yield f"{noun} lie {abs(moved[0])} {'later' if moved[0] > 0 else 'earlier'} than in the baseline"


def is_suspicious(texts: Mapping[str, str]) -> bool:
    """Return True if what `layout_texts` yields is hardly on purpose."""
    return texts.get("reshaped", "").endswith((_NOT_TURNED, _UNEXPLAINED))


def _is_transposed(layout: Layout, piece: Piece) -> bool:
    sizes = len(layout.tensor.shape), len(piece.source.shape)
    return sizes == (2, 2) and bool(layout.view.counts) and layout.view != piece.view and bool(piece.view.counts)


def _count(piece: Piece) -> int:
    return int(np.prod([piece.source.shape[dim] for dim in piece.view.counts], dtype=np.int64))


def _piece_texts(piece: Piece) -> Iterator[tuple[str, str]]:
    """Yield in which order a piece takes the vectors of its source, that it takes some of them, and its factor."""
    noun = noun_of(piece.view, piece.source.shape)
    places = np.sort(piece.indexes)
    if is_part(piece):
        yield "split", ""
    order = np.searchsorted(places, piece.indexes)
    text = permutation_text(order, noun) if len(np.unique(places)) == len(places) else f"{noun} are repeated"
    if text:
        yield "permuted", text
    factor = piece.factor
    if factor not in (None, 1.0):
        yield "scaled", f"times {factor:.{_DIGITS}g}"


def rest_of(piece: Piece) -> Indexes:
    """Return the vectors of its source that a piece leaves out."""
    left = np.ones(_count(piece), dtype=bool)
    left[piece.indexes] = False
    return np.flatnonzero(left)


def number_in(piece: Piece, places: Indexes) -> float | None:
    """Return the one number that vectors of a source hold, beside those of a piece; None if there is none."""
    every = piece.source.norms(piece.view)
    norms = every[places]
    if piece.source.nonfinite or not every[piece.indexes].any():
        return None
    if not norms.any():
        return 0.0
    if np.ptp(norms) > _SAME_NORM * norms.max():
        return None
    return one_number(piece.view.cut(piece.source.read()), places)


def one_number(vectors: torch.Tensor, places: Indexes) -> float | None:
    """Return the one number that all elements of some vectors are; None if they differ or are not finite."""
    some = vectors[torch.from_numpy(places)]
    if some.is_complex() or not bool((some == some[0, 0]).all()) or not math.isfinite(some[0, 0]):
        return None
    return float(some[0, 0])


def is_part(piece: Piece) -> bool:
    """Return True if a piece leaves out vectors of its source that are no padding."""
    rest = rest_of(piece)
    return len(rest) > 0 and number_in(piece, rest) is None


def part_text(layout: Layout) -> str:
    """Return in words which part of their sources the pieces of a layout are; "" for all of them."""
    return ", ".join(dict.fromkeys(filter(None, map(part_of, layout.pieces))))


def part_of(piece: Piece) -> str:
    """Return in words which vectors of its source a piece takes; "" for all of them."""
    if not len(rest_of(piece)):
        return ""
    shape = piece.source.shape
    return _box_of(piece.view, shape, piece.indexes) or (
        f"{noun_of(piece.view, shape)} {ranges_text(np.unique(piece.indexes))} of {_count(piece)}"
    )


def given_of(layout: Layout, piece: Piece) -> str:
    """Return in words which vectors of its tensor a piece gives; "" if it is the only one."""
    if len(layout.pieces) == 1:
        return ""
    shape = layout.tensor.shape
    return _box_of(layout.view, shape, piece.given) or f"{noun_of(layout.view, shape)} {_given_text([piece])}"


def _box_of(view: View, shape: tuple[int, ...], places: Indexes) -> str:
    """Return vectors of a tensor of three and more dimensions as an index; "" if they are no box."""
    if len(shape) < 3 or not view.counts:
        return ""
    return box_text(np.unique(places), tuple(shape[dim] for dim in view.counts), view.counts, len(shape))


def _arrangement(layout: Layout, noun: str) -> str:
    """Return in words how the pieces of a tensor lie in it."""
    runs = [ranges(piece.given) for piece in layout.pieces]
    if all(len(run) == 1 for run in runs):
        if all(run[0][0] == run[0][1] for run in runs):
            return f"stacked, one after the other: {len(runs)} {noun}"
        return "fused, one after the other" + (f", {noun}" if noun in ("rows", "columns") else "")
    sizes = [{last - first + 1 for first, last in run} for run in runs]
    if all(len(some) == 1 for some in sizes):
        each = [min(some) for some in sizes]
        shown = f"{each[0]}" if len(set(each)) == 1 else " + ".join(map(str, each))
        return f"fused, {shown} {noun if max(each) > 1 else noun.removesuffix('s')} of each in turn"
    return f"fused: {noun} of {len(runs)} tensors mixed"


def rounding_text(apart: Apart, tensor: Profile, sources: Sequence[Profile]) -> tuple[str, str] | None:
    """Return how elements were rounded, as a kind and a text; None if they were not and the dtype is the same."""
    mine = tensor.stored.dtype
    others = dict.fromkeys(one.stored.dtype for one in sources if one.stored.dtype != mine)
    held = dict.fromkeys(one.exact_in for one in sources)
    coarsest = max([tensor.exact_in, *held], key=lambda dtype: ROUNDING.get(dtype, 0.0))
    amount = f"at most {math.ceil(2 * apart.ulp) / 2:g} ulp of {_name(coarsest)}"
    if others:
        change = f"{'/'.join(map(_name, others))} to {_name(mine)}"
        if apart.exact:
            return "cast", f"{change}, exactly"
        is_coarser = coarsest == tensor.exact_in
        return "cast", f"{change}, {amount}" if is_coarser else f"{change}: the baseline is rounded, {amount}"
    if apart.exact:
        return None
    for name, one in (("", [tensor.exact_in]), ("the baseline is ", list(held))):
        if coarsest in one and ROUNDING.get(coarsest, 0.0) > ROUNDING.get(mine, 0.0):
            return "cast", f"{name}rounded to {_name(coarsest)}, kept as {_name(mine)}, {amount}"
    return "rounded", f"but for rounding, {amount}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


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
    """Describe a permutation of 0, 1, 2, ...; "" if nothing is permuted."""
    count = len(order)
    if np.array_equal(order, np.arange(count)):
        return ""
    for size in (size for size in range(count // 2, 1, -1) if count % size == 0):
        blocks = order.reshape(-1, size)
        if np.array_equal(blocks - blocks[:, :1], np.broadcast_to(np.arange(size), blocks.shape)):
            return f"blocks of {size} {noun} (heads) in another order"
    moved = np.flatnonzero(order != np.arange(count))
    for size in (size for size in range(2, count + 1) if count % size == 0):
        blocks = order.reshape(-1, size)
        starts = blocks.min(1, keepdims=True)
        if np.array_equal(starts[:, 0], np.arange(0, count, size)):
            few = 2 * len(moved) <= count and len(moved) <= size
            return f"{noun} {ranges_text(moved)} in another order" if few else _within(blocks - starts, size, noun)
    return f"{count} {noun} in another order"


def rotations(count: int) -> Iterator[Indexes]:
    """Yield the orders of elements in which pairs became halves or halves pairs, within heads of each size."""
    for size in (size for size in range(count, 2, -1) if count % size == 0 and size % 2 == 0):
        starts = np.arange(0, count, size)[:, None]
        for pattern in (np.arange(size).reshape(2, -1).T, np.arange(size).reshape(-1, 2).T):
            yield (starts + pattern.ravel()).ravel()


def _within(blocks: Indexes, size: int, noun: str) -> str:
    """Describe how each of some blocks is permuted within itself."""
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
