"""Noise floors: how large an error an honest implementation of the same op may have.

Theory of operation
    The best floor is measured at the op itself (`rerun/op_errors.py`). Where an op cannot be replayed, the distance of
    a control dump (an honest repeat of the baseline) is the floor; else a bound that grows with the root of the
    number of ops a value went through; at depth 0 that is the dtype's table value.

    Table: a result is rounded to its dtype once (unit roundoff u, relative L2 about 0.4 u), and sums of K terms
    accumulate about u32 sqrt(K), as half precisions are accumulated in float32. `Limits.of` has both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

import torch

from ...dump import Call, Value
from ..distance.metrics import Metrics, coarser
from ..distance.value_distance import Closeness
from ..rerun.rounding_error import terms_of

FloorFrom = Literal["replay", "control", "depth", "dtype", "exact", "semantics", "rule"]

FLOOR_TEXTS: Final[dict[FloorFrom, str]] = {
    "replay": "a float64 replay of the op",
    "control": "the control dump",
    "depth": "a bound that grows with depth",
    "dtype": "the dtype's rounding",
    "exact": "exact equality",
    "semantics": "both sides' ops run in float64 on the same inputs",
    "rule": "a rule of the user's",
}
_ROUNDINGS: Final = 1.5  # of the result's dtype
_ELEMENT_ROUNDINGS: Final = 2.5
_ACCUMULATED: Final = 4.0
_MOST_ROOTS: Final = 256.0
GROWTH: Final = 2.0  # of the bound, times the root of the depth
AMPLIFIES: Final = 8.0  # an honest op may turn an error of its inputs into one so many times larger


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest honest relative L2 error, and the largest honest error of one element over |b| + rms(b)."""

    rel_l2: float
    element: float

    def ratio(self, metrics: Metrics) -> float:
        """Return how many times the limits an error is."""
        return max(_over(metrics.rel_l2, self.rel_l2), _over(metrics.max_scaled, self.element))

    def times(self, factor: float) -> Limits:
        return Limits(self.rel_l2 * factor, self.element * factor)

    def above(self, other: Limits) -> Limits:
        return Limits(max(self.rel_l2, other.rel_l2), max(self.element, other.element))

    @classmethod
    def of(cls, dtype: torch.dtype, terms: float = 1.0) -> Limits:
        """Return the limits of one op whose result has a dtype; `terms` are summed for each element."""
        if not (dtype.is_floating_point or dtype.is_complex):
            return cls(0.0, 0.0)
        u = torch.finfo(dtype).eps / 2
        accumulation = min(torch.finfo(torch.float32).eps / 2, u)
        summed = _ACCUMULATED * accumulation * min(math.sqrt(max(terms, 1.0)), _MOST_ROOTS)
        return cls(_ROUNDINGS * u + summed, _ELEMENT_ROUNDINGS * u + 2 * summed)


def _over(error: float, floor: float) -> float:
    if error == 0:
        return 0.0
    return error / floor if floor else math.inf


def summed_terms(call: Call, result: Value | None = None) -> float:
    """Return about how many terms an element of a call's result sums; by default of the largest result."""
    largest = max((value.numel for _, value in call.result_values()), default=1)
    outputs = largest if result is None else result.numel
    return terms_of(call.op, [value.numel for _, value in call.input_values()], max(outputs, 1))


def distance(target: Value, baseline: Value, close: Closeness, depth: int, error: float = 0.0) -> tuple[float, float]:
    """Return the limit for two values after some ops, and their distance as a multiple of it.

    Args:
        target: the target's value.
        baseline: its counterpart.
        close: how close they are.
        depth: ops that they went through.
        error: of their inputs; an honest op may make it larger.
    """
    if close.shape is not None or close.nonfinite:
        return 0.0, math.inf
    limit = max(limits_of(target, baseline).rel_l2 * GROWTH * math.sqrt(1 + depth), AMPLIFIES * error)
    if not (target.is_floating and baseline.is_floating):
        limit = 0.0
    found = close.error or 0.0
    return limit, found / limit if limit else math.inf if found else 0.0


def limits_of(target: Value, baseline: Value) -> Limits:
    """Return the table's limits for a pair; those of an integer allow nothing."""
    if not (target.is_floating and baseline.is_floating):
        return Limits(0.0, 0.0)
    return Limits.of(coarser(target.dtype, baseline.dtype))
