"""Walk two aligned recordings in execution order and find where they part.

Theory of operation
    Every pair of values that a matched call reads or makes has a state: same, within noise, different. A result takes
    its state from `Judge`, an input from the call that made it. An input pair without a state either came from outside
    (then nothing here explains a difference: a source), or was made by calls without a counterpart (then `cones`
    judges the calls behind both). An op is a finding when its inputs agree and a result does not, or when a
    replay shows that its own error is too large whatever came in. Only one kind of call is walked: aten ops where
    both sides have them. Calls of the other kinds get rows from the states that were found.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import torch

from ..dump import Call, RankDump, Value
from .align import How
from .arguments import ArgumentDifference, argument_differences
from .closeness import Closeness, closeness
from .cones import SAME_MEANING, Cone, Makers, cone_of, meaning
from .evidence import Finding, FindingKind, Place, Row, Status
from .floors import FloorFrom, Limits, Replays, summed_terms
from .judge import ControlLimits, Inputs, Judge, Judgement
from .metrics import Metrics
from .rules import Rule

_SHOWN: Final = 0.2  # a difference of meaning must show in what was recorded at least to this share
_BY_SEQUENCE: Final = ("sequence", "order", "shapeless")
_NOTHING_IN_COMMON: Final = 0.5  # cosine
_MOST_DISSOLVED: Final = 4  # pairs in a row that may be given up
_WORSE: Final = {"same": 0, "unknown": 0, "within": 1, "different": 2}


@dataclass(frozen=True, slots=True)
class State:
    """What is known of a pair of values."""

    status: Status
    error: float
    depth: int


@dataclass(frozen=True, slots=True)
class Pair:
    """A call of the target and its counterpart."""

    target: Call
    baseline: Call
    how: How


@dataclass(slots=True)
class Walk:
    """Walks the pairs of one step and rank; `rows` and `findings` have what it found."""

    target: RankDump
    baseline: RankDump
    rules: Sequence[Rule] = ()
    replays: Replays = field(default_factory=Replays)
    control: ControlLimits | None = None
    read_data: bool = True
    exact_sources: bool = True
    rows: list[Row] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    region_status: dict[tuple[str, int], Status] = field(default_factory=dict)  # by side and id of unmatched calls
    dissolved: list[Pair] = field(default_factory=list)  # pairs that turned out to be none
    _states: dict[tuple[int, int], State] = field(default_factory=dict)
    _moments: dict[tuple[int, int, int, int], State] = field(default_factory=dict)
    _close: dict[tuple[int, int], Closeness] = field(default_factory=dict)
    _partners: dict[int, Value] = field(default_factory=dict)  # baseline's value by target's id
    _known_baseline: set[int] = field(default_factory=set)
    _matched: tuple[set[int], set[int]] = field(default_factory=lambda: (set(), set()))
    _precisions: set[tuple[str, str]] = field(default_factory=set)  # dtypes in which sources differ
    _places: dict[tuple[bool, int], Place] = field(default_factory=dict)
    _suspicions: dict[int, Finding] = field(default_factory=dict)  # by id of a dissolved target call
    _cleared: set[int] = field(default_factory=set)
    _depth: int = 0

    def run(self, primary: Sequence[Pair], others: Sequence[Pair]) -> None:
        """Walk pairs of the kind that is judged, in execution order, then describe those of the other kinds."""
        self._judge = Judge(self.rules, self.replays, self.control)
        kind = primary[0].target.kind if primary else ""
        self._makers = Makers(self.target, kind), Makers(self.baseline, kind)
        self._matched = {pair.target.id for pair in primary}, {pair.baseline.id for pair in primary}
        for pair in primary:
            self._pair(pair)
        self.findings += [finding for ids, finding in self._suspicions.items() if ids not in self._cleared]
        for pair in others:
            self._describe(pair)

    _judge: Judge = field(init=False)
    _makers: tuple[Makers, Makers] = field(init=False)

    # -- one pair -----------------------------------------------------------------------------------------------

    def _pair(self, pair: Pair) -> None:
        if self._is_mispaired(pair):
            for side, call in enumerate((pair.target, pair.baseline)):
                self._matched[side].discard(call.id)
            self.dissolved.append(pair)
            return
        inputs = self._inputs(pair)
        found = {}
        slots = dict([*pair.baseline.output_values(), *pair.baseline.written_values()])
        for slot, value in [*pair.target.output_values(), *pair.target.written_values()]:
            if slot in slots:
                found[slot] = (value, slots[slot], self.close(value, slots[slot]))
        if _looks(pair.target) and inputs.agree and inputs.same_shapes:
            judged = self._viewed(found, inputs)
        else:
            judged = self._judge.outputs(pair.target, pair.baseline, found, inputs)
        differences = argument_differences(pair.target, pair.baseline)
        for slot, (t, b, close) in found.items():
            said = self._with_arguments(judged[slot], close, inputs, differences)
            self._set(t, b, State(said.status, close.error or 0.0, inputs.depth + 1))
            row = self._row(pair, slot, close, said, inputs)
            self.rows.append(row)
            self._blame(pair, row, said, inputs, differences)

    def _is_mispaired(self, pair: Pair) -> bool:
        """Tell whether the inputs of a pair show that the two calls are not each other's counterpart.

        They are not if calls without a counterpart gave them inputs of different shapes, or if what the inputs
        were made of has nothing in common.
        """
        if pair.how == "mapping":
            return False
        slots = dict(pair.baseline.input_values())
        for slot, value in pair.target.input_values():
            other = slots.get(slot)
            if other is None or self._state(value, other) is not None or value.undefined or other.undefined:
                continue
            cones = self._cones(value, other)
            if value.shape != other.shape and (cones[0].calls or cones[1].calls):
                return True
            if self.close(value, other).bitwise:
                continue
            if self._unrelated(cones) or self._is_suspicious(pair, slot, value, other, cones):
                return True
        return False

    def _is_suspicious(self, pair: Pair, slot: str, t: Value, b: Value, cones: tuple[Cone, Cone]) -> bool:
        """Tell whether a pair found by sequence alone gets inputs that have nothing in common.

        Then it more likely is no pair. What was seen is kept: it counts if what the two calls lead to does not agree.
        """
        close = self.close(t, b)
        if pair.how not in _BY_SEQUENCE or close.metrics is None or close.metrics.cosine > _NOTHING_IN_COMMON:
            return False
        if not (cones[0].calls or cones[1].calls):
            return False
        kind, said, text = self._region(cones, close, b)
        before = sum(call.id in self._suspicions for call in cones[0].calls)
        if not said.guilty or before >= _MOST_DISSOLVED:
            return False
        row = self._row(pair, slot, close, said, None)
        self._suspicions[pair.target.id] = self._boundary_finding(kind, row, text, cones, pair)
        return True

    def _unrelated(self, cones: tuple[Cone, Cone]) -> bool:
        """Tell whether two cones start from values with counterparts, none of which is the other's."""
        starts = {self._partners[value.id].id for value in cones[0].cut if value.id in self._partners}
        others = {value.id for value in cones[1].cut if value.id in self._known_baseline}
        return bool(starts and others) and not starts & others

    def _cones(self, t: Value, b: Value) -> tuple[Cone, Cone]:
        return (
            cone_of(t, self._makers[0], lambda v: v.id in self._partners, lambda c: c.id in self._matched[0]),
            cone_of(b, self._makers[1], lambda v: v.id in self._known_baseline, lambda c: c.id in self._matched[1]),
        )

    def _inputs(self, pair: Pair) -> Inputs:
        slots = dict(pair.baseline.input_values())
        states, shapes, dtypes = [], True, True
        for slot, value in pair.target.input_values():
            other = slots.get(slot)
            if other is None or value.undefined or other.undefined:
                continue
            close = self.close(value, other)
            shapes = shapes and close.shape is None
            dtypes = dtypes and close.dtype is None
            states.append(self._input(pair, slot, value, other, close))
        return _inputs_of(states, shapes, dtypes)

    def _input(self, pair: Pair, slot: str, value: Value, other: Value, close: Closeness) -> State:
        state = self._state(value, other)
        if state is not None:
            self.rows.append(self._plain_row(pair, slot, close, state.status))
            return state
        row, state = self._boundary(pair, slot, value, other, close)
        self._set(value, other, state)
        self.rows.append(row)
        return state

    @staticmethod
    def _viewed(found: dict[str, tuple[Value, Value, Closeness]], inputs: Inputs) -> dict[str, Judgement]:
        judged = {}
        for slot, (_, _, close) in found.items():
            if close.shape is not None:
                judged[slot] = Judgement("different", True, floor_from="exact")
            else:
                judged[slot] = Judgement("same" if close.bitwise else inputs.worst, floor_from="exact")
        return judged

    def _with_arguments(
        self, said: Judgement, close: Closeness, inputs: Inputs, differences: list[ArgumentDifference]
    ) -> Judgement:
        """Hold other arguments, or another dtype, against a result that is not bitwise equal."""
        if said.floor_from == "rule" or not inputs.agree or not inputs.same_shapes:
            return said
        wrong_dtype = close.dtype is not None and inputs.same_dtypes and close.dtype not in self._precisions
        if wrong_dtype or (not close.bitwise and close.known and self._real(differences)):
            return Judgement("different", True, said.floor, said.floor_from, said.ratio, said.own, said.note)
        return said

    def _real(self, differences: Iterable[ArgumentDifference]) -> list[ArgumentDifference]:
        """Return the differences that other precisions do not explain."""
        return [d for d in differences if not (d.of_dtype and self._precisions)]

    def _blame(
        self, pair: Pair, row: Row, said: Judgement, inputs: Inputs, differences: list[ArgumentDifference]
    ) -> None:
        if not said.guilty:
            return
        close = row.closeness
        assert close is not None
        real = self._real(differences) if inputs.same_shapes else []
        kind: FindingKind = "op"
        if real:
            kind, text = "argument", f"it was called with other arguments: {'; '.join(map(str, real))}"
        elif close.shape is not None:
            kind, text = "shape", f"its result has shape {list(close.shape[0])}, in the baseline {list(close.shape[1])}"
        elif close.nonfinite:
            kind, text = "nonfinite", "NaN or Inf stand at other places of its result"
        elif close.dtype is not None and said.ratio is None:
            kind, text = "dtype", f"its result is {close.dtype[0]}, in the baseline {close.dtype[1]}"
        elif _is_random(pair.target):
            kind, text = "random", "it draws random numbers, and the generators were not in one state"
        else:
            text = "its result is wrong for its inputs" if said.own else "its result does not agree"
        if said.note:
            text = f"{text} ({said.note})"
        self.findings.append(Finding(kind, row, text, _said_of(inputs), (pair.target.id, 1)))

    # -- inputs that no matched call made ------------------------------------------------------------------------

    def _boundary(self, pair: Pair, slot: str, t: Value, b: Value, close: Closeness) -> tuple[Row, State]:
        """Judge a pair of values of which at least one was made outside, or by calls without a counterpart."""
        cones = self._cones(t, b)
        by_rule = self._judge.rule(f"{pair.target.name}.{slot}", close) if self.rules else None
        kind: FindingKind
        if by_rule is not None:
            said = by_rule
            kind, text = ("source" if not (cones[0].calls or cones[1].calls) else "region"), said.note
        elif cones[0].calls or cones[1].calls:
            kind, said, text = self._region(cones, close, b)
        elif self._makers[0].call(t) is None and self._makers[1].call(b) is None:
            kind, said, text = self._source(t, b, close)
        else:
            kind, said, text = self._rewired(t, b, close)
        for side, cone in zip(("target", "baseline"), cones, strict=True):
            for call in cone.calls:
                known = self.region_status.get((side, call.id), "same")
                self.region_status[side, call.id] = max(known, said.status, key=lambda s: _WORSE[s])
        if said.status in ("same", "within"):
            self._cleared.update(call.id for call in cones[0].calls)
        row = self._row(pair, slot, close, said, None)
        if said.guilty:
            self.findings.append(self._boundary_finding(kind, row, text, cones, pair))
        return row, State(said.status, close.error or 0.0, self._cut_inputs(cones).depth + 1)

    def _boundary_finding(
        self, kind: FindingKind, row: Row, text: str, cones: tuple[Cone, Cone], pair: Pair
    ) -> Finding:
        """Return a finding, placed at the call without a counterpart that most likely is the reason."""
        calls = tuple(call.name for cone in cones for call in cone.calls)
        if not calls:
            return Finding(kind, row, text, "", (pair.target.id, 0))
        guilty, side = _odd_one(cones)
        text += f"; seen at {row.slot} of {pair.target.name}"
        there = place_of(guilty)
        row = replace(row, target=there if side == 0 else None, baseline=there if side else None, slot="output")
        first = cones[0].calls[0].id if cones[0].calls else pair.target.id
        known = _said_of(self._cut_inputs(cones))
        return Finding(kind, row, text, known, (min(first, pair.target.id), 0), calls)

    def _source(self, t: Value, b: Value, close: Closeness) -> tuple[FindingKind, Judgement, str]:
        text = "it came from outside the step (a parameter, a buffer, data) and differs already"
        if close.dtype is not None:
            self._precisions.add(close.dtype)
        if close.shape is not None:
            return "source", Judgement("different", True, floor_from="exact"), text
        if not close.known:
            return "source", Judgement("unknown", note=close.reason), text
        if close.bitwise:
            return "source", Judgement("same", floor_from="exact"), text
        if self.exact_sources and not (close.level == "statistic" and not close.error):
            return "source", Judgement("different", True, 0.0, "exact", math.inf), text
        limits = _limits(t, b).times(8.0 * math.sqrt(1 + max(self.target.step, self.baseline.step)))
        ratio = (close.error or 0.0) / limits.rel_l2 if limits.rel_l2 else math.inf if close.error else 0.0
        wrong = ratio > 1 or close.nonfinite
        return "source", Judgement("different" if wrong else "within", wrong, limits.rel_l2, "depth", ratio), text

    def _cut_inputs(self, cones: tuple[Cone, Cone]) -> Inputs:
        """Return what is known of the values that two cones start from."""
        states = []
        for value in cones[0].cut:
            partner = self._partners.get(value.id)
            state = None if partner is None else self._state(value, partner)
            if state is not None:
                states.append(state)
        return _inputs_of(states, True, True)

    def _region(self, cones: tuple[Cone, Cone], close: Closeness, b: Value) -> tuple[FindingKind, Judgement, str]:
        names = [_names(cone.calls) for cone in cones]
        text = f"{names[0]} in the target stand against {names[1]} in the baseline"
        inputs = self._cut_inputs(cones)
        if close.shape is not None:
            return "region", Judgement("different", inputs.agree, floor_from="exact"), text
        if not close.known:
            return "region", Judgement("unknown", note=close.reason), text
        if close.bitwise:
            return "region", Judgement("same", floor_from="exact"), text
        meant = meaning(*cones, self._partners) if close.level == "tensor" else "no tensors were recorded"
        if isinstance(meant, str):
            return self._bounded_region(cones, close, b, inputs, text, meant)
        ratio = SAME_MEANING.ratio(meant)
        if ratio > 1 and not _explains(meant, close):
            why = "run again in float64 they differ more than what was recorded"
            return self._bounded_region(cones, close, b, inputs, text, why)
        if ratio > 1 or meant.nonfinite:
            text += f"; in float64 from the same values they differ by {meant.rel_l2:.3g} (relative L2)"
            return "region", Judgement("different", True, SAME_MEANING.rel_l2, "semantics", max(ratio, 2.0)), text
        wrong = self._wrong_in(cones[0]) or self._wrong_in(cones[1])
        if wrong:
            return "region", Judgement("different", True, None, "replay", 2.0), f"{text}; {wrong}"
        status: Status = "within" if inputs.agree else Judge._carried(close, inputs, b)
        return "region", Judgement(status, False, SAME_MEANING.rel_l2, "semantics", ratio), text

    def _wrong_in(self, cone: Cone) -> str:
        """Return which call of a cone is off by more than rounding, by a float64 replay; empty for none."""
        for call in cone.calls:
            errors = self.replays.errors(call) if self.replays.enabled else ""
            for slot, error in errors.items() if isinstance(errors, dict) else ():
                limits = Limits.of(getattr(torch, error.dtype), summed_terms(call)).times(3.0)
                if limits.ratio(error) > 1:
                    return f"{call.name}.{slot} is off by {error.rel_l2:.3g} (relative L2) from a float64 replay"
        return ""

    def _bounded_region(
        self, cones: tuple[Cone, Cone], close: Closeness, b: Value, inputs: Inputs, text: str, why: str
    ) -> tuple[FindingKind, Judgement, str]:
        if close.level == "hash" or not _is_real(b):
            wrong = inputs.worst == "same"
            return "region", Judgement("different", wrong, 0.0, "exact", math.inf, note=why), text
        calls = len(cones[0].calls) + len(cones[1].calls)
        local = _limits(b, b).times(2.0 * math.sqrt(calls + inputs.depth))
        limit = max(local.rel_l2, 8.0 * inputs.error)
        ratio = (close.error or 0.0) / limit if limit else math.inf
        wrong = ratio > 1 or close.nonfinite
        status: Status = "different" if wrong else "within"
        return "region", Judgement(status, wrong and inputs.agree, limit, "depth", ratio, note=why), text

    def _rewired(self, t: Value, b: Value, close: Closeness) -> tuple[FindingKind, Judgement, str]:
        made = [maker.call(value) for maker, value in zip(self._makers, (t, b), strict=True)]
        names = [call.name if call else "outside the step" for call in made]
        text = f"it reads what {names[0]} made, in the baseline what {names[1]} made"
        if not close.known and close.shape is None:
            return "rewired", Judgement("unknown", note=close.reason), text
        if close.bitwise:
            return "rewired", Judgement("same", floor_from="exact"), text
        partner = self._partners.get(t.id)
        before = None if partner is None else self._state(t, partner)
        limits = _limits(t, b).times(2.0 * math.sqrt(1 + (before.depth if before else self._depth)))
        limit = max(limits.rel_l2, 8.0 * (before.error if before else 0.0))
        ratio = math.inf if close.shape or not limit else (close.error or 0.0) / limit
        wrong = ratio > 1 or close.nonfinite
        guilty = wrong and (before is None or before.status != "different")
        return "rewired", Judgement("different" if wrong else "within", guilty, limit, "depth", ratio), text

    # -- states and rows ---------------------------------------------------------------------------------------------

    def close(self, target: Value, baseline: Value) -> Closeness:
        """Return the closeness of a pair of values, computed once."""
        key = target.id, baseline.id
        found = self._close.get(key)
        if found is None:
            found = self._close[key] = closeness(target, baseline, data=self.read_data)
        return found

    def _state(self, target: Value, baseline: Value) -> State | None:
        state = self._states.get((target.id, baseline.id))
        if state is None and target.storage and baseline.storage and target.shape == baseline.shape:
            key = (target.storage, target.version, baseline.storage, baseline.version)
            state = self._moments.get(key)
            if state is not None and self.close(target, baseline).bitwise:
                return State("same", 0.0, state.depth)
        return state

    def _set(self, target: Value, baseline: Value, state: State) -> None:
        self._states[target.id, baseline.id] = state
        self._partners[target.id] = baseline
        self._known_baseline.add(baseline.id)
        self._depth = max(self._depth, state.depth)
        if target.storage and baseline.storage:
            key = (target.storage, target.version, baseline.storage, baseline.version)
            known = self._moments.get(key)
            if known is None or _WORSE[state.status] > _WORSE[known.status]:
                self._moments[key] = state

    def _describe(self, pair: Pair) -> None:
        """Add rows of a pair that is not judged: what is known of its values."""
        parts = (
            (pair.target.input_values(), pair.baseline.input_values()),
            (pair.target.output_values(), pair.baseline.output_values()),
            (pair.target.written_values(), pair.baseline.written_values()),
        )
        for values, others in parts:
            slots = dict(others)
            for slot, value in values:
                if slot in slots:
                    close = self.close(value, slots[slot])
                    self.rows.append(self._plain_row(pair, slot, close, self._known_status(value, slots[slot], close)))

    def _known_status(self, t: Value, b: Value, close: Closeness) -> Status:
        state = self._state(t, b)
        if state is not None:
            return state.status
        if close.bitwise:
            return "same"
        if close.shape is not None or close.nonfinite or close.level == "hash":
            return "different"
        if not close.known:
            return "unknown"
        limits = _limits(t, b).times(2.0 * math.sqrt(1 + self._depth))
        return "within" if (close.error or 0.0) <= limits.rel_l2 else "different"

    def _both(self, pair: Pair) -> tuple[Place, Place]:
        return self._place(True, pair.target), self._place(False, pair.baseline)

    def _place(self, is_target: bool, call: Call) -> Place:
        found = self._places.get((is_target, call.id))
        if found is None:
            found = self._places[is_target, call.id] = place_of(call)
        return found

    def _plain_row(self, pair: Pair, slot: str, close: Closeness, status: Status) -> Row:
        return Row(*self._both(pair), pair.how, slot, status, close, note=close.reason)

    def _row(self, pair: Pair, slot: str, close: Closeness, said: Judgement, inputs: Inputs | None) -> Row:
        amplified = None
        if inputs is not None and inputs.error and close.error is not None:
            amplified = close.error / inputs.error
        floor_from: FloorFrom = said.floor_from  # type: ignore[assignment]
        own = said.own.target.rel_l2 if said.own else None
        return Row(
            *self._both(pair), pair.how, slot, said.status, close, said.floor, floor_from,
            said.ratio, own, amplified, said.note or close.reason,
        )  # fmt: skip


