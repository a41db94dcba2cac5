"""Finds tensors as blocks of larger ones, without making the blocks.

Theory of operation
    For each tensor two kinds of sums over the last dimension are kept: of the elements, weighted by ``exp(i * theta *
    k)`` for two angles, and of their squares. The projection of a block is the sum of its rows' sums, each rotated by
    the row's position in the block. So the kept sums give the projections and the norm of any block, and these identify
    it. A block that is smaller in several dimensions (a row of a batch without its padding) is looked for by its
    largest row.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple, Protocol

import torch

from ...dump import Value
from ..distance.element_chunks import place_in
from ..signatures.signature import TOLERANCE

_ANGLES: Final = (0.7390851, 1.9021605)
_MOST_DIMENSIONS: Final = 5
_MOST_ELEMENTS: Final = 1 << 22
_MOST_ROWS: Final = 1 << 18  # of each some 40 bytes are kept
_SMALLEST: Final = 1e-12
_CANCELLED: Final = 1e-7  # relative to a tensor: error of the norms of its blocks, which are differences of sums
_MOST_ROWS_SOUGHT: Final = 1 << 11  # that are looked for one by one, and among which
_MOST_HITS: Final = 256  # most blocks of one norm to look at: zeros and padding repeat
_SPREAD: Final = 10.0  # times the norm's tolerance: error of a projection


@dataclass(frozen=True, slots=True)
class Block:
    """Where a tensor lies in a larger one."""

    dim: int
    start: int
    length: int
    size: int  # of the larger one, in that dimension
    within: Block | None = None  # set if the larger tensor is itself a block of another
    is_turned: bool = False  # the tensor lies there with its last two dimensions exchanged

    def __str__(self) -> str:
        """Return where it lies, in words."""
        last = self.start + self.length - 1
        where = f"index {self.start}" if self.length == 1 else f"indices {self.start} to {last}"
        more = "" if self.within is None else f", in {self.within}"
        more += ", transposed" if self.is_turned else ""
        return f"{where} of {self.size} along dimension {self.dim}{more}"

    def take(self, whole: torch.Tensor) -> torch.Tensor:
        """Return the block of a tensor."""
        found = self.of(whole)
        return found.transpose(-1, -2) if self.is_turned else found

    def put(self, whole: torch.Tensor, part: torch.Tensor) -> None:
        """Write a tensor to the block of another one."""
        self.of(whole).copy_(part.transpose(-1, -2) if self.is_turned else part)

    def of(self, whole: torch.Tensor, ahead: int = 0) -> torch.Tensor:
        """Return a view of the block in a tensor with additional leading dimensions."""
        larger = whole if self.within is None else self.within.of(whole, ahead)
        return larger.narrow(self.dim + ahead, self.start, self.length)


class Where(Protocol):
    """Where a tensor lies in another one."""

    def take(self, whole: torch.Tensor) -> torch.Tensor:
        """Return the tensor that lies there."""
        ...

    def put(self, whole: torch.Tensor, part: torch.Tensor) -> None:
        """Write a tensor there."""
        ...


@dataclass(frozen=True, slots=True)
class Covered:
    """A value of one side that is covered by parts of the other side."""

    side: int
    whole: Value
    pieces: tuple[tuple[Value, Where], ...]


class Rows:
    """What is kept of a tensor: sums over its last dimension."""

    __slots__ = ("is_floating", "last", "norm", "shape", "squares", "sums")

    def __init__(self, tensor: torch.Tensor) -> None:
        """Read a tensor, [..., last]. If it has one dimension at most or is of integers, each element is a row.

        Of integers that are equal for all samples, such as positions and masks, only one sample counts.
        """
        found = tensor.detach().to("cpu", torch.float64)
        if tensor.dim() > 1 and not tensor.is_floating_point() and bool((found == found[:1]).all()):
            found = found[:1]
        found = found.unsqueeze(-1) if _has_rows_of_one(tensor) else found
        self.is_floating = tensor.is_floating_point()
        self.shape = tuple(found.shape)
        self.last = self.shape[-1]
        columns = torch.arange(self.last, dtype=torch.float64)
        weights = torch.stack([f(angle * columns) for angle in _ANGLES for f in (torch.cos, torch.sin)], -1)
        sums = (found @ weights).unflatten(-1, (len(_ANGLES), 2)).contiguous()
        self.sums = torch.view_as_complex(sums).movedim(-1, 0)  # complex[angle, *leading]
        self.squares = found.square().sum(-1)
        self.norm = math.sqrt(float(self.squares.sum()))

    def scaled(self, factor: float) -> Rows:
        """Return the rows of a multiple of the tensor."""
        return self._like(self.sums * factor, self.squares * factor**2)

    def slice(self, dim: int, at: int) -> Rows:
        """Return the rows of a slice along a dimension other than the last."""
        return self._like(self.sums.narrow(dim + 1, at, 1), self.squares.narrow(dim, at, 1))

    def _like(self, sums: torch.Tensor, squares: torch.Tensor) -> Rows:
        """Return rows of the same length and kind."""
        found: Rows = object.__new__(Rows)
        found.is_floating, found.last, found.shape = self.is_floating, self.last, (*squares.shape, self.last)
        found.sums, found.squares, found.norm = sums, squares, math.sqrt(float(squares.sum()))
        return found

    def rows(self) -> torch.Tensor:
        """Return norm and projections of each row that is not zero, float[rows, numbers]."""
        norms = self.squares.flatten().sqrt()
        sums = torch.view_as_real(self.sums.flatten(1)).permute(1, 0, 2).flatten(1)
        return torch.cat((norms.unsqueeze(-1), sums), -1)[norms > 0]

    def projections(self) -> list[complex]:
        """Return the projections of the whole tensor."""
        return _projections(self.sums, self.last)

    def norms(self, dim: int, length: int) -> torch.Tensor:
        """Return the norm of each block of some length along a dimension, float[starts]."""
        along = self.squares.movedim(dim, 0).flatten(1).sum(1) if self.squares.dim() > 1 else self.squares
        ends = torch.cat((along.new_zeros(1), along.cumsum(0)))
        return (ends[length:] - ends[:-length]).clamp(min=0).sqrt()

    def is_padded(self, block: Block) -> bool:
        """Return True if everything outside a block of this tensor is one number: zero, or that of a mask."""
        inside = torch.zeros(self.squares.shape, dtype=torch.bool)
        block.of(inside).fill_(True)
        squares, sums = self.squares[~inside], self.sums[:, ~inside]
        ones = torch.tensor([_ones(angle, self.last) for angle in _ANGLES], dtype=sums.dtype)
        number = (sums[0] / ones[0]).real.flatten()[:1]  # of the first row outside, if that were one number
        is_one = (sums - number * ones[:, None]).abs() <= TOLERANCE * (number.abs() * self.last + _SMALLEST)
        is_of_norm = (squares - number**2 * self.last).abs() <= TOLERANCE * (number**2 * self.last + _SMALLEST)
        is_many = squares.numel() * self.last > 1  # one element proves nothing
        return bool(is_one.all() and is_of_norm.all()) and (is_many or not bool(squares.any()))

    def like_largest_row(self, part: Rows, dims: Sequence[int], allowed: float) -> Iterator[Block]:
        """Yield the blocks with a part's shape whose row at the place of the part's largest row is equal to that."""
        place = int(part.squares.argmax())
        at = place_in(part.squares.shape, place)
        row = float(part.squares.flatten()[place]) ** 0.5
        near = ((self.squares.sqrt() - row).abs() <= allowed + _CANCELLED * self.norm).nonzero().tolist()
        for hit in near[:_MOST_HITS]:
            starts = [one - mine for one, mine in zip(hit, at, strict=True)]
            sizes = zip(starts, part.shape, self.shape, strict=False)
            if all(start >= 0 and start + length <= size for start, length, size in sizes):
                block: Block | None = None
                for dim in dims:
                    block = Block(dim, starts[dim], part.shape[dim], self.shape[dim], block)
                if block is not None:
                    yield block

    def has(self, wanted: Sequence[complex], allowed: float, block: Block) -> bool:
        """Return True if a block of this tensor has these projections, within a tolerance."""
        found = _projections(block.of(self.sums, 1), self.last)
        return all(abs(one - other) <= allowed for one, other in zip(found, wanted, strict=True))


@lru_cache(maxsize=1 << 14)
def dimensions_of(part: tuple[int, ...], whole: tuple[int, ...]) -> tuple[int, ...]:
    """Return the dimensions in which a shape is smaller; none if it cannot be a block's."""
    if len(part) != len(whole) or any(one > other for one, other in zip(part, whole, strict=True)):
        return ()
    return tuple(dim for dim, (one, other) in enumerate(zip(part, whole, strict=True)) if one < other)


