"""Is the result of one pair of calls right, given what went in?

Theory of operation
    In this order: the user's rules; shapes and bits, which need no floor; random numbers, which must be the same; each
    side's own error against a float64 replay from its own inputs, which proves a result right or wrong whatever the
    noise of what came in. With inputs that differ by noise alone, two right results are the same result. What cannot
    be replayed is estimated (`estimates.py`), and counted as not proven.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import torch

from ...dump import Call, Value
from ...store.op_names import is_workspace
from ..distance.metrics import Metrics
from ..distance.value_distance import Closeness
from ..evidence.findings import Status
from ..evidence.judgement import Compared, Judgement
from ..evidence.noise_floors import limits_of
from ..evidence.states import Inputs
from ..evidence.user_rules import Rule, find_rule
from ..rerun.allowed_ops import registered_op
from ..rerun.op_errors import OwnError, Replays, draws_otherwise
from .estimates import ControlLimits, Estimator

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
