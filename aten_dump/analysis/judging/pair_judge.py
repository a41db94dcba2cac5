"""Is the result of one pair of calls right, given what went in? Floors and rules, in their order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from ...dump import Call, Value
from ..distance.metrics import Metrics
from ..distance.value_distance import Closeness
from ..rerun.op_errors import OwnError, Replays
from .evidence import Status
from .noise_floors import FloorFrom, Limits, summed_terms
from .user_rules import Rule, find_rule

_GROWTH: Final = 2.0  # of the bound, times the root of the depth
_AMPLIFIES: Final = 8.0  # an honest op may turn an error of its inputs into one so many times larger
_FLIPPED: Final = 0.1  # share of elements of an integer or bool result that noise in the inputs may change
_CONTROL_TIMES: Final = 4.0
_QUOTIENTS: Final = ("div", "reciprocal", "rsqrt", "log", "pow")  # in names of ops; m / sqrt(v) of noise is 1 or -1

ControlLimits = Callable[[Call, str], "Limits | None"]


@dataclass(frozen=True, slots=True)
class Inputs:
    """What is known of the inputs of a pair."""

    worst: Status  # same, within or different
    error: float  # greatest relative L2 among them
    depth: int
    same_shapes: bool
    same_dtypes: bool
    noise: float = 0.0  # greatest root mean square of a difference among them

    @property
    def agree(self) -> bool:
        return self.worst != "different"


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is to be said of one output."""

    status: Status
    guilty: bool = False  # wrong here, whatever came in
    floor: float | None = None
    floor_from: FloorFrom | str = ""
    ratio: float | None = None
    own: OwnError | None = None
    note: str = ""


