"""How far apart may two values be that nothing proves the same? For what cannot be run again, has no bytes, or less.

Theory of operation
    The distance of a control dump is the best floor; else, with equal inputs, the dtype's table; else a bound that
    grows with the root of the number of ops that a value went through. An estimate lets honest noise through and large
    errors show; small errors hide in it. So what was estimated is counted and named.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from ...dump import Call
from ..distance.cancelled_sums import is_sum, times_cancelled
from ..distance.value_distance import Closeness
from ..evidence.judgement import Compared, Judgement
from ..evidence.noise_floors import AMPLIFIES, GROWTH, FloorFrom, Limits, coarser_of, summed_terms
from ..evidence.states import Inputs

_FLIPPED: Final = 0.1  # share of elements of an integer or bool result that noise in the inputs may change
_CONTROL_TIMES: Final = 4.0
_QUOTIENTS: Final = ("div", "reciprocal", "rsqrt", "log", "pow")  # in names of ops; m / sqrt(v) of noise is 1 or -1

ControlLimits = Callable[[Call, str], "Limits | None"]


class Estimator:
    """Judges results by their distance."""

    def __init__(self, control: ControlLimits | None) -> None:
        self._control = control

    def result(self, call: Call, slot: str, compared: Compared, inputs: Inputs) -> Judgement:
        """Judge a result by the control dump, else by the bound; `call` is the baseline's."""
        target, baseline, close = compared
        if close.nonfinite:
            return Judgement("different", inputs.agree, floor_from="exact")
        if not (baseline.is_floating and target.is_floating):
            return _discrete(close, inputs)
        control = self._control(call, slot) if self._control is not None else None
        local = Limits.of(coarser_of(target, baseline), summed_terms(call))
        if control is not None:
            limits = control.times(_CONTROL_TIMES).above(local)
            reason = f"{_CONTROL_TIMES:g} times its distance from the baseline"
            return replace(_over(_ratio(close, limits), limits, "control", inputs), reason=reason)
        if inputs.worst == "same":
            reason = (
                f"{str(coarser_of(target, baseline)).removeprefix('torch.')}, sums of {summed_terms(call):.0f} terms"
            )
            return replace(_over(_ratio(close, local), local, "dtype", inputs), reason=reason)
        if close.level != "statistic":
            return _grown(call, close, local, inputs)
        times = times_cancelled(call, slot, baseline)
        if is_sum(call, slot):
            local = Limits.of(coarser_of(target, baseline), summed_terms(call, baseline))
        if inputs.worst == "within" and not inputs.error:
            return _of_equal_statistics(close, local.times(times), inputs)
        return _grown(call, close, local, inputs, times)


def _of_equal_statistics(close: Closeness, local: Limits, inputs: Inputs) -> Judgement:
    """Judge what was made of values whose statistics are all equal: no noise has come in that could have grown.

    Statistics have the ends, which are single elements.
    """
    ratio = (close.error or 0.0) / local.element
    reason = "of one element, as the statistics of its inputs are equal"
    return replace(_over(ratio, replace(local, rel_l2=local.element), "dtype", inputs), reason=reason)


def _grown(call: Call, close: Closeness, local: Limits, inputs: Inputs, times: float = 1.0) -> Judgement:
    """Judge by a bound that grows with depth and with the error of the inputs, `times` as far of a sum that cancels."""
    bound = local.times(GROWTH * math.sqrt(1 + inputs.depth))
    carried = inputs.error * max(AMPLIFIES, 2 + inputs.error)  # a square of pure noise is off by the square
    limits = bound.above(Limits(carried + local.rel_l2, math.inf)).times(times)
    # Sums that cancel (the gradient of a bias before a norm) are as large as the noise of what they sum.
    noise = AMPLIFIES * inputs.noise * math.sqrt(summed_terms(call))
    if close.metrics is not None and close.metrics.rmse <= noise:
        return Judgement("within", floor=limits.rel_l2, floor_from="depth", note="as large as noise that is summed")
    ratio = (close.error or 0.0) / limits.rel_l2
    if ratio > 1 and inputs.agree and any(name in call.op for name in _QUOTIENTS):
        note = "a quotient of noise has no bound: only a replay can decide"
        return Judgement("within", False, limits.rel_l2, "depth", ratio, note=note)
    reason = f"{inputs.depth + 1} ops deep, inputs up to {inputs.error:.2g} apart"
    reason += f", what it adds up is {times:.2g} times as large" if times > 1 else ""
    return replace(_over(ratio, limits, "depth", inputs), reason=reason)


def _over(ratio: float, limits: Limits, source: FloorFrom, inputs: Inputs) -> Judgement:
    wrong = ratio > 1
    return Judgement("different" if wrong else "within", wrong and inputs.agree, limits.rel_l2, source, ratio)


def _discrete(close: Closeness, inputs: Inputs) -> Judgement:
    """Judge indices, masks and counts: exactly, but that noise in the inputs may turn a few."""
    share = 1.0 - close.metrics.exact if close.metrics is not None else 0.0
    if close.level == "statistic" and not close.error:
        return Judgement("within", floor_from="depth", note=close.reason)
    if inputs.worst == "within" and share <= _FLIPPED:
        return Judgement("within", floor_from="depth", note="noise in the inputs turned some elements")
    return Judgement("different", inputs.agree, 0.0, "exact", math.inf)


def _ratio(close: Closeness, limits: Limits) -> float:
    return limits.ratio(close.metrics) if close.metrics is not None else (close.error or 0.0) / limits.rel_l2
