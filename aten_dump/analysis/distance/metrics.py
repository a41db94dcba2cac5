"""Numbers that say how far two tensors are apart, computed in chunks and in float64.

Theory of operation
    Tensors of unequal dtypes are both cast to the coarser one first: a bfloat16 copy of a float32 result is right.
    Non-finite elements are compared exactly, by kind and place, and left out of the other numbers. ``max_scaled``
    is the greatest ``|t - b| / (|b| + rms(b))``: a single wrong element shows there that no norm would show, and an
    element near zero does not drown it.

    The bits of floats of one sign, read as integers, are in order of size. With those of negative floats turned about
    the order holds across zero, where both zeros are one place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...dump import Value
from ...torch_names import DTYPES_WITHOUT_NUMBERS
from .element_chunks import CHUNK, Order, common_order, elements, pairs, same_elements

Steps = NDArray[Any]

_INTEGERS: Final = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}
_EXACT: Final = 2**53

_PIECE: Final = 1 << 13  # elements; numpy gives a product of more to several threads

ULP_EDGES: Final = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)  # upper edges; one more bin is beyond
_BINS: Final = (0, *(edge + 1 for edge in ULP_EDGES))  # where they begin
_TINY: Final = 1e-300

Coordinates = tuple[int, ...]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Metrics:
    """Distance of a target tensor from a baseline tensor of the same shape."""

    count: int
    dtype: str  # both were cast to it
    rel_l2: float  # |t - b| / |b|, in the 2-norm
    max_abs: float
    max_abs_at: Coordinates | None
    max_rel: float
    max_rel_at: Coordinates | None
    max_scaled: float
    cosine: float
    rmse: float
    exact: float  # share of elements equal bit by bit, NaN with NaN
    within_1e3: float  # share of elements with a relative error up to 0.001
    within_5e3: float
    ulp: tuple[int, ...]  # counts by ULP_EDGES; empty for integers and float8
    nonfinite: int  # elements that are NaN, +Inf or -Inf on one side and not the same on the other
    nonfinite_at: Coordinates | None
    target_nonfinite: int
    baseline_nonfinite: int
    nonfinite_values: tuple[float, float] | None = None  # what stands there, on both sides

    @property
    def bitwise(self) -> bool:
        return self.exact == 1.0


def coarser(target: torch.dtype, baseline: torch.dtype) -> torch.dtype:
    """Return the dtype of two that has fewer numbers; float64 for an integer against a float."""
    if target == baseline:
        return target
    if target.is_complex or baseline.is_complex:
        return torch.complex128 if torch.float64 in (target, baseline) else torch.complex64
    if target.is_floating_point and baseline.is_floating_point:
        return max(target, baseline, key=lambda dtype: torch.finfo(dtype).eps)
    return torch.float64


class Measured:
    """What was measured of two recordings, so that views of one memory are measured once."""

    def __init__(self) -> None:
        self._totals: dict[tuple[object, ...], _Totals] = {}

    def measure(self, target: Value, baseline: Value) -> Metrics:
        """Compare two values of one shape; see `measure`."""
        order = common_order(target, baseline)
        key = same_elements(target, baseline)
        total = None if key is None else self._totals.get(key)
        if total is None:
            total = _add_up(target, baseline, order)
            if key is not None:
                self._totals[key] = total
        return total.metrics(order)


def measure(target: Value | Tensor, baseline: Value | Tensor) -> Metrics:
    """Compare two tensors of one shape.

    Args:
        target: the tensor in question; of a `Value`, chunks are read as they are needed.
        baseline: what it is compared with.

    Raises:
        MissingDataError: a value has no bytes.
    """
    order = common_order(target, baseline)
    return _add_up(target, baseline, order).metrics(order)


def _add_up(target: Value | Tensor, baseline: Value | Tensor, order: Order) -> _Totals:
    dtype = coarser(target.dtype, baseline.dtype)
    if dtype in DTYPES_WITHOUT_NUMBERS:
        dtype = torch.int64  # of the bytes that they are
    total = _Totals(dtype)
    if math.prod(order.shape) > CHUNK:
        total.rms = _rms((b for _, b in elements(baseline, order)), dtype)
    for start, t, b in pairs(target, baseline, order):
        total.add(start, _cast(t, dtype), _cast(b, dtype))
    return total


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if tensor.dtype != dtype:
        tensor = tensor.to(dtype)
    if dtype.is_complex:
        tensor = torch.view_as_real(tensor).reshape(-1)
    return tensor


def _rms(chunks: Iterable[Tensor], dtype: torch.dtype) -> float:
    """Return the root mean square of the finite elements."""
    square, count = 0.0, 0
    for chunk in chunks:
        own, finite = _square(_wide(_cast(chunk, dtype)))
        square += own
        count += finite
    return math.sqrt(square / count) if count else 0.0


def _square(wide: Floats) -> tuple[float, int]:
    """Return the sum of squares of the finite elements, and how many there are."""
    found = sum_of_products(wide, wide)
    if not math.isfinite(found):
        wide = wide[np.isfinite(wide)]
        found = sum_of_products(wide, wide)
    return found, wide.size


def _wide(tensor: Tensor) -> Floats:
    found: Floats = tensor.to(torch.float64).numpy()
    return found


class _Totals:
    """Sums over chunks; it has more than fifteen attributes, one for each number that `Metrics` is made of."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.per = 2 if dtype.is_complex else 1
        self.rms: float | None = None  # of the baseline; None where there is one chunk, which shows it
        self.count = self.finite = self.exact = self.close_1e3 = self.close_5e3 = self.nonfinite = 0
        self.difference = self.dot = self.t_square = self.b_square = 0.0
        self.max_abs = self.max_rel = self.max_scaled = 0.0
        self.max_abs_at = self.max_rel_at = self.nonfinite_at = -1
        self.nonfinite_values: tuple[float, float] | None = None
        self.bad = [0, 0]
        part = {torch.complex64: torch.float32, torch.complex128: torch.float64, torch.complex32: torch.float16}
        self.has_ulp = has_ulp(part.get(dtype, dtype))
        self.ulp = np.zeros(len(ULP_EDGES) + 1, np.int64)

    def add(self, start: int, t: Tensor, b: Tensor) -> None:
        wide_t, wide_b = _wide(t), _wide(b)
        if self.rms is None:
            square, count = _square(wide_b)
            self.rms = math.sqrt(square / count) if count else 0.0
        self.count += wide_t.size
        equal = (wide_t == wide_b) | (np.isnan(wide_t) & np.isnan(wide_b))
        same = int(np.count_nonzero(equal))
        self.exact += same
        fine_t, fine_b = np.isfinite(wide_t), np.isfinite(wide_b)
        fine = fine_t & fine_b
        count = int(np.count_nonzero(fine))
        self.finite += count
        if count < wide_t.size:
            self._add_nonfinite(start, (wide_t, wide_b), (fine_t, fine_b), equal)
            wide_t, wide_b = np.where(fine, wide_t, 0.0), np.where(fine, wide_b, 0.0)
            chosen = torch.from_numpy(fine)
            t, b = t[chosen], b[chosen]
        self.t_square += sum_of_products(wide_t, wide_t)
        self.b_square += sum_of_products(wide_b, wide_b)
        self.dot += sum_of_products(wide_t, wide_b)
        if same == wide_t.size:
            self._add_same(count)
            return
        self._add_errors(start, np.abs(wide_t - wide_b), np.abs(wide_b), wide_t.size - count)
        if self.has_ulp:
            self._add_ulp(ulp_steps(t, b))

    def _add_same(self, count: int) -> None:
        """Add so many finite elements that are equal."""
        self.close_1e3 += count
        self.close_5e3 += count
        if self.has_ulp:
            self.ulp[0] += count

    def _add_nonfinite(self, start: int, wide: tuple[Floats, Floats], fine: tuple[Flags, Flags], equal: Flags) -> None:
        self.bad[0] += int(np.count_nonzero(~fine[0]))
        self.bad[1] += int(np.count_nonzero(~fine[1]))
        wrong = ~(fine[0] & fine[1]) & ~equal
        found = int(np.count_nonzero(wrong))
        if found and self.nonfinite_at < 0:
            at = int(wrong.argmax())
            self.nonfinite_at = start * self.per + at
            self.nonfinite_values = float(wide[0][at]), float(wide[1][at])
        self.nonfinite += found

    def _add_errors(self, start: int, error: Floats, size: Floats, left_out: int) -> None:
        """Add the errors of a chunk; so many elements of it are not finite, and count as 0."""
        self.difference += sum_of_products(error, error)
        with np.errstate(all="ignore"):
            relative = np.divide(error, size, out=np.zeros_like(error), where=error > 0)
        self.close_1e3 += int(np.count_nonzero(relative <= 1e-3)) - left_out
        self.close_5e3 += int(np.count_nonzero(relative <= 5e-3)) - left_out
        self.max_scaled = max(self.max_scaled, float((error / (size + ((self.rms or 0.0) + _TINY))).max()))
        at = int(error.argmax())
        if error[at] > self.max_abs:
            self.max_abs, self.max_abs_at = float(error[at]), start * self.per + at
        at = int(relative.argmax())
        if relative[at] > self.max_rel:
            self.max_rel, self.max_rel_at = float(relative[at]), start * self.per + at

    def _add_ulp(self, steps: Steps) -> None:
        capped = np.minimum(steps, ULP_EDGES[-1] + 1).astype(np.int64, copy=False)
        counts = np.bincount(capped, minlength=ULP_EDGES[-1] + 2)
        self.ulp += np.add.reduceat(counts, _BINS)

    def metrics(self, order: Order) -> Metrics:
        """Return the numbers of all chunks added; `order` is that in which the elements came."""

        def at(index: int) -> Coordinates | None:
            return None if index < 0 else order.coordinates(index // self.per)

        norms = math.sqrt(self.t_square) * math.sqrt(self.b_square)
        difference = math.sqrt(self.difference)
        base = math.sqrt(self.b_square)
        shares = max(self.count, 1)
        return Metrics(
            count=math.prod(order.shape),
            dtype=str(self.dtype).removeprefix("torch."),
            rel_l2=0.0 if difference == 0 else difference / base if base else math.inf,
            max_abs=self.max_abs,
            max_abs_at=at(self.max_abs_at),
            max_rel=self.max_rel,
            max_rel_at=at(self.max_rel_at),
            max_scaled=self.max_scaled,
            cosine=min(1.0, max(-1.0, self.dot / norms)) if norms else 1.0 if self.t_square == self.b_square else 0.0,
            rmse=difference / math.sqrt(max(self.finite, 1)),
            exact=1.0 if self.count == 0 else self.exact / shares,
            within_1e3=1.0 if self.finite == 0 else self.close_1e3 / self.finite,
            within_5e3=1.0 if self.finite == 0 else self.close_5e3 / self.finite,
            ulp=tuple(self.ulp.tolist()) if self.has_ulp else (),
            nonfinite=self.nonfinite,
            nonfinite_at=at(self.nonfinite_at),
            target_nonfinite=self.bad[0],
            baseline_nonfinite=self.bad[1],
            nonfinite_values=self.nonfinite_values,
        )


def sum_of_products(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Return the sum of the products of two arrays' elements.

    numpy's threads would spin while torch's work, and the other way round: each waits for the other's processor.

    Args:
        one: any number of elements, in one dimension.
        other: as many.
    """
    if one.size <= _PIECE:
        return float(one.dot(other))
    starts = range(0, one.size, _PIECE)
    return sum(float(one[at : at + _PIECE].dot(other[at : at + _PIECE])) for at in starts)


def has_ulp(dtype: torch.dtype) -> bool:
    """Return True if distances are known in a dtype: not in integers, complex numbers and float8."""
    return dtype in _INTEGERS


def ulp_distance(one: Tensor, two: Tensor) -> Tensor:
    """Return the steps from each element to that of another tensor of its dtype; of NaN they mean nothing.

    Returns:
        int64; for float64 tensors, whose distances may leave int64, float64 that is exact below 2**53.
    """
    return torch.from_numpy(ulp_steps(one, two))


def ulp_steps(one: Tensor, two: Tensor) -> Steps:
    """Return the same as an array."""
    bits = _INTEGERS[one.dtype]
    least = torch.iinfo(bits).min
    places = [side.view(bits).numpy().astype(np.int64) for side in (one, two)]
    places = [np.where(place < 0, least - place, place) for place in places]
    steps: Steps = np.abs(places[0] - places[1])
    if bits != torch.int64:
        return steps
    rounded = np.abs(places[0].astype(np.float64) - places[1].astype(np.float64))
    found: Steps = np.where(rounded < _EXACT, steps.astype(np.float64), rounded)
    return found
