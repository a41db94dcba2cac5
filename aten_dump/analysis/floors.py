"""Noise floors: how large an error an honest implementation of the same op may have.

Theory of operation
    The best floor is measured at the op itself: both sides' results are compared with a float64 replay from their own
    recorded inputs. That gives the error that each side made *here*, whatever came in; the baseline's own error is
    the floor of the target's. Where an op cannot be replayed, the distance of a control dump (an honest repeat of the
    baseline) is the floor; else a bound that grows with the root of the number of ops a value went through;
    at depth 0 that is the dtype's table value.

    Table: a result is rounded to its dtype once (unit roundoff u, relative L2 about 0.4 u), and sums of K terms
    accumulate about u32 sqrt(K), as half precisions are accumulated in float32. `Limits.of` has both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

import torch

from ..dump import Call, Value
from ..errors import AtenDumpError
from .execution import UNREPLAYABLE, result_slots, run_call
from .metrics import Metrics, measure

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
_TIMES: Final = 5.0  # an honest error may be so many times the other side's
_ROUNDINGS: Final = 1.5  # of the result's dtype
_ELEMENT_ROUNDINGS: Final = 2.5
_ACCUMULATED: Final = 4.0
_MOST_ROOTS: Final = 256.0
REPLAY_BYTES: Final = 256 << 20


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


@dataclass(frozen=True, slots=True)
class OwnError:
    """What a replay in float64 says about one output of both sides."""

    target: Metrics
    baseline: Metrics
    limits: Limits
    baseline_limits: Limits  # what the baseline may be off: the target's own error is its floor

    @property
    def ratio(self) -> float:
        """The target's own error over the floor."""
        return self.limits.ratio(self.target)

    @property
    def baseline_ratio(self) -> float:
        """The baseline's own error over what its dtype explains: it is the baseline that may be wrong."""
        return self.baseline_limits.ratio(self.baseline)


def summed_terms(call: Call) -> float:
    """Return about how many terms an element of a call's result sums: inputs over outputs."""
    sizes = sorted((value.numel for _, value in call.input_values()), reverse=True)
    outputs = max((value.numel for _, value in [*call.output_values(), *call.written_values()]), default=1)
    if not sizes:
        return 1.0
    most = sizes[0] / max(outputs, 1)
    if len(sizes) > 1:
        most = max(most, math.sqrt(sizes[0] / max(outputs, 1) * sizes[1]))
    return max(most, 1.0)


class Replays:
    """Float64 replays of calls, each made when it is needed; `enabled` False makes none."""

    def __init__(self, *, enabled: bool = True) -> None:
        self.enabled = enabled

    def local_errors(self, target: Call, baseline: Call) -> dict[str, OwnError] | str:
        """Return the local error of each output by slot, or why there is none."""
        if not self.enabled:
            return "replay is switched off"
        sides: list[dict[str, Metrics]] = []
        for call in (target, baseline):
            found = self.errors(call)
            if isinstance(found, str):
                return found
            sides.append(found)
        terms = summed_terms(baseline)
        errors = {}
        for slot in sides[0].keys() & sides[1].keys():
            t, b = sides[0][slot], sides[1][slot]
            limits = (
                Limits(other.rel_l2, other.max_scaled).times(_TIMES).above(Limits.of(getattr(torch, one.dtype), terms))
                for one, other in ((t, b), (b, t))
            )
            errors[slot] = OwnError(t, b, *limits)
        return errors

    def errors(self, call: Call) -> dict[str, Metrics] | str:
        """Return the distance of each recorded output from the replayed one, or why there is none."""
        results = {slot: v for slot, v in [*call.output_values(), *call.written_values()] if _real(v)}
        values = [*(v for _, v in call.input_values()), *results.values()]
        if sum(value.numel * 8 for value in {v.id: v for v in values}.values()) > REPLAY_BYTES:
            return "its tensors are too large to replay while comparing; use `aten-dump replay`"
        if not results:
            return "it has no floating-point output"
        try:
            run = run_call(call, cast=True)
        except UNREPLAYABLE as error:
            return str(error)
        made = dict(result_slots(run))
        errors = {}
        for slot, value in results.items():
            tensor = made.get(slot)
            if not isinstance(tensor, torch.Tensor) or tensor.shape != value.shape or value.undefined:
                continue
            try:
                errors[slot] = _distance(value, tensor)
            except AtenDumpError as error:
                return str(error)
        return errors


def _real(value: Value) -> bool:
    dtype = getattr(torch, value.dtype_name, None)
    return isinstance(dtype, torch.dtype) and (dtype.is_floating_point or dtype.is_complex)


def _distance(value: Value, reference: torch.Tensor) -> Metrics:
    """Measure a recorded result against a float64 one, in float64; the dtype named is the recorded one's."""
    import dataclasses

    wide = value.tensor()
    wide = wide.to(torch.complex128 if wide.dtype.is_complex else torch.float64)
    return dataclasses.replace(measure(wide, reference.to(wide.dtype)), dtype=value.dtype_name)