class Blocks:
    """Tensors in which equal blocks can be looked up."""

    def __init__(self, wholes: Mapping[int, Rows]) -> None:
        """Take tensors by the ids of their values."""
        self._wholes = wholes
        self._by_shape: dict[tuple[int, ...], _Windows] = {}
        self._row_norms: dict[int, tuple[torch.Tensor, torch.Tensor, list[int], float]] = {}  # of a last dimension
        self._rows: dict[int, torch.Tensor] = {}  # of the tensors in which rows were looked for

    def find(self, part: Rows, noise: float = 0.0) -> list[tuple[int, Block]]:
        """Return the id of each tensor that contains a part as a block, and the block.

        Args:
            part: the tensor.
            noise: L2 norm of what rounding may change of it.
        """
        if not part.norm:
            return []
        windows = self._of_shape(part.shape)
        allowed = 2 * TOLERANCE * part.norm + noise + _SMALLEST
        if noise > part.norm * TOLERANCE:  # the norms of such small blocks have no correct digits
            allowed += _CANCELLED * max((whole.norm for whole in self._wholes.values()), default=0.0)
        edges = torch.tensor([part.norm - allowed, part.norm + allowed], dtype=torch.float64)
        first, past = torch.searchsorted(windows.norms, edges).tolist()
        found, wanted = [], part.projections() if first < past else []
        for place in range(first, min(past, first + _MOST_HITS)):
            number, dim = windows.wholes[int(windows.of[place])]
            whole = self._wholes[number]
            block = Block(dim, int(windows.starts[place]), part.shape[dim], whole.shape[dim])
            if whole.has(wanted, _SPREAD * (TOLERANCE * part.norm + noise), block):
                found.append((number, block))
        return found

    def find_smaller(self, part: Rows, noise: float = 0.0) -> list[tuple[int, Block]]:
        """Return the blocks equal to a tensor in others that are larger in several dimensions, but not in the last."""
        found, wanted = [], part.projections() if part.norm else []
        for number in self._with_largest_row(part, TOLERANCE * part.norm + noise) if part.norm else ():
            whole = self._wholes[number]
            dims = dimensions_of(part.shape, whole.shape)
            if len(dims) > 1:
                for block in whole.like_largest_row(part, dims, TOLERANCE * part.norm + noise):
                    if whole.has(wanted, _SPREAD * (TOLERANCE * part.norm + noise), block):
                        found.append((number, block))
        return found

    def with_all_rows(self, part: Rows, noise: float = 0.0) -> Iterator[int]:
        """Yield the ids of the tensors that contain each row of a tensor of floats at least as often.

        A row that is read twice but occurs once is wrong, as a stale page of a cache is.

        Args:
            part: the tensor.
            noise: L2 norm of what rounding may change of it.
        """
        ours, allowed = part.rows(), _SPREAD * (TOLERANCE * part.norm + noise)
        if not part.is_floating or not 1 < len(ours) <= _MOST_ROWS_SOUGHT:
            return
        for number in self._with_largest_row(part, TOLERANCE * part.norm + noise):
            theirs = self._rows.get(number)
            if theirs is None:
                theirs = self._rows[number] = self._wholes[number].rows()
            there = _times(ours, theirs, allowed) if 0 < len(theirs) <= _MOST_ROWS_SOUGHT else ours.new_zeros(1)
            if bool(there.all()):
                own = _times(ours, ours, allowed)
                repeats = _times(theirs, theirs, allowed).min() / own.min()  # as of keys that several heads share
                if bool((there >= repeats * own).all()):
                    yield number

    def _with_largest_row(self, part: Rows, allowed: float) -> list[int]:
        """Return the ids of the tensors that have a row with the norm of a part's largest row, in the given order."""
        if part.last not in self._row_norms:
            wholes = [(number, whole) for number, whole in self._wholes.items() if whole.last == part.last]
            norms = [whole.squares.flatten().sqrt() for _, whole in wholes]
            ordered, order = torch.cat([*norms, torch.empty(0, dtype=torch.float64)]).sort()
            of = torch.repeat_interleave(torch.tensor([len(rows) for rows in norms], dtype=torch.int64))
            largest = max((whole.norm for _, whole in wholes), default=0.0)
            self._row_norms[part.last] = ordered, of[order], [number for number, _ in wholes], largest
        ordered, of, numbers, largest = self._row_norms[part.last]
        row, allowed = float(part.squares.max()) ** 0.5, allowed + _CANCELLED * largest
        first, past = torch.searchsorted(ordered, ordered.new_tensor([row - allowed, row + allowed])).tolist()
        return [numbers[place] for place in of[first:past].unique().tolist()]

    def may_have_slices(self, part: Rows, dim: int) -> bool:
        """Return True if each slice along a dimension has a block of the same norm."""
        norms = part.norms(dim, 1)
        norms = norms[norms > 0]
        known = self._of_shape((*part.shape[:dim], 1, *part.shape[dim + 1 :])).norms
        allowed = 2 * TOLERANCE * norms + _SMALLEST
        return bool((torch.searchsorted(known, norms - allowed) < torch.searchsorted(known, norms + allowed)).all())

    def _of_shape(self, shape: tuple[int, ...]) -> _Windows:
        windows = self._by_shape.get(shape)
        if windows is None:
            windows = self._by_shape[shape] = self._windows(shape)
        return windows

    def _windows(self, shape: tuple[int, ...]) -> _Windows:
        norms, starts = [torch.empty(0, dtype=torch.float64)], [torch.empty(0, dtype=torch.int64)]
        of: list[int] = []
        wholes: list[tuple[int, int]] = []
        for number, whole in self._wholes.items():
            dims = dimensions_of(shape, whole.shape)
            if len(dims) == 1 and dims[0] < len(shape) - 1 and whole.norm:
                dim = dims[0]
                norms.append(whole.norms(dim, shape[dim]))
                starts.append(torch.arange(len(norms[-1])))
                of += [len(wholes)] * len(norms[-1])
                wholes.append((number, dim))
        ordered, order = torch.cat(norms).sort()
        return _Windows(ordered, torch.tensor(of, dtype=torch.int64)[order], torch.cat(starts)[order], wholes)


