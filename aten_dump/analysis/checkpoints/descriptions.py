"""Say in words how a tensor is laid out in others."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import torch

from .layouts import Apart, Layout, Piece
from .orders import box_text, permutation_text, ranges, ranges_text
from .profiles import ROUNDING, Profile, View

_DIGITS: Final = 6
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
    if any(_is_transposed(layout, piece) for piece in pieces):
        yield "transposed", "transposed"
    elif not layout.view.counts and not pieces[0].view.counts and tensor.shape != pieces[0].source.shape:
        turned = len(tensor.shape) == 2 and tensor.shape == pieces[0].source.shape[::-1]
        yield "reshaped", f"reshaped from {list(pieces[0].source.stored.shape)}{_NOT_TURNED if turned else ''}"
    elif len(tensor.shape) != 2 and {layout.view} != {piece.view for piece in pieces} and len(pieces) == 1:
        source = pieces[0].source
        odd = _UNEXPLAINED if len(source.shape) == len(tensor.shape) and not is_part(pieces[0]) else ""
        yield "reshaped", f"its {noun} are {noun_of(pieces[0].view, source.shape)} there{odd}"
    texts = {text: kind for piece in pieces for kind, text in _piece_texts(piece)}
    yield from ((kind, text) for text, kind in texts.items())
    if len(layout.empty) and layout.count > sum(_count(piece) for piece in pieces):
        yield "padded", f"padded: {noun} {ranges_text(layout.empty)} are 0"
    factors = [piece.factor for piece in pieces]
    if None in factors:
        every = np.concatenate([piece.factors for piece in pieces])
        yield "scaled", f"each of its {noun} times a factor of its own ({every.min():.4g} to {every.max():.4g})"
    elif any(factor != 1 for factor in factors):
        shown = dict.fromkeys(f"{factor:.{_DIGITS}g}" for factor in factors)
        yield "scaled", f"times {', '.join(shown)}"


def is_suspicious(texts: Mapping[str, str]) -> bool:
    """Return True if what `layout_texts` yields is hardly on purpose."""
    return texts.get("reshaped", "").endswith((_NOT_TURNED, _UNEXPLAINED))


def _is_transposed(layout: Layout, piece: Piece) -> bool:
    sizes = len(layout.tensor.shape), len(piece.source.shape)
    return sizes == (2, 2) and bool(layout.view.counts) and layout.view != piece.view and bool(piece.view.counts)


def _count(piece: Piece) -> int:
    return int(np.prod([piece.source.shape[dim] for dim in piece.view.counts], dtype=np.int64))


def _piece_texts(piece: Piece) -> Iterator[tuple[str, str]]:
    """Yield in which order a piece takes the vectors of its source, and that it takes some of them alone."""
    noun = noun_of(piece.view, piece.source.shape)
    places = np.sort(piece.indexes)
    if is_part(piece):
        yield "split", ""
    order = np.searchsorted(places, piece.indexes)
    text = permutation_text(order, noun) if len(np.unique(places)) == len(places) else f"{noun} are repeated"
    if text:
        yield "permuted", text


def is_part(piece: Piece) -> bool:
    """Return True if a piece leaves out vectors of its source that hold something."""
    places = np.sort(piece.indexes)
    return len(places) < _count(piece) and not _rest_is_empty(piece, places)


def part_text(layout: Layout) -> str:
    """Say which part of their sources the pieces of a layout are; "" where it is all of them."""
    return ", ".join(dict.fromkeys(_part_of(piece) for piece in layout.pieces if is_part(piece)))


def _part_of(piece: Piece) -> str:
    places, shape = np.unique(piece.indexes), piece.source.shape
    if len(shape) > 2 and piece.view.counts:
        sizes = tuple(shape[dim] for dim in piece.view.counts)
        box = box_text(places, sizes, piece.view.counts, len(shape))
        if box:
            return box
    return f"{noun_of(piece.view, shape)} {ranges_text(places)} of {_count(piece)}"


def _rest_is_empty(piece: Piece, places: np.ndarray) -> bool:
    """Return True if the vectors of a source that a piece lacks have no element but 0."""
    norms = piece.source.norms(piece.view)
    rest = np.ones(len(norms), dtype=bool)
    rest[places] = False
    return not norms[rest].any()


def _arrangement(layout: Layout, noun: str) -> str:
    """Say how the pieces of a tensor lie in it."""
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
    """Say how elements were rounded, as a kind and a text; None if they were not and the dtype is the same."""
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
