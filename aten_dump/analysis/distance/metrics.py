"""Numbers that say how far two tensors are apart, computed in chunks and in float64.

Theory of operation
    Tensors of unequal dtypes are both cast to the coarser one first: a bfloat16 copy of a float32 result is right.
    Non-finite elements are compared exactly, by kind and place, and left out of the other numbers. ``max_scaled``
    is the greatest ``|t - b| / (|b| + rms(b))``: a single wrong element shows there that no norm would show, and an
    element near zero does not drown it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from ...dump import Value
from .element_chunks import CHUNK, Order, common_order, elements, pairs
from .ulp import has_ulp, ulp_distance

ULP_EDGES: Final = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)  # upper edges; one more bin is beyond
_TINY: Final = 1e-300

Coordinates = tuple[int, ...]


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

    @property
    def bitwise(self) -> bool:
        return self.exact == 1.0


def coarser(target: torch.dtype, baseline: torch.dtype) -> torch.dtype:
    """Return the dtype of two that tells fewer numbers apart; float64 for an integer against a float."""
    if target == baseline:
        return target
    if target.is_complex or baseline.is_complex:
        return torch.complex128 if torch.float64 in (target, baseline) else torch.complex64
    if target.is_floating_point and baseline.is_floating_point:
        return max(target, baseline, key=lambda dtype: torch.finfo(dtype).eps)
    return torch.float64


def measure(target: Value | Tensor, baseline: Value | Tensor) -> Metrics:
    """Compare two tensors of one shape.

    Args:
        target: the tensor in question; of a `Value`, chunks are read as they are needed.
        baseline: what it is compared with.

    Raises:
        MissingDataError: a value has no bytes.
    """
    dtype = coarser(target.dtype, baseline.dtype)
    order = common_order(target, baseline)
    total = _Totals(dtype, order)
    count = math.prod(order.shape)
    chunks: Iterable[tuple[int, Tensor, Tensor]] = pairs(target, baseline, order)
    if count <= CHUNK:
        chunks = list(chunks)  # read once for both passes
        total.rms = _rms((b for _, _, b in chunks), dtype)
    else:
        total.rms = _rms((b for _, b in elements(baseline, order)), dtype)
    for start, t, b in chunks:
        total.add(start, _cast(t, dtype), _cast(b, dtype))
    return total.metrics(count)


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
        finite = _wide(_cast(chunk, dtype))
        own = float(finite.dot(finite))
        if not math.isfinite(own):
            finite = finite[torch.isfinite(finite)]
            own = float(finite.dot(finite))
        square += own
        count += finite.numel()
    return math.sqrt(square / count) if count else 0.0


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.float64)


class _Totals:
    """Sums over chunks; it has more than fifteen attributes, one for each number that `Metrics` is made of."""

    def __init__(self, dtype: torch.dtype, order: Order) -> None:
        self.dtype = dtype
        self.order = order
        self.per = 2 if dtype.is_complex else 1
        self.rms = 0.0
        self.count = self.finite = self.exact = self.close_1e3 = self.close_5e3 = self.nonfinite = 0
        self.difference = self.dot = self.t_square = self.b_square = 0.0
        self.max_abs = self.max_rel = self.max_scaled = 0.0
        self.max_abs_at = self.max_rel_at = self.nonfinite_at = -1
        self.bad = [0, 0]
        part = {torch.complex64: torch.float32, torch.complex128: torch.float64, torch.complex32: torch.float16}
        self.has_ulp = has_ulp(part.get(dtype, dtype))
        self.ulp = torch.zeros(len(ULP_EDGES) + 1, dtype=torch.int64)

    def add(self, start: int, t: Tensor, b: Tensor) -> None:
        wide_t, wide_b = _wide(t), _wide(b)
        if torch.equal(wide_t, wide_b) and self._add_same(wide_b):
            return
        self.count += t.numel()
        equal = (wide_t == wide_b) | (wide_t.isnan() & wide_b.isnan())
        same = int(equal.sum())
        self.exact += same
        fine_t, fine_b = torch.isfinite(wide_t), torch.isfinite(wide_b)
        fine = fine_t & fine_b
        self._add_nonfinite(start, fine_t, fine_b, equal)
        if not bool(fine.all()):
            wide_t, wide_b = wide_t.where(fine, 0.0), wide_b.where(fine, 0.0)
        count = int(fine.sum())
        self.finite += count
        self.t_square += float(wide_t.dot(wide_t))
        self.b_square += float(wide_b.dot(wide_b))
        if same == t.numel():
            self.dot += float(wide_b.dot(wide_b))
            self.close_1e3 += count
            self.close_5e3 += count
            if self.has_ulp:
                self.ulp[0] += count
            return
        self.dot += float(wide_t.dot(wide_b))
        self._add_errors(start, (wide_t - wide_b).abs_(), wide_b.abs(), fine)
        if self.has_ulp:
            self._add_ulp(ulp_distance(t[fine], b[fine]))

    def _add_same(self, wide: Tensor) -> bool:
        """Add a chunk that both have, in few passes; False, and nothing is added, unless all of it is finite."""
        square, count = float(wide.dot(wide)), wide.numel()
        if not math.isfinite(square):
            return False
        self.count += count
        self.exact += count
        self.finite += count
        self.close_1e3 += count
        self.close_5e3 += count
        self.t_square += square
        self.b_square += square
        self.dot += square
        if self.has_ulp:
            self.ulp[0] += count
        return True

    def _add_nonfinite(self, start: int, fine_t: Tensor, fine_b: Tensor, equal: Tensor) -> None:
        self.bad[0] += int((~fine_t).sum())
        self.bad[1] += int((~fine_b).sum())
        wrong = ~(fine_t & fine_b) & ~equal
        found = int(wrong.sum())
        if found and self.nonfinite_at < 0:
            self.nonfinite_at = start * self.per + int(wrong.nonzero()[0])
        self.nonfinite += found

    def _add_errors(self, start: int, error: Tensor, size: Tensor, fine: Tensor) -> None:
        self.difference += float(error.dot(error))
        relative = torch.where(error > 0, error / size, 0.0)
        self.close_1e3 += int(((relative <= 1e-3) & fine).sum())
        self.close_5e3 += int(((relative <= 5e-3) & fine).sum())
        self.max_scaled = max(self.max_scaled, float((error / (size + self.rms + _TINY)).max()))
        at = int(error.argmax())
        if float(error[at]) > self.max_abs:
            self.max_abs, self.max_abs_at = float(error[at]), start * self.per + at
        at = int(relative.argmax())
        if float(relative[at]) > self.max_rel:
            self.max_rel, self.max_rel_at = float(relative[at]), start * self.per + at

    def _add_ulp(self, steps: Tensor) -> None:
        edges = torch.tensor(ULP_EDGES, dtype=steps.dtype)
        self.ulp += torch.bincount(torch.bucketize(steps, edges), minlength=len(ULP_EDGES) + 1)

    def _at(self, index: int) -> Coordinates | None:
        return None if index < 0 else self.order.coordinates(index // self.per)

    def metrics(self, count: int) -> Metrics:
        """Return the numbers of all chunks added so far."""
        norms = math.sqrt(self.t_square) * math.sqrt(self.b_square)
        difference = math.sqrt(self.difference)
        base = math.sqrt(self.b_square)
        shares = max(self.count, 1)
        return Metrics(
            count=count,
            dtype=str(self.dtype).removeprefix("torch."),
            rel_l2=0.0 if difference == 0 else difference / base if base else math.inf,
            max_abs=self.max_abs,
            max_abs_at=self._at(self.max_abs_at),
            max_rel=self.max_rel,
            max_rel_at=self._at(self.max_rel_at),
            max_scaled=self.max_scaled,
            cosine=min(1.0, max(-1.0, self.dot / norms)) if norms else 1.0 if self.t_square == self.b_square else 0.0,
            rmse=difference / math.sqrt(max(self.finite, 1)),
            exact=1.0 if self.count == 0 else self.exact / shares,
            within_1e3=1.0 if self.finite == 0 else self.close_1e3 / self.finite,
            within_5e3=1.0 if self.finite == 0 else self.close_5e3 / self.finite,
            ulp=tuple(self.ulp.tolist()) if self.has_ulp else (),
            nonfinite=self.nonfinite,
            nonfinite_at=self._at(self.nonfinite_at),
            target_nonfinite=self.bad[0],
            baseline_nonfinite=self.bad[1],
        )
