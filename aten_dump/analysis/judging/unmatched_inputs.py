"""Inputs that no matched call made: sources, regions of calls without a counterpart, and inputs from elsewhere.

Theory of operation
    Three cases. Both values came from outside the step: any difference began there (`source`). Calls without a
    counterpart made at least one: their cones are run in float64 from the same values, which leaves only a difference
    of meaning, and each of their ops is held against its own replay (`region`). Both were made by matched calls, but
    not by each other's counterparts: the program is wired otherwise (`rewired`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import torch

from ...dump import Call, RankDump, Value
from ..distance.metrics import Metrics
from ..distance.value_distance import Closeness
from ..rerun.op_errors import Replays
from ..rerun.rounding_error import SUSPECT
from .argument_differences import argument_differences
from .evidence import FindingKind, Status
from .noise_floors import Limits
from .pair_judge import Inputs, Judge, Judgement
from .upstream_calls import SAME_MEANING, Cone, Makers, cone_of, from_common_start, meaning
from .value_pairs import States, inputs_of

_SHOWN: Final = 0.2  # a difference of meaning must show in what was recorded at least to this share

Meanings = dict[tuple[object, ...], "tuple[Metrics | str, Limits]"]
Said = tuple[FindingKind, Judgement, str]


class Boundary:
    """Judges pairs of inputs without a state."""

    def __init__(
        self,
        target: RankDump,
        baseline: RankDump,
        kind: str,
        states: States,
        replays: Replays,
        *,
        exact_sources: bool,
        inherited: bool = False,
        meanings: Meanings | None = None,
    ) -> None:
        self._meanings = {} if meanings is None else meanings
        self.matched: tuple[set[int], set[int]] = (set(), set())  # ids of calls with a counterpart
        self._makers = Makers(target, kind), Makers(baseline, kind)
        self.walks_ops = kind == "aten"
        self._steps = target.step, baseline.step
        self._states = states
        self._replays = replays
        self._exact_sources = exact_sources
        self._inherited = inherited  # the step before is compared too: what differs then is its affair

    def judge(self, t: Value, b: Value, close: Closeness, cones: tuple[Cone, Cone]) -> Said:
        """Return what is to be said of two values of which at least one no matched call made."""
        if cones[0].calls or cones[1].calls:
            return self.region(cones, close, b)
        if self._makers[0].call(t) is None and self._makers[1].call(b) is None:
            return self._source(t, b, close)
        return self._rewired(t, b, close)

    def cones(self, t: Value, b: Value) -> tuple[Cone, Cone]:
        """Return the calls without a counterpart behind each of two values."""
        return (
            cone_of(t, self._makers[0], lambda v: v.id in self._states.partners, lambda c: c.id in self.matched[0]),
            cone_of(
                b, self._makers[1], lambda v: v.id in self._states.known_baseline, lambda c: c.id in self.matched[1]
            ),
        )

    def inside_region(self, t: Value, b: Value) -> bool:
        """Tell whether calls without a counterpart made one of two values."""
        return any(
            call is not None and call.id not in ids for call, ids in zip(self.made(t, b), self.matched, strict=True)
        )

    def made(self, t: Value, b: Value) -> tuple[Call | None, Call | None]:
        """Return who made each of two values."""
        return self._makers[0].call(t), self._makers[1].call(b)

    def is_source(self, t: Value, b: Value) -> bool:
        """Tell whether both values came from outside the step."""
        return self.made(t, b) == (None, None)

    def unrelated(self, cones: tuple[Cone, Cone]) -> bool:
        """Tell whether two cones start from values with counterparts, none of which is the other's."""
        starts = {self._states.partners[value.id].id for value in cones[0].cut if value.id in self._states.partners}
        others = {value.id for value in cones[1].cut if value.id in self._states.known_baseline}
        return bool(starts and others) and not starts & others

    def cut_inputs(self, cones: tuple[Cone, Cone]) -> Inputs:
        """Return what is known of the values that two cones start from."""
        states = []
        for value in cones[0].cut:
            partner = self._states.partners.get(value.id)
            state = None if partner is None else self._states.find(value, partner)
            if state is not None:
                states.append(state)
        return inputs_of(states, True, True)

    def _source(self, t: Value, b: Value, close: Closeness) -> Said:
        text = "it came from outside the step (a parameter, a buffer, data) and differs already"
        if close.dtype is not None:
            self._states.precisions.add(close.dtype)
        if close.shape is not None:
            return "source", Judgement("different", True, floor_from="exact"), text
        if not close.known:
            return "source", Judgement("unknown", note=close.reason), text
        if close.bitwise:
            return "source", Judgement("same", floor_from="exact"), text
        if self._inherited and not close.nonfinite:
            return "source", Judgement("within", floor_from="depth", note="inherited from the step before"), text
        if self._exact_sources and not (close.level == "statistic" and not close.error):
            return "source", Judgement("different", True, 0.0, "exact", math.inf), text
        limits = limits_of(t, b).times(8.0 * math.sqrt(1 + max(self._steps)))
        ratio = (close.error or 0.0) / limits.rel_l2 if limits.rel_l2 else math.inf if close.error else 0.0
        wrong = ratio > 1 or close.nonfinite
        return "source", Judgement("different" if wrong else "within", wrong, limits.rel_l2, "depth", ratio), text

    def region(self, cones: tuple[Cone, Cone], close: Closeness, b: Value) -> Said:
        """Judge values that unmatched calls made, by what both sides' calls mean."""
        names = [_names(cone.calls) for cone in cones]
        text = f"{names[0]} in the target stand against {names[1]} in the baseline"
        inputs = self.cut_inputs(cones)
        if close.shape is not None:
            return "region", Judgement("different", inputs.agree, floor_from="exact"), text
        if not close.known:
            return "region", Judgement("unknown", note=close.reason), text
        if close.bitwise:
            return "region", Judgement("same", floor_from="exact"), text
        meant, limits = self._meaning(cones) if close.level == "tensor" else ("no tensors were recorded", SAME_MEANING)
        if isinstance(meant, str):
            return self._bounded_region(cones, close, b, inputs, text, meant)
        ratio = limits.ratio(meant)
        if ratio > 1 and not _explains(meant, close):
            why = "run again in float64 they differ more than what was recorded"
            return self._bounded_region(cones, close, b, inputs, text, why)
        if ratio > 1 or meant.nonfinite:
            text += f"; in float64 from the same values they differ by {meant.rel_l2:.3g} (relative L2)"
            return "region", Judgement("different", True, limits.rel_l2, "semantics", max(ratio, 2.0)), text
        wrong = self.wrong_in(cones)
        if wrong is not None:
            return "region", Judgement("different", True, None, "replay", 2.0), f"{text}; {wrong[2]}"
        status: Status = "within" if inputs.agree else Judge.carried(close, inputs, b)
        return "region", Judgement(status, False, limits.rel_l2, "semantics", ratio), text

    def _meaning(self, cones: tuple[Cone, Cone]) -> tuple[Metrics | str, Limits]:
        """Return how far both cones' meanings are apart, and how far they may be."""
        partners = self._states.partners
        widened, limits = from_common_start(cones, self._makers, partners, self._states.known_baseline)
        key = tuple((c.value.id, tuple(call.id for call in c.calls), tuple(v.id for v in c.cut)) for c in widened)
        if key not in self._meanings:
            found = meaning(*widened, partners)
            if isinstance(found, str) and widened != cones:
                found, limits = meaning(*cones, partners), SAME_MEANING
            self._meanings[key] = found, limits
        return self._meanings[key]

    def wrong_in(self, cones: tuple[Cone, Cone]) -> tuple[Call, int, str] | None:
        """Return the first call that is off by more than rounding, by a float64 replay, its side, and what is wrong."""
        for side, cone in enumerate(cones):
            for call in cone.calls:
                errors = self._replays.errors(call) if self._replays.enabled else ""
                for slot, error in errors.items() if isinstance(errors, dict) else ():
                    if error.ratio > SUSPECT:
                        text = f"{call.name}.{slot} is off by {error.error:.3g} (relative L2) from a float64 replay"
                        return call, side, text
        return None

    def _bounded_region(
        self, cones: tuple[Cone, Cone], close: Closeness, b: Value, inputs: Inputs, text: str, why: str
    ) -> Said:
        if close.level == "hash" or not b.is_floating:
            wrong = inputs.worst == "same"
            return "region", Judgement("different", wrong, 0.0, "exact", math.inf, note=why), text
        calls = len(cones[0].calls) + len(cones[1].calls)
        local = limits_of(b, b).times(2.0 * math.sqrt(calls + inputs.depth))
        limit = max(local.rel_l2, 8.0 * inputs.error)
        ratio = (close.error or 0.0) / limit if limit else math.inf
        wrong = ratio > 1 or close.nonfinite
        status: Status = "different" if wrong else "within"
        return "region", Judgement(status, wrong and inputs.agree, limit, "depth", ratio, note=why), text

    def _rewired(self, t: Value, b: Value, close: Closeness) -> Said:
        made = [maker.call(value) for maker, value in zip(self._makers, (t, b), strict=True)]
        names = [call.name if call else "outside the step" for call in made]
        text = f"it reads what {names[0]} made, in the baseline what {names[1]} made"
        if not close.known and close.shape is None:
            return "rewired", Judgement("unknown", note=close.reason), text
        if close.bitwise:
            return "rewired", Judgement("same", floor_from="exact"), text
        partner = self._states.partners.get(t.id)
        before = None if partner is None else self._states.find(t, partner)
        limits = limits_of(t, b).times(2.0 * math.sqrt(1 + (before.depth if before else self._states.depth)))
        limit = max(limits.rel_l2, 8.0 * (before.error if before else 0.0))
        ratio = math.inf if close.shape or not limit else (close.error or 0.0) / limit
        wrong = ratio > 1 or close.nonfinite
        guilty = wrong and (before is None or before.status != "different")
        return "rewired", Judgement("different" if wrong else "within", guilty, limit, "depth", ratio), text


