"""Find of which vectors of the other side a tensor is made, and hold its elements against them.

Theory of operation
    Each view of the tensor is looked up in the table of the other side's vectors. The view that finds most of them, in
    the fewest tensors, says how the tensor is laid out: `Piece`s, each some vectors of one view of one tensor. What the
    table finds are projections; `check` then reads both and holds each element against its counterpart, as rounding in
    both dtypes allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np
import torch

from .profiles import ROUNDING, Array, Profile, Vectors, View
from .vector_table import Indexes, Pairs, VectorTable

_MOST_PIECES: Final = 4096
_CHUNK: Final = 1 << 19  # elements that are compared at a time
_ULP: Final = 2.0  # units of the last place that a computation may be off
_LEAST_SHARE: Final = 0.05  # of a view's vectors: fewer are no layout
_EQUAL: Final = 1e-9  # of projections of equal vectors
_SAME_SCALE: Final = 1e-6  # relative: of factors, beside rounding
_SPREAD: Final = 4.0  # of norms, in half units of the last place over the square root of the length


@dataclass(frozen=True, slots=True)
class Piece:
    """Vectors of a tensor that are those of one view of another."""

    source: Profile
    view: View  # of the source
    given: Indexes  # which vectors of the tensor
    indexes: Indexes  # which of the source each of them is
    factors: Array  # each is this many times the source's
    slack: float = 0.0  # relative: how far rounding puts factors apart

    @property
    def factor(self) -> float | None:
        """The one factor of all vectors; None if each has its own."""
        allowed = self.slack + _SAME_SCALE
        middle = float(np.median(self.factors))
        if np.abs(self.factors - middle).max() > allowed * abs(middle):
            return None
        return 1.0 if abs(middle - 1) <= allowed else middle


@dataclass(slots=True)
class Layout:
    """How a tensor is made of others."""

    tensor: Profile
    view: View
    count: int  # vectors of the view
    pieces: list[Piece]
    empty: Indexes  # vectors that hold `padding` alone
    unknown: Indexes  # vectors that no tensor has
    padding: float = 0.0
    is_certain: bool = True  # False if elements that are equal leave several orders

    @property
    def share(self) -> float:
        """How many of the vectors that hold something are known, of one."""
        known = sum(len(piece.given) for piece in self.pieces)
        return known / max(1, known + len(self.unknown))


@dataclass(slots=True)
class Apart:
    """How far elements are from their counterparts."""

    elements: int = 0
    differing: int = 0  # beyond what rounding allows
    ulp: float = 0.0  # most that rounding moved one, in units of the coarser dtype
    exact: bool = True  # every element is the same number
    squares: float = 0.0  # of differences
    reference: float = 0.0  # sum of the counterparts' squares
    vectors: list[int] = field(default_factory=list)  # of the tensor, in which elements differ
    allowed: float = _ULP  # units of the last place

    @property
    def relative_l2(self) -> float:
        return float(np.sqrt(self.squares / self.reference)) if self.reference else float(self.squares > 0)

    def add(self, found: Array, wanted: Array, units_at: Callable[[], Array], vectors: Indexes) -> None:
        """Take in some vectors of a tensor, what each ought to be, and what returns units of the last place there."""
        self.elements += found.size
        self.reference += _squares(wanted)
        if (found == wanted).all():
            return
        with np.errstate(invalid="ignore", divide="ignore"):
            apart = np.abs(found - wanted)
            units = apart / units_at()
        apart[(found == wanted) | (np.isnan(found) & np.isnan(wanted))] = 0.0
        self.exact &= not apart.any()
        wrong = ~(units <= self.allowed) & ~(apart == 0)
        self.ulp = max(self.ulp, float(units.max(where=(apart > 0) & ~wrong, initial=0.0)))
        self.squares += _squares(apart)
        if wrong.any():
            self.differing += int(wrong.sum())
            self.vectors += vectors[wrong.any(1)].tolist()


def _squares(array: Array) -> float:
    """Return the sum of the squares of the finite elements."""
    flat = array.ravel()
    found = float(flat @ flat)
    return found if np.isfinite(found) else float((flat[np.isfinite(flat)] ** 2).sum())


def unit(found: Array, dtypes: tuple[torch.dtype, ...]) -> Array:
    """Return a unit of the last place at each element, in the coarsest of some dtypes."""
    coarsest = max(dtypes, key=lambda dtype: ROUNDING.get(dtype, 0.0))
    if coarsest not in ROUNDING:
        return np.zeros_like(found)
    info = torch.finfo(coarsest)
    least = np.frexp(info.tiny)[1]
    exponents = np.where(found == 0, least, np.frexp(found)[1])  # frexp has 0 for zero
    units: Array = np.ldexp(info.eps / 2, np.maximum(exponents, least))
    return units


def find_layout(tensor: Profile, table: VectorTable, prefers: Callable[[Profile], float]) -> Layout | None:
    """Return how a tensor is made of those in a table, or None if it is not.

    Args:
        tensor: looked up.
        table: of the other side.
        prefers: how likely a tensor is, of several that have the same vectors.
    """
    best: Layout | None = None
    for vectors in (tensor.whole, *tensor.vectors):
        pairs = table.find(vectors, tensor.rounding)
        if not len(pairs.given):
            continue
        layout = _Assignment(tensor, vectors, table, prefers).layout(pairs)
        if best is None or _rank(layout) > _rank(best):
            best = layout
        if layout.share == 1 and len(layout.pieces) == 1:
            break
    return best if best is not None and best.share >= _LEAST_SHARE else None


def _rank(layout: Layout) -> tuple[float, float, bool]:
    in_order = all(np.array_equal(np.diff(piece.indexes), np.ones(len(piece.indexes) - 1)) for piece in layout.pieces)
    return round(layout.share, 6), -len(layout.pieces), in_order


class _Assignment:
    """Maps each vector of one view to a vector of the other side."""

    def __init__(
        self, tensor: Profile, vectors: Vectors, table: VectorTable, prefers: Callable[[Profile], float]
    ) -> None:
        self._tensor, self._vectors, self._table, self._prefers = tensor, vectors, table, prefers

    def layout(self, pairs: Pairs) -> Layout:
        """Return the pieces, taking first the view that has most of the vectors that are left."""
        pieces: list[Piece] = []
        open_ones = np.zeros(len(self._vectors.norms), dtype=bool)
        open_ones[pairs.given] = True
        while len(pieces) < _MOST_PIECES and open_ones.any():
            group = self._most(pairs, open_ones)
            piece = self._piece(pairs, group, open_ones)
            pieces.append(piece)
            open_ones[piece.given] = False
            pairs = pairs.only(open_ones[pairs.given])
        known = np.zeros(len(self._vectors.norms), dtype=bool)
        for piece in pieces:
            known[piece.given] = True
        empty = (self._vectors.norms == 0) & (self._tensor.nonfinite == 0)
        pieces.sort(key=lambda piece: int(piece.given[0]))
        return Layout(
            self._tensor, self._vectors.view, len(known), pieces,
            np.flatnonzero(empty & ~known), np.flatnonzero(~empty & ~known),
        )  # fmt: skip

    def _most(self, pairs: Pairs, open_ones: Indexes) -> int:
        """Return the group that has most of the vectors that are left; of several the one that names prefer."""
        distinct = np.unique(np.stack([pairs.groups, pairs.given]), axis=1)[0]
        groups, counts = np.unique(distinct, return_counts=True)
        likely = groups[counts == counts.max()][:_MOST_PIECES]
        return int(max(likely, key=lambda group: self._prefers(self._table.groups[group][0])))

    def _piece(self, pairs: Pairs, group: int, open_ones: Indexes) -> Piece:
        source, vectors = self._table.groups[group]
        every = pairs.only(pairs.groups == group)
        chosen = _in_order(_nearest(every))
        if len(np.unique(chosen.indexes)) < len(chosen.indexes):  # vectors that are nearly the same, or repeated
            alone = _one_to_one(every)
            chosen = alone if len(alone.given) == len(chosen.given) else chosen
        given, indexes, signs = chosen.given, chosen.indexes, chosen.signs
        factors = signs * self._vectors.norms[given] / vectors.norms[indexes]
        # Rounding is as often up as down: of a long vector it hardly moves the norm.
        slack = _SPREAD * (self._tensor.rounding + source.rounding) / float(np.sqrt(vectors.length))
        return Piece(source, vectors.view, given, indexes, factors, slack)


def _in_order(pairs: Pairs) -> Pairs:
    """Return one pair for each vector: of several equal ones that which goes on as most do."""
    offsets, counts = np.unique(pairs.indexes - pairs.given, return_counts=True)
    usual = offsets[counts.argmax()]
    order = np.lexsort((pairs.indexes, pairs.indexes - pairs.given != usual, pairs.given))
    return pairs.only(order[np.flatnonzero(np.diff(pairs.given[order], prepend=-1))])


def _one_to_one(pairs: Pairs) -> Pairs:
    """Return pairs of which no two have a vector in common, the nearest first."""
    taken: tuple[set[int], set[int]] = set(), set()
    kept = []
    for place in np.argsort(pairs.apart, kind="stable").tolist():
        given, index = int(pairs.given[place]), int(pairs.indexes[place])
        if given not in taken[0] and index not in taken[1]:
            taken[0].add(given)
            taken[1].add(index)
            kept.append(place)
    found = pairs.only(np.array(kept, dtype=np.int64))
    return found.only(np.argsort(found.given))


def _nearest(pairs: Pairs) -> Pairs:
    """Return the pairs that are hardly farther apart than the nearest one of the same vector."""
    least = np.full(int(pairs.given.max()) + 1, np.inf)
    np.minimum.at(least, pairs.given, pairs.apart)
    return pairs.only(pairs.apart <= 2 * least[pairs.given] + _EQUAL)


def check(layout: Layout) -> Apart:
    """Hold the known vectors of a tensor against their counterparts, element by element."""
    found = Apart()
    ours = layout.view.cut(layout.tensor.read())
    read: tuple[Profile | None, torch.Tensor] = None, ours
    for piece in layout.pieces:
        if read[0] is not piece.source:
            read = piece.source, piece.source.read()
        theirs = piece.view.cut(read[1])
        dtypes = layout.tensor.exact_in, piece.source.exact_in
        factor = piece.factor
        factors = piece.factors if factor is None else np.full(len(piece.factors), factor)
        for part in _chunks(len(piece.given), ours.shape[1]):
            mine = as_float64(ours[torch.from_numpy(piece.given[part])])
            wanted = as_float64(theirs[torch.from_numpy(piece.indexes[part])]) * factors[part, None]
            found.add(mine, wanted, partial(unit, wanted, dtypes), piece.given[part])
    return found


def as_float64(tensor: torch.Tensor) -> Array:
    """Return elements in float64; of complex ones the real and the imaginary parts."""
    found: Array = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).to(torch.float64).numpy()
    return found


def _chunks(count: int, length: int) -> Iterator[slice]:
    step = max(1, _CHUNK // max(1, length))
    return (slice(start, start + step) for start in range(0, count, step))