def _said_of(inputs: Inputs) -> str:
    texts = {
        "same": "its inputs are bitwise equal",
        "within": f"its inputs agree within noise (relative L2 up to {inputs.error:.2g})",
    }
    return texts.get(inputs.worst, "its inputs differ already, but its own error is too large for them")


def _inputs_of(states: Sequence[State], same_shapes: bool, same_dtypes: bool) -> Inputs:
    worst: Status = "same"
    for state in states:
        if _WORSE[state.status] > _WORSE[worst]:
            worst = state.status
    error = max((state.error for state in states), default=0.0)
    depth = max((state.depth for state in states), default=0)
    return Inputs(worst, error, depth, same_shapes, same_dtypes)


def place_of(call: Call) -> Place:
    """Return a call as evidence names it."""
    source = call.source
    forward = call.forward
    where = f"{source.file}:{source.line} in {source.function}" if source else ""
    rank = call.rank
    return Place(
        rank.step, rank.rank, call.id, call.name, call.op, call.kind, call.phase, call.module, where,
        forward.name if forward else "", "",
    )  # fmt: skip


def _explains(meant: Metrics, close: Closeness) -> bool:
    """Tell whether what was recorded shows a difference of meaning; if not, the values at the cut do not correspond."""
    found = close.metrics
    if found is None:
        return True
    return found.rel_l2 >= _SHOWN * meant.rel_l2 and found.max_scaled >= _SHOWN * meant.max_scaled