def _explains(meant: Metrics, close: Closeness) -> bool:
    """Tell whether what was recorded shows a difference of meaning; if not, the values at the cut do not correspond."""
    found = close.metrics
    if found is None:
        return True
    return found.rel_l2 >= _SHOWN * meant.rel_l2 and found.max_scaled >= _SHOWN * meant.max_scaled


def odd_one(cones: tuple[Cone, Cone]) -> tuple[Call, int]:
    """Return a call whose op the other cone lacks, or else whose arguments differ, and the side that it is on."""
    for side in (0, 1):
        there = {call.op for call in cones[1 - side].calls}
        odd = [call for call in cones[side].calls if call.op not in there]
        odd = [call for call in odd if not looks(call)] or odd
        if odd:
            return odd[-1], side
    for call, other in zip(cones[0].calls, cones[1].calls, strict=False):
        if call.op == other.op and argument_differences(call, other):
            return call, 0
    side = 0 if cones[0].calls else 1
    return cones[side].calls[-1], side


def looks(call: Call) -> bool:
    """Tell whether a call only looks at an input in another way."""
    given = {(value.storage, value.version) for _, value in call.input_values() if value.storage}
    return not call.mutated and all((value.storage, value.version) in given for _, value in call.output_values())


def _names(calls: Sequence[Call]) -> str:
    if not calls:
        return "no ops"
    shown = ", ".join(call.name for call in calls[:6])
    return shown if len(calls) <= 6 else f"{shown} and {len(calls) - 6} more"


def limits_of(target: Value, baseline: Value) -> Limits:
    """Return the table's limits for a pair; those of an integer allow nothing."""
    if not (target.is_floating and baseline.is_floating):
        return Limits(0.0, 0.0)
    return Limits.of(max(target.dtype, baseline.dtype, key=lambda dtype: torch.finfo(dtype).eps))
