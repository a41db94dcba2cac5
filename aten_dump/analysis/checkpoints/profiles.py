"""What is kept of a tensor while others are read: checksum, moments, and projections of its vectors.

Theory of operation
    A *vector* is what a view of the tensor has along some of its dimensions: the rows and the columns of a matrix, the
    slices of a kernel, the whole tensor. Each is known by its norm and by projections of its direction on fixed random
    vectors. A weight that was transposed, permuted, fused, split or padded along a dimension has the same vectors in
    other places, one that was scaled has them with other norms. So a table of vectors finds all of these, and no two
    tensors are held beside each other before something is known of them.
    Moments forget the order of the elements. They find what was permuted in several dimensions at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
import torch
import xxhash

from .stored_tensors import StoredTensor

Array: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.float64]]"
_PROJECTIONS: Final = 4
_WIDTH: Final = 1024
_CHUNK: Final = 1 << 22  # elements that are taken to float64 at a time
LEAST_LENGTH: Final = 8  # of a vector: shorter ones are alike by chance
_MOST_DIMENSIONS: Final = 5
_MOMENTS: Final = 4.0  # half units of the last place that rounding moves a moment by, at the most
_EXACT: Final = 1e-7  # of moments
ROUNDING: Final = {  # half a unit of the last place, relative
    torch.float64: 2.0**-53, torch.complex64: 2.0**-24, torch.float32: 2.0**-24, torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8, torch.float8_e4m3fn: 2.0**-4, torch.float8_e5m2: 2.0**-3,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class View:
    """A way to cut a tensor into vectors: dimensions that count them, and dimensions that they go along."""

    counts: tuple[int, ...]
    along: tuple[int, ...]

    def cut(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the vectors of a tensor as the rows of a matrix."""
        size = math.prod(tensor.shape[dim] for dim in self.counts)
        return tensor.permute([*self.counts, *self.along]).reshape(size, -1)


@dataclass(frozen=True, slots=True)
class Vectors:
    """The vectors of one view of a tensor."""

    view: View
    length: int
    norms: Array  # f64[count]
    directions: Array  # f64[count, _PROJECTIONS], of vectors of norm 1


@dataclass(slots=True)
class Profile:
    """What is kept of a tensor."""

    stored: StoredTensor
    shape: tuple[int, ...]  # without dimensions of size 1
    whole: Vectors
    vectors: list[Vectors]  # of all other views
    moments: Array  # f64[3]: of the elements in any order, over the norm
    exact_in: torch.dtype  # the coarsest floating dtype that holds every element
    nonfinite: int

    @property
    def name(self) -> str:
        return self.stored.name

    @property
    def norm(self) -> float:
        return float(self.whole.norms[0])

    @property
    def rounding(self) -> float:
        """Half a unit of the last place of the dtype that its elements were rounded to, relative."""
        return ROUNDING.get(self.exact_in, 0.0)

    def norms(self, view: View) -> Array:
        """Return the norms of the vectors of a view; of a view into single elements their sizes."""
        known = next((one.norms for one in (self.whole, *self.vectors) if one.view == view), None)
        if known is not None:
            return known
        found: Array = view.cut(self.read()).to(torch.float64).abs().sum(1).numpy()
        return found

    def read(self) -> torch.Tensor:
        """Read its elements, without dimensions of size 1, in the dtype that is stored."""
        return self.stored.tensor().reshape(self.shape)


def is_alike(one: Profile, other: Profile) -> bool:
    """Return True if two tensors may have the same elements in any order, up to a factor and rounding."""
    allowed = _MOMENTS * (one.rounding + other.rounding) + _EXACT
    return one.nonfinite == other.nonfinite and bool(np.abs(one.moments - other.moments).max() <= allowed)


def views_of(shape: tuple[int, ...]) -> Iterator[View]:
    """Yield the views of a tensor, but the whole: slices along each dimension, lines along each one."""
    dims = tuple(range(len(shape)))
    if not 2 <= len(dims) <= _MOST_DIMENSIONS:
        return
    slices = [View((dim,), tuple(other for other in dims if other != dim)) for dim in dims]
    lines = [View(tuple(other for other in dims if other != dim), (dim,)) for dim in reversed(dims)]
    for view in dict.fromkeys([*slices, *lines]):
        if math.prod(shape[dim] for dim in view.along) >= LEAST_LENGTH:
            yield view