class _Windows(NamedTuple):
    """All blocks of a shape in some tensors, by their norms."""

    norms: torch.Tensor  # f64[blocks], ascending
    of: torch.Tensor  # i64[blocks], in `wholes`
    starts: torch.Tensor  # i64[blocks]
    wholes: list[tuple[int, int]]  # id of the value, dimension


def _times(rows: torch.Tensor, among: torch.Tensor, allowed: float) -> torch.Tensor:
    """Return how often each row occurs among others, int64[rows]."""
    return (torch.cdist(rows, among) <= allowed).sum(1)


def _ones(angle: float, count: int) -> complex:
    """Return the sum that is kept of a row of ones."""
    return sum(cmath.exp(1j * angle * k) for k in range(count))


def _has_rows_of_one(tensor: torch.Tensor) -> bool:
    return tensor.dim() < 2 or not tensor.is_floating_point()


def can_be_block(tensor: torch.Tensor) -> bool:
    """Return True if a tensor can be searched, or searched for, and its sums are not too many."""
    rows = tensor.numel() if _has_rows_of_one(tensor) else math.prod(tensor.shape[:-1])
    return (
        tensor.layout is torch.strided
        and not (tensor.is_complex() or tensor.dtype is torch.bool)
        and 1 <= tensor.dim() <= _MOST_DIMENSIONS
        and 1 < tensor.numel() <= _MOST_ELEMENTS
        and rows <= _MOST_ROWS
        and not tensor.is_quantized
    )


def _projections(sums: torch.Tensor, last: int) -> list[complex]:
    leading = sums.shape[1:]
    places = torch.arange(math.prod(leading), dtype=torch.float64).reshape(leading) * last
    found = []
    for angle, one in zip(_ANGLES, sums, strict=True):
        turned = one * torch.polar(torch.ones_like(places), angle * places)
        found.append(complex(turned.sum()))
    return found
