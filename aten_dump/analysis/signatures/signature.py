"""A few numbers that stand for the contents of a tensor: how many elements, their norm, two projections.

Theory of operation
    Two tensors of equal norm and equal projections on two fixed random vectors have, but for chance, equal elements.
    Elements count in row-major order, so that views and reshapes of the same elements have the same signature. The
    random vectors are products of two short ones, ``a[l % WIDTH] * b[l // WIDTH]``, so that a large tensor is read once
    and no vector of its length is kept.
    What is the same function in float64 agrees to ten digits and more. `TOLERANCE` is wider, as programs hold constants
    in float32 (an eps, a table, a factor) where others hold them in float64. What cancels to nothing has no digits of
    its own: `noise` says how far rounding alone moves a value, measured by a second evaluation (`evaluation/`).
    A few huge elements (the -1e9 of a mask) would hide all others in a norm, so a tensor that has some is taken
    element by element through asinh, twice: it leaves small numbers as they are and makes logarithms of large ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import torch

from ...dump import Value
from ..distance.element_chunks import ElementReader, Order

TOLERANCE: Final = 2e-6  # relative; of norm and projections
UNDEFINED: Final = -1  # instead of the count of elements that are not finite: nothing ever wrote them
_EXACT: Final = 1e-10  # relative; of norm and projections, of what no constant in float32 has moved
RECORDED: Final = 1e-5  # relative L2 of what was recorded to what float64 makes
VAGUE: Final = 0.3  # of the norm: noise beyond which a value has no digits
_NOTHING: Final = 1e-6  # of an element: noise of sums that cancel is far smaller
_HUGE: Final = 1013.0  # elements from which on asinh is taken
_WIDTH: Final = 1024
_CHUNK: Final = 1 << 18  # elements that are taken to float64 at a time


class Signature(NamedTuple):
    """What is kept of a tensor."""

    numel: int
    norm: float  # L2, of the finite elements
    first: float  # projections of the finite elements
    second: float
    nonfinite: int  # how many elements are NaN or Inf
    noise: float = 0.0  # L2 norm of what rounding may change

    @property
    def has_no_contents(self) -> bool:
        """True if no element is finite: such values cannot be distinguished."""
        return 0 < self.numel == self.nonfinite

    @property
    def is_unknown(self) -> bool:
        """True if rounding moves so much of it, and not only of what cancels to nothing, that no digit is known."""
        return self.noise > max(VAGUE * self.norm, _NOTHING * math.sqrt(self.numel))

    @property
    def contents(self) -> tuple[int, float, float, float, int]:
        """All but the noise: equal for equal bytes, and next to never for others."""
        return self[:5]


@lru_cache(maxsize=64)
def _made_rows(size: int) -> np.ndarray:
    return np.random.default_rng(23).standard_normal((size, 2))


def _rows(count: int) -> np.ndarray:
    """Return the slow factor of both random vectors, f64[count, 2]: of any two counts one begins with the other."""
    return _made_rows(1 << max(0, count - 1).bit_length())[:count]


_COLUMNS: Final = np.random.default_rng(17).standard_normal((2, _WIDTH))


@np.errstate(over="ignore")  # of squares: taken care of below
def sign(tensor: torch.Tensor) -> Signature:
    """Return the signature of a tensor of any dtype and layout on any device."""
    if tensor.numel() > _CHUNK and tensor.layout is torch.strided and tensor.is_contiguous():
        row = tensor.detach().view(-1)
        return _sign_in_chunks(lambda start, stop: row[start:stop], row.numel(), tensor.is_complex())
    flat = _flat(tensor)
    count = flat.size
    if count == 0:
        return Signature(0, 0.0, 0.0, 0.0, 0)
    norm = math.sqrt(float(flat @ flat))
    nonfinite = 0
    if not math.isfinite(norm):
        finite = np.isfinite(flat)
        nonfinite = count - int(finite.sum())
        flat = np.where(finite, flat, 0.0)
        norm = math.sqrt(float(flat @ flat))
    if norm >= _HUGE and float(np.abs(flat).max()) >= _HUGE:
        flat = np.arcsinh(np.arcsinh(flat))
        norm = math.sqrt(float(flat @ flat))
    return Signature(count, norm, *_project(flat), nonfinite)


def sign_value(value: Value) -> Signature:
    """Return the signature of what was recorded of a value; of a large one that lies in a row not all is read at once.

    Raises:
        MissingDataError: nothing was recorded.
    """
    if value.numel > _CHUNK and value.layout_name == "strided" and not value.extra.get("quantized"):
        reader = ElementReader(value, Order(tuple(value.shape), tuple(range(len(value.shape)))))
        return _sign_in_chunks(reader.read, value.numel, value.dtype.is_complex)
    return sign(value.shared_tensor())


@np.errstate(over="ignore")
def _sign_in_chunks(read: Callable[[int, int], torch.Tensor], count: int, is_complex: bool) -> Signature:
    """Return the signature of many elements, of which only a chunk at a time is taken to float64."""
    starts, parted = range(0, count, _CHUNK), 2 if is_complex else 1
    size = count * parted
    squares = nonfinite = most = 0.0
    for start in starts:
        part = _flat(read(start, min(start + _CHUNK, count)))
        finite = np.isfinite(part)
        nonfinite += part.size - int(finite.sum())
        part = part if finite.all() else np.where(finite, part, 0.0)
        squares += float(part @ part)
        most = max(most, float(np.abs(part).max()))
    is_huge = most >= _HUGE
    if is_huge:
        squares = 0.0
    first = second = 0.0
    rows = _rows(-(-size // _WIDTH) + 1)
    for start in starts:
        part = _flat(read(start, min(start + _CHUNK, count)))
        part = np.where(np.isfinite(part), part, 0.0)
        if is_huge:
            part = np.arcsinh(np.arcsinh(part))
            squares += float(part @ part)
        begin = start * parted // _WIDTH
        of_part = _projections(part, rows[begin:])
        first, second = first + of_part[0], second + of_part[1]
    return Signature(size, math.sqrt(squares), first, second, int(nonfinite))


def _flat(tensor: torch.Tensor) -> np.ndarray:
    """Return the elements in row-major order, in float64, complex ones as pairs."""
    tensor = tensor.detach()
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    return tensor.to("cpu", torch.float64).contiguous().view(-1).numpy()


def _project(flat: np.ndarray) -> tuple[float, float]:
    count = flat.size
    if count <= _WIDTH:
        first, second = _COLUMNS[:, :count] @ flat
        return float(first), float(second)
    return _projections(flat, _rows(count // _WIDTH + 1))


def _projections(flat: np.ndarray, rows: np.ndarray) -> tuple[float, float]:
    """Return the projections of some elements; `rows` begins with the factors of their rows."""
    whole = flat.size // _WIDTH * _WIDTH
    square = flat[:whole].reshape(-1, _WIDTH)
    parts = (square @ _COLUMNS.T) * rows[: len(square)]
    first, second = parts.sum(0) + (_COLUMNS[:, : flat.size - whole] @ flat[whole:]) * rows[len(square)]
    return float(first), float(second)


def sum_of_scalars(signatures: Sequence[Signature]) -> Signature:
    """Return the signature of the sum of tensors of one element, by their signatures."""
    return sign(torch.tensor([sum(one.first for one in signatures) / float(_COLUMNS[0, 0])], dtype=torch.float64))


def distance(one: Signature, other: Signature) -> float:
    """Return how far the contents are apart that two signatures stand for, at least."""
    return max(abs(one.norm - other.norm), abs(one.first - other.first), abs(one.second - other.second))


def is_equal(one: Signature, other: Signature) -> bool:
    """Return True if both stand for the same contents, but for rounding in float64 alone."""
    allowed = _EXACT * max(one.norm, other.norm) + max(one.noise, other.noise)
    return one.numel == other.numel and distance(one, other) <= allowed


def is_same(one: Signature, other: Signature) -> bool:
    """Return True if both stand for the same contents, but for rounding in float64 and of constants."""
    if one.numel != other.numel or one.nonfinite != other.nonfinite:
        return False
    allowed = TOLERANCE * max(one.norm, other.norm) + max(one.noise, other.noise)
    return (
        abs(one.norm - other.norm) <= allowed
        and abs(one.first - other.first) <= 5 * allowed  # projections of a difference are normal, of its norm
        and abs(one.second - other.second) <= 5 * allowed
    )