def _odd_one(cones: tuple[Cone, Cone]) -> tuple[Call, int]:
    """Return a call whose op the other cone lacks, the target's first, and the side that it is on."""
    for side in (0, 1):
        there = {call.op for call in cones[1 - side].calls}
        odd = [call for call in cones[side].calls if call.op not in there]
        odd = [call for call in odd if not _looks(call)] or odd
        if odd:
            return odd[-1], side
    side = 0 if cones[0].calls else 1
    return cones[side].calls[-1], side


def _looks(call: Call) -> bool:
    """Tell whether a call only looks at an input in another way."""
    given = {(value.storage, value.version) for _, value in call.input_values() if value.storage}
    return not call.mutated and all((value.storage, value.version) in given for _, value in call.output_values())


def _names(calls: Sequence[Call]) -> str:
    if not calls:
        return "no ops"
    shown = ", ".join(call.name for call in calls[:6])
    return shown if len(calls) <= 6 else f"{shown} and {len(calls) - 6} more"


def _is_random(call: Call) -> bool:
    namespace, _, rest = call.op.partition("::")
    name, _, overload = rest.partition(".")
    op = getattr(getattr(getattr(torch.ops, namespace, None), name, None), overload or "default", None)
    return op is not None and torch.Tag.nondeterministic_seeded in op.tags


def _is_real(value: Value) -> bool:
    dtype = getattr(torch, value.dtype_name, None)
    return isinstance(dtype, torch.dtype) and (dtype.is_floating_point or dtype.is_complex)


def _limits(target: Value, baseline: Value) -> Limits:
    """Return the table's limits for a pair; those of an integer allow nothing."""
    if not (_is_real(target) and _is_real(baseline)):
        return Limits(0.0, 0.0)
    return Limits.of(max(target.dtype, baseline.dtype, key=lambda dtype: torch.finfo(dtype).eps))
