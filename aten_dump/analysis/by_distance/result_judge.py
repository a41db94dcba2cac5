"""Is the result of one pair of calls right, given what went in?

Theory of operation
    In this order: the user's rules; shapes and bits, which need no floor; random numbers, which must be the same; each
    side's own error against a float64 replay from its own inputs, which proves a result right or wrong whatever the
    noise of what came in. With inputs that differ by noise alone, two right results are the same result. What cannot
    be replayed is estimated (`result_judge.py`), and counted as not proven.

    The distance of a control dump is the best floor; else, with equal inputs, the dtype's table; else a bound that
    grows with the root of the number of ops that a value went through. An estimate lets honest noise through and large
    errors show; small errors hide in it. So what was estimated is counted and named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import torch

from ...dump import Call, Value
from ...store.op_names import is_workspace
from ..distance.cancelled_sums import is_sum, times_cancelled
from ..distance.metrics import Metrics, coarser
from ..distance.value_distance import Closeness
from ..evidence.findings import Status
from ..evidence.judgement import Compared, Inputs, Judgement
from ..evidence.noise_floors import AMPLIFIES, GROWTH, FloorFrom, Limits, limits_of, summed_terms
from ..evidence.user_rules import Rule, find_rule
from ..flow.computed_dtype import dtype_text
from ..rerun.allowed_ops import registered_op
from ..rerun.op_errors import OwnError, Replays, draws_otherwise

_FLIPPED: Final = 0.1  # share of elements of an integer or bool result that noise in the inputs may change
_CONTROL_TIMES: Final = 4.0
_QUOTIENTS: Final = ("div", "reciprocal", "rsqrt", "log", "pow")  # in names of ops; m / sqrt(v) of noise is 1 or -1

ControlLimits = Callable[[Call, str], "Limits | None"]

OTHER_DRAWS: Final = "it draws random numbers, and the generators were not in one state"


class ResultJudge:
    """Judges results of pairs of calls."""

    def __init__(self, rules: Sequence[Rule], replays: Replays, control: ControlLimits | None) -> None:
        self.replays = replays
        self._rules = rules
        self._estimator = Estimator(control)

    def rule(self, call: Call, slot: str, found: Closeness) -> Judgement | None:
        """Return what the user's rules say; None where none is about it."""
        rule = find_rule(self._rules, f"{call.name}.{slot}", call.op)
        if rule is None:
            return None
        if rule.met(_no_error(found) if found.bitwise else found.metrics):
            status: Status = "same" if found.bitwise else "within"
            note = f"let through by rule {rule}"
            return Judgement(status, floor_from="rule", note=note, reason=str(rule))
        return Judgement("different", True, floor_from="rule", note=f"rule {rule} is not met", reason=str(rule))

    def results(
        self, target: Call, baseline: Call, found: Mapping[str, Compared], inputs: Inputs
    ) -> dict[str, Judgement]:
        """Judge all results of a pair of calls; `found` has them by slot."""
        judged: dict[str, Judgement] = {}
        left = {}
        for slot, compared in found.items():
            said = self.rule(target, slot, compared[2]) or self._without_floor(target, slot, compared[2], inputs)
            if said is None:
                left[slot] = compared
            else:
                judged[slot] = said
        if left and is_random(target) and self._drew_others(target, baseline, found):
            said = Judgement("different", inputs.agree, floor_from="exact", note=OTHER_DRAWS)
            return judged | dict.fromkeys(left, said)
        judged |= self._replayed_or_estimated(target, baseline, left, inputs)
        return {slot: judged[slot] for slot in found}

    def _replayed_or_estimated(
        self, target: Call, baseline: Call, left: Mapping[str, Compared], inputs: Inputs
    ) -> dict[str, Judgement]:
        if not left:
            return {}
        has_bytes = any(close.level == "tensor" for _, _, close in left.values())
        own = self.replays.local_errors(target, baseline) if has_bytes else "no bytes were recorded"
        judged = {}
        for slot, compared in left.items():
            error = own.get(slot) if isinstance(own, dict) else None
            if error is not None and compared[2].level == "tensor":
                judged[slot] = self._replayed(error, compared, inputs)
                continue
            said = self._estimator.result(baseline, slot, compared, inputs)
            judged[slot] = replace(said, note=said.note or (f"no replay: {own}" if isinstance(own, str) else ""))
        return judged

    @staticmethod
    def _without_floor(call: Call, slot: str, close: Closeness, inputs: Inputs) -> Judgement | None:
        """Judge what needs no floor: workspaces, shapes, bits, memory that nobody wrote."""
        if is_workspace(call.op, slot):
            return Judgement("same", floor_from="exact", note="a workspace: only what reads it counts")
        if inputs.undefined or close.undefined:
            return Judgement("unknown", note=close.reason or "it reads memory that nothing had written")
        if close.shape is not None:
            return Judgement("different", inputs.agree and inputs.same_shapes, floor_from="exact")
        if not close.known:
            return Judgement("unknown", note=close.reason)
        if close.bitwise:
            return Judgement("same", floor_from="exact")
        if close.level == "hash":
            note = "hashes show equal bits alone"
            return Judgement("different", inputs.worst == "same", floor_from="exact", note=note)
        return None

    @staticmethod
    def _drew_others(target: Call, baseline: Call, found: Mapping[str, Compared]) -> bool:
        """Return True if other random numbers were drawn: they are a source, and must be the same.

        Another processor rounds the logarithm and the cosine that make normal numbers of uniform ones in another way.
        """
        read = target.read_value_ids()
        reads_numbers = any(value.is_floating and value.id in read for _, value in target.input_values())
        drawn = [compared for compared in found.values() if not (compared[0].is_floating and reads_numbers)]
        if not drawn:
            return draws_otherwise(target, baseline)
        return any(not close.bitwise and not _is_rounding(t, b, close) for t, b, close in drawn)

    def _replayed(self, own: OwnError, compared: Compared, inputs: Inputs) -> Judgement:
        ours, theirs = own.ratio, own.baseline_ratio
        ratio = max(ours, theirs)
        if ratio > 1:
            note = "it is the baseline that is off" if theirs > 1 >= ours else ""
            return Judgement("different", True, own.floor, "replay", ratio, own, note, own.reason)
        return Judgement(carried(compared, inputs), False, own.floor, "replay", ratio, own, reason=own.reason)