class Judge:
    """Judges outputs; floors are taken in order: replay, control, a bound that grows with depth, the dtype's table."""

    def __init__(self, rules: Sequence[Rule], replays: Replays, control: ControlLimits | None) -> None:
        self._rules = rules
        self._replays = replays
        self._control = control

    def rule(self, name: str, found: Closeness) -> Judgement | None:
        """Return what the user's rules say; None where none is about it."""
        rule = find_rule(self._rules, name)
        if rule is None:
            return None
        metrics = _no_error(found) if found.bitwise else found.metrics
        if rule.met(metrics):
            status: Status = "same" if found.bitwise else "within"
            return Judgement(status, floor_from="rule", note=f"let through by rule {rule}")
        return Judgement("different", True, floor_from="rule", note=f"rule {rule} is not met")

    def outputs(
        self, target: Call, baseline: Call, found: dict[str, tuple[Value, Value, Closeness]], inputs: Inputs
    ) -> dict[str, Judgement]:
        """Judge all results of a pair of calls; `found` has them by slot."""
        own: dict[str, OwnError] | str | None = None
        judged = {}
        for slot, (t, b, close) in found.items():
            said = self.rule(f"{target.name}.{slot}", close) or self._exact(close, inputs)
            if said is None and close.level == "tensor":
                own = self._replays.local_errors(target, baseline) if own is None else own
                said = self._replayed(own.get(slot), close, inputs, b) if isinstance(own, dict) else None
            if said is None:
                said = self._unreplayed(baseline, slot, t, b, close, inputs)
                if isinstance(own, str) and said.status == "different":
                    said = _with_note(said, f"no replay: {own}")
            judged[slot] = said
        return judged

    @staticmethod
    def _exact(close: Closeness, inputs: Inputs) -> Judgement | None:
        """Judge what needs no floor: shapes, bits, masks of NaN and Inf."""
        if close.shape is not None:
            return Judgement("different", inputs.agree and inputs.same_shapes, floor_from="exact")
        if not close.known:
            return Judgement("unknown", note=close.reason)
        if close.bitwise:
            return Judgement("same", floor_from="exact")
        if close.nonfinite:
            return Judgement("different", inputs.agree, floor_from="exact")
        if close.level == "hash":
            note = "hashes only tell equal bits"
            return Judgement("different", inputs.worst == "same", floor_from="exact", note=note)
        return None

    def _replayed(self, own: OwnError | None, close: Closeness, inputs: Inputs, baseline: Value) -> Judgement | None:
        if own is None:
            return None
        theirs = own.baseline_ratio
        ratio = max(own.ratio, theirs)
        note = "it is the baseline that is off" if theirs > 1 >= own.ratio else ""
        if ratio > 1:
            return Judgement("different", True, own.floor, "replay", ratio, own, note)
        status: Status = "within" if inputs.agree else self.carried(close, inputs, baseline)
        return Judgement(status, False, own.floor, "replay", ratio, own)

    @staticmethod
    def carried(close: Closeness, inputs: Inputs, baseline: Value) -> Status:
        """Tell whether a result still differs that right ops made from inputs that differ."""
        bound = Limits.of(baseline.dtype).times(_GROWTH * math.sqrt(1 + inputs.depth))
        return "within" if (close.error or 0.0) <= bound.rel_l2 else "different"

    def _unreplayed(
        self, call: Call, slot: str, target: Value, baseline: Value, close: Closeness, inputs: Inputs
    ) -> Judgement:
        """Judge by the control dump, else by the bound."""
        if not baseline.is_floating or not target.is_floating:
            return self._discrete(close, inputs)
        control = self._control(call, slot) if self._control is not None else None
        dtype = max(target.dtype, baseline.dtype, key=lambda d: torch.finfo(d).eps)
        local = Limits.of(dtype, summed_terms(call))
        if control is not None:
            limits = control.times(_CONTROL_TIMES).above(local)
            return self._over(_ratio(close, limits), limits, "control", inputs)
        if inputs.worst == "same":
            return self._over(_ratio(close, local), local, "dtype", inputs)
        bound = local.times(_GROWTH * math.sqrt(1 + inputs.depth))
        carried = _AMPLIFIES * inputs.error + local.rel_l2
        limits = bound.above(Limits(carried, math.inf))
        # Sums that cancel (the gradient of a bias before a norm) are as large as the noise of what they sum.
        noise = _AMPLIFIES * inputs.noise * math.sqrt(summed_terms(call))
        if close.metrics is not None and close.metrics.rmse <= noise:
            return Judgement("within", floor=limits.rel_l2, floor_from="depth", note="as large as noise that is summed")
        ratio = (close.error or 0.0) / limits.rel_l2
        if ratio > 1 and inputs.agree and _is_quotient(call):
            note = "a quotient of noise has no bound: only a replay can tell"
            return Judgement("within", False, limits.rel_l2, "depth", ratio, note=note)
        return self._over(ratio, limits, "depth", inputs)

    @staticmethod
    def _over(ratio: float, limits: Limits, source: FloorFrom, inputs: Inputs) -> Judgement:
        different = ratio > 1
        return Judgement(
            "different" if different else "within", different and inputs.agree, limits.rel_l2, source, ratio
        )

    @staticmethod
    def _discrete(close: Closeness, inputs: Inputs) -> Judgement:
        """Judge indices, masks and counts: exactly, but that noise in the inputs may turn a few."""
        share = 1.0 - close.metrics.exact if close.metrics is not None else 0.0
        if close.level == "statistic" and not close.error:
            return Judgement("within", floor_from="exact", note=close.reason)
        if inputs.worst == "within" and share <= _FLIPPED:
            return Judgement("within", floor_from="depth", note="noise in the inputs turned some elements")
        return Judgement("different", inputs.agree, 0.0, "exact", math.inf)


def _ratio(close: Closeness, limits: Limits) -> float:
    if close.metrics is not None:
        return limits.ratio(close.metrics)
    return (close.error or 0.0) / limits.rel_l2 if limits.rel_l2 else math.inf if close.error else 0.0


def _is_quotient(call: Call) -> bool:
    return any(name in call.op for name in _QUOTIENTS)


def _with_note(said: Judgement, note: str) -> Judgement:
    return Judgement(said.status, said.guilty, said.floor, said.floor_from, said.ratio, said.own, said.note or note)


def _no_error(found: Closeness) -> Metrics:
    """Return the metrics of equal tensors, which were not computed."""
    return found.metrics or Metrics(
        0, "", 0.0, 0.0, None, 0.0, None, 0.0, 1.0, 0.0, 1.0, 1.0, 1.0, (), 0, None, 0, 0
    )  # fmt: skip