def digest_of(stored: StoredTensor) -> str:
    """Return a checksum of a tensor's bytes, dtype and shape."""
    digest = xxhash.xxh3_128(f"{stored.dtype} {stored.shape}".encode())
    for _, raw in _parts(stored, tuple(size for size in stored.shape if size != 1)):
        digest.update(raw.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def profile(stored: StoredTensor) -> Profile:
    """Read a tensor once and return its profile."""
    shape = tuple(size for size in stored.shape if size != 1)
    views = [View((), tuple(range(len(shape)))), *views_of(shape)]
    sums = [_Sums(view, shape) for view in views]
    powers, nonfinite = np.zeros(4), 0
    exact = dict.fromkeys((torch.bfloat16, torch.float16), stored.dtype.itemsize > 2)
    exact[torch.float32] = stored.dtype.itemsize > 4
    for start, raw in _parts(stored, shape):
        part = torch.view_as_real(raw).sum(-1) if raw.is_complex() else raw
        part = part.to(torch.float64)
        exact = {dtype: still and _is_exact(part, dtype) for dtype, still in exact.items()}
        squares = part * part
        if not math.isfinite(float(squares.sum())):
            finite = torch.isfinite(squares)
            nonfinite += part.numel() - int(finite.sum())
            part, squares = part.where(finite, 0.0), squares.where(finite, 0.0)
        flat, square = part.view(-1), squares.view(-1)
        powers += [float(flat.sum()), float(flat @ flat), float(flat @ square), float(square @ square)]
        for one in sums:
            one.add(start, part, squares)
    whole, *vectors = (one.vectors() for one in sums)
    norm = math.sqrt(powers[1]) or 1.0
    moments = np.array([powers[0] / norm / math.sqrt(max(stored.numel, 1)), powers[2] / norm**3, powers[3] / norm**4])
    exact_in = next((dtype for dtype, still in exact.items() if still), stored.dtype)
    return Profile(
        stored, shape, whole, vectors, moments,
        exact_in if stored.dtype in ROUNDING and stored.dtype.itemsize > exact_in.itemsize else stored.dtype, nonfinite,
    )  # fmt: skip


def _parts(stored: StoredTensor, shape: tuple[int, ...]) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield stretches of a tensor along its first dimension that is larger than 1, each with where it begins."""
    rows = stored.shape[0] if stored.shape else 1
    if stored.numel == 0:
        return
    if rows == 1:
        yield 0, stored.tensor().reshape(shape).contiguous()
        return
    most = max(1, _CHUNK * rows // stored.numel)
    for start, stop in pairwise([*range(0, rows, most), rows]):
        yield start, stored.read(start, stop).reshape(stop - start, *shape[1:]).contiguous()


def _is_exact(part: torch.Tensor, dtype: torch.dtype) -> bool:
    return bool(((part.to(dtype).to(torch.float64) == part) | part.isnan()).all())


class _Sums:
    """The norms and projections of one view, as far as the tensor was read."""

    def __init__(self, view: View, shape: tuple[int, ...]) -> None:
        self._view = view
        self._splits = not view.counts or view.counts[0] != 0  # the first dimension goes along the vectors
        self._count = math.prod(shape[dim] for dim in view.counts)
        self._length = math.prod(shape[dim] for dim in view.along)
        self._squares = np.zeros(self._count)
        self._projections = np.zeros((self._count, _PROJECTIONS))
        within = self._length if self._splits else self._count
        self._step = within // shape[0] if shape and shape[0] else 1

    def add(self, start: int, part: torch.Tensor, squares: torch.Tensor) -> None:
        """Add a stretch of the tensor, and its squares."""
        cut = self._view.cut(part).numpy()
        begin = start * self._step
        if self._splits:
            to, first = slice(None), begin
        else:
            to, first = slice(begin, begin + len(cut)), 0
        self._squares[to] += self._view.cut(squares).sum(1).numpy()
        self._projections[to] += _project(cut, first)

    def vectors(self) -> Vectors:
        norms = np.sqrt(self._squares)
        safe = np.where(norms > 0, norms, 1.0)
        return Vectors(self._view, self._length, norms, self._projections / safe[:, None])


@lru_cache(maxsize=1)
def _short() -> Array:
    found: Array = np.random.default_rng(29).standard_normal((_WIDTH, _PROJECTIONS))
    return found


@lru_cache(maxsize=8)
def _slow(size: int) -> Array:
    """Return the factor of each stretch of `_WIDTH` elements: near 1, so that all projections have as many digits."""
    made = np.random.default_rng(31).uniform(0.5, 1.5, (size, _PROJECTIONS, 2))
    found: Array = made[..., 0] * np.where(made[..., 1] > 1, 1.0, -1.0)
    found[0] = 1.0
    return found


def _project(cut: Array, first: int) -> Array:
    """Return the projections of stretches of vectors, f64[count, _PROJECTIONS], each from element `first` on."""
    count, length = cut.shape
    if count > 1 or length < 4 * _WIDTH:
        return cut @ _directions(first, first + length)
    head = -first % _WIDTH
    whole = (length - head) // _WIDTH
    rows = (cut[0, head : head + whole * _WIDTH].reshape(whole, _WIDTH) @ _short()) * _slow_rows(first + head, whole)
    tail = head + whole * _WIDTH
    ends = cut[:, :head] @ _directions(first, first + head) + cut[:, tail:] @ _directions(first + tail, first + length)
    found: Array = ends + rows.sum(0)
    return found


def _slow_rows(first: int, count: int) -> Array:
    row = first // _WIDTH
    return _slow(1 << max(4, (row + count).bit_length()))[row : row + count]


@lru_cache(maxsize=8)
def _directions(start: int, stop: int) -> Array:
    """Return elements of the random vectors, f64[stop - start, _PROJECTIONS]; a longer one begins as a shorter one."""
    places = np.arange(start, stop)
    rows = 1 << max(4, (stop // _WIDTH).bit_length())
    found: Array = _short()[places % _WIDTH] * _slow(rows)[places // _WIDTH]
    return found