def carried(compared: Compared, inputs: Inputs) -> Status:
    """Return the status of a right result: that of its inputs, unless their difference does not show in it."""
    if inputs.agree:
        return "within"
    _, baseline, close = compared
    bound = limits_of(baseline, baseline).times(2.0 * math.sqrt(1 + inputs.depth))
    return "within" if (close.error or 0.0) <= bound.rel_l2 and not close.nonfinite else inputs.worst


def _is_rounding(target: Value, baseline: Value, close: Closeness) -> bool:
    """Return True if two results differ by no more than the rounding of their dtype."""
    if close.level == "statistic":
        return not close.error
    return not close.nonfinite and close.error is not None and close.error <= limits_of(target, baseline).rel_l2


def is_random(call: Call) -> bool:
    """Return True if an op may draw random numbers."""
    op = registered_op(call.op)
    return op is not None and torch.Tag.nondeterministic_seeded in op.tags


def _no_error(found: Closeness) -> Metrics:
    """Return the metrics of equal tensors, which were not computed."""
    return found.metrics or Metrics(
        0, "", 0.0, 0.0, None, 0.0, None, 0.0, 1.0, 0.0, 1.0, 1.0, 1.0, (), 0, None, 0, 0
    )  # fmt: skip


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
        dtype = coarser(target.dtype, baseline.dtype)
        local = Limits.of(dtype, summed_terms(call))
        if control is not None:
            limits = control.times(_CONTROL_TIMES).above(local)
            reason = f"{_CONTROL_TIMES:g} times its distance from the baseline"
            return replace(_over(_ratio(close, limits), limits, "control", inputs), reason=reason)
        if inputs.worst == "same":
            reason = f"{dtype_text(dtype)}, sums of {summed_terms(call):.0f} terms"
            return replace(_over(_ratio(close, local), local, "dtype", inputs), reason=reason)
        if close.level != "statistic":
            return _grown(call, close, local, inputs)
        times = times_cancelled(call, slot, baseline)
        if is_sum(call, slot):
            local = Limits.of(dtype, summed_terms(call, baseline))
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
