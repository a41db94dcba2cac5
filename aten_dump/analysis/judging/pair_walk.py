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

from ...dump import Call, RankDump, Value
from ...store.op_names import read_op_name
from ..distance.value_distance import Closeness
from ..pairing.alignment import How
from ..rerun.op_errors import Replays
from .argument_differences import ArgumentDifference, argument_differences
from .evidence import Finding, FindingKind, Place, Row, Status
from .final_memory import left_behind
from .noise_floors import FloorFrom
from .pair_judge import ControlLimits, Inputs, Judge, Judgement
from .place_of_call import place_of
from .unmatched_inputs import Boundary, Meanings, limits_of, looks, odd_one
from .upstream_calls import Cone, means_the_same
from .user_rules import Rule
from .value_pairs import WORSE, State, States, inputs_of

_BY_SEQUENCE: Final = ("sequence", "order", "shapeless")
_NOTHING_IN_COMMON: Final = 0.5  # cosine
_MOST_DISSOLVED: Final = 8  # pairs in a row, views apart, that may be given up
_MOST_WALKS: Final = 4


@dataclass(frozen=True, slots=True)
class Pair:
    """A call of the target and its counterpart."""

    target: Call
    baseline: Call
    how: How


@dataclass(slots=True)
class Walk:
    """Walks the pairs of one step and rank; `rows` and `findings` have what it found.

    A pair whose inputs do not mean the same may be no pair: ``(q * s) @ k`` stands against ``(q @ k) * s``. It is given
    up, and its calls belong to the region around it, as if they had no counterpart. If what the region leads
    to means the same, it was none. If not, all is walked again with that pair kept: then the difference begins there.
    """

    target: RankDump
    baseline: RankDump
    rules: Sequence[Rule] = ()
    replays: Replays = field(default_factory=Replays)
    control: ControlLimits | None = None
    read_data: bool = True
    exact_sources: bool = True
    inherited: bool = False
    rows: list[Row] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    region_status: dict[tuple[str, int], Status] = field(default_factory=dict)  # by side and id of unmatched calls
    dissolved: list[Pair] = field(default_factory=list)  # pairs that turned out to be none
    _places: dict[tuple[bool, int], Place] = field(default_factory=dict)
    _suspicions: set[int] = field(default_factory=set)  # ids of target calls whose pairs were given up
    _cleared: set[int] = field(default_factory=set)
    _meanings: Meanings = field(default_factory=dict)
    _kept: set[int] = field(default_factory=set)  # ids of target calls whose pairs are not given up
    _keeps_all: bool = False

    def run(self, primary: Sequence[Pair], others: Sequence[Pair]) -> None:
        """Walk pairs of the kind that is judged, in execution order, then describe those of the other kinds."""
        self._judge = self._make_judge()
        before = None
        for walks in range(_MOST_WALKS):
            self._keeps_all = walks == _MOST_WALKS - 1
            self.states = before = States(read_data=self.read_data, before=before)
            self._walk(primary)
            wrong = self._suspicions - self._cleared
            if not wrong:
                break
            self._kept |= wrong
        for pair in others:
            self._describe(pair)

    def _walk(self, primary: Sequence[Pair]) -> None:
        self.rows, self.findings, self.dissolved = [], [], []
        self.region_status, self._suspicions, self._cleared = {}, set(), set()
        kind = primary[0].target.kind if primary else ""
        self._edge = Boundary(
            self.target,
            self.baseline,
            kind,
            self.states,
            self.replays,
            exact_sources=self.exact_sources,
            inherited=self.inherited,
            meanings=self._meanings,
        )
        self._edge.matched = {pair.target.id for pair in primary}, {pair.baseline.id for pair in primary}
        for pair in primary:
            self._pair(pair)
        self._left_behind(primary)

    def _left_behind(self, primary: Sequence[Pair]) -> None:
        """Judge what calls without a counterpart wrote to memory that came from outside."""
        partners = self.states.partners
        sources = {id: b for id, b in partners.items() if self._edge.is_source(self.target.value_by_id(id), b)}
        for t, b in left_behind((self.target, self.baseline), sources):
            if self.states.find(t, b) is not None or not self._edge.inside_region(t, b):
                continue
            made = self._edge.made(t, b)
            pair = Pair(made[0] or primary[-1].target, made[1] or primary[-1].baseline, "order")
            row, state = self._boundary(pair, "left behind", t, b, self.states.close(t, b))
            self.states.keep(t, b, state)
            self.rows.append(row)

    def _make_judge(self) -> Judge:
        return Judge(self.rules, self.replays, self.control)

    _judge: Judge = field(init=False)
    states: States = field(init=False)
    _edge: Boundary = field(init=False)

    # -- one pair -----------------------------------------------------------------------------------------------

    def _pair(self, pair: Pair) -> None:
        if self._is_mispaired(pair):
            for side, call in enumerate((pair.target, pair.baseline)):
                self._edge.matched[side].discard(call.id)
            self.dissolved.append(pair)
            return
        inputs = self._inputs(pair)
        found = {}
        slots = dict(pair.baseline.result_values())
        for slot, value in pair.target.result_values():
            if slot in slots:
                found[slot] = (value, slots[slot], self.states.close(value, slots[slot]))
        if looks(pair.target) and inputs.agree and inputs.same_shapes:
            judged = self._viewed(found, inputs)
        else:
            judged = self._judge.outputs(pair.target, pair.baseline, found, inputs)
        differences = self._differences(pair)
        for slot, (t, b, close) in found.items():
            said = self._with_arguments(judged[slot], close, inputs, differences)
            self.states.keep(t, b, State(said.status, close.error or 0.0, inputs.depth + 1, _noise(close)))
            row = self._row(pair, slot, close, said, inputs)
            self.rows.append(row)
            self._blame(pair, row, said, inputs, differences)

    def _differences(self, pair: Pair) -> list[ArgumentDifference]:
        """Return the arguments that differ, if that makes the calls other functions."""
        found = argument_differences(pair.target, pair.baseline)
        if not found or any(difference.of_dtype for difference in found):
            return found
        return [] if self.read_data and means_the_same(pair.target, pair.baseline) else found

    def _is_mispaired(self, pair: Pair) -> bool:
        """Tell whether the inputs of a pair show that the two calls are not each other's counterpart.

        They are not if calls without a counterpart gave them inputs of different shapes, or if what the inputs
        were made of has nothing in common.
        """
        if pair.how == "mapping":
            return False
        if self._is_shaped_otherwise(pair):
            return True
        slots = dict(pair.baseline.input_values())
        for slot, value in pair.target.input_values():
            other = slots.get(slot)
            if other is None or self.states.find(value, other) is not None:
                continue
            if value.undefined or other.undefined or value.unsettled or other.unsettled:
                continue
            cones = self._edge.cones(value, other)
            if value.shape != other.shape and (cones[0].calls or cones[1].calls):
                return True
            if self.states.close(value, other).bitwise:
                continue
            if self._edge.unrelated(cones) or self._is_suspicious(pair, slot, value, other, cones):
                return True
        return False

    def _is_suspicious(self, pair: Pair, slot: str, t: Value, b: Value, cones: tuple[Cone, Cone]) -> bool:
        """Tell whether a pair gets inputs from calls without a counterpart that do not mean the same."""
        if self._is_kept(pair):
            return False
        close = self.states.close(t, b)
        kind, said, _ = self._edge.judge(t, b, close, cones)
        by_meaning = said.floor_from == "semantics" or kind == "rewired"
        if kind == "source" or not said.guilty or not (by_meaning or self._has_nothing_in_common(pair, close)):
            return False
        if _hands_on(pair.target):
            return True  # who reads it next is asked
        before = sum(call.id in self._suspicions and not looks(call) for call in cones[0].calls)
        if before >= _MOST_DISSOLVED:
            return False
        self._suspicions.add(pair.target.id)
        return True

    def _is_shaped_otherwise(self, pair: Pair) -> bool:
        """Tell whether two calls make other shapes of the same inputs, as with another ``keepdim``."""
        if pair.how != "shapeless" or self._is_kept(pair):
            return False
        results = dict(pair.baseline.output_values())
        if all(slot in results and v.shape == results[slot].shape for slot, v in pair.target.output_values()):
            return False
        self._suspicions.add(pair.target.id)
        return True

    def _is_kept(self, pair: Pair) -> bool:
        return self._keeps_all or pair.target.id in self._kept

    @staticmethod
    def _has_nothing_in_common(pair: Pair, close: Closeness) -> bool:
        return pair.how in _BY_SEQUENCE and close.metrics is not None and close.metrics.cosine <= _NOTHING_IN_COMMON

    def _inputs(self, pair: Pair) -> Inputs:
        slots = dict(pair.baseline.input_values())
        states, shapes, dtypes = [], True, True
        for slot, value in pair.target.input_values():
            other = slots.get(slot)
            if other is None or value.undefined or other.undefined:
                continue
            if value.unsettled or other.unsettled:
                states.append(State("different", 0.0, self.states.depth))  # for all that is known
                continue
            close = self.states.close(value, other)
            shapes = shapes and close.shape is None
            dtypes = dtypes and close.dtype is None
            states.append(self._input(pair, slot, value, other, close))
        return inputs_of(states, shapes, dtypes)

    def _input(self, pair: Pair, slot: str, value: Value, other: Value, close: Closeness) -> State:
        state = self.states.find(value, other)
        if state is not None:
            self.rows.append(self._plain_row(pair, slot, close, state.status))
            return state
        row, state = self._boundary(pair, slot, value, other, close)
        self.states.keep(value, other, state)
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
        wrong_dtype = close.dtype is not None and inputs.same_dtypes and close.dtype not in self.states.precisions
        if wrong_dtype or (not close.bitwise and close.known and self._real(differences)):
            return Judgement("different", True, said.floor, said.floor_from, said.ratio, said.own, said.note)
        return said

    def _real(self, differences: Iterable[ArgumentDifference]) -> list[ArgumentDifference]:
        """Return the differences that other precisions do not explain."""
        return [d for d in differences if not (d.of_dtype and self.states.precisions)]

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
        elif said.own is None and _is_random(pair.target):
            kind, text = "random", "it draws random numbers, and the generators were not in one state"
        else:
            text = "its result is wrong for its inputs" if said.own else "its result does not agree"
        if said.note:
            text = f"{text} ({said.note})"
        self.findings.append(Finding(kind, row, text, _said_of(inputs), (pair.target.id, 1)))

    # -- inputs that no matched call made ------------------------------------------------------------------------

    def _boundary(self, pair: Pair, slot: str, t: Value, b: Value, close: Closeness) -> tuple[Row, State]:
        """Judge a pair of values of which at least one was made outside, or by calls without a counterpart."""
        cones = self._edge.cones(t, b)
        by_rule = self._judge.rule(f"{pair.target.name}.{slot}", close) if self.rules else None
        kind: FindingKind
        if by_rule is not None:
            said = by_rule
            kind, text = ("source" if not (cones[0].calls or cones[1].calls) else "region"), said.note
        else:
            kind, said, text = self._edge.judge(t, b, close, cones)
        for side, cone in zip(("target", "baseline"), cones, strict=True):
            for call in cone.calls:
                known = self.region_status.get((side, call.id), "same")
                self.region_status[side, call.id] = max(known, said.status, key=lambda s: WORSE[s])
        if said.status in ("same", "within"):
            self._cleared.update(call.id for call in cones[0].calls)
        row = self._row(pair, slot, close, said, None)
        if said.guilty:
            self.findings.append(self._boundary_finding(kind, row, text, cones, pair))
        return row, State(said.status, close.error or 0.0, self._edge.cut_inputs(cones).depth + 1, _noise(close))

    def _boundary_finding(
        self, kind: FindingKind, row: Row, text: str, cones: tuple[Cone, Cone], pair: Pair
    ) -> Finding:
        """Return a finding, placed at the call without a counterpart that most likely is the reason."""
        calls = tuple(call.name for cone in cones for call in cone.calls)
        if not calls:
            return Finding(kind, row, text, "", (pair.target.id, 0))
        wrong = self._edge.wrong_in(cones) if row.floor_from == "replay" else None
        guilty, side = odd_one(cones) if wrong is None else wrong[:2]
        text += f"; seen at {row.slot} of {pair.target.name}"
        there = place_of(guilty)
        row = replace(row, target=there if side == 0 else None, baseline=there if side else None, slot="output")
        known = _said_of(self._edge.cut_inputs(cones))
        return Finding(kind, row, text, known, (pair.target.id if side else guilty.id, 0), calls)

    # -- states and rows ---------------------------------------------------------------------------------------------

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
                    close = self.states.close(value, slots[slot])
                    self.rows.append(self._plain_row(pair, slot, close, self._known_status(value, slots[slot], close)))

    def _known_status(self, t: Value, b: Value, close: Closeness) -> Status:
        state = self.states.find(t, b)
        if state is not None:
            return state.status
        if close.bitwise:
            return "same"
        if t.id in self.states.partners or b.id in self.states.known_baseline or self._edge.inside_region(t, b):
            return "unknown"  # others are their counterparts, or what their region leads to is compared
        if close.shape is not None or close.nonfinite or close.level == "hash":
            return "different"
        if not close.known:
            return "unknown"
        limits = limits_of(t, b).times(2.0 * math.sqrt(1 + self.states.depth))
        if (close.error or 0.0) <= limits.rel_l2:
            return "within"
        return "unknown" if self._edge.walks_ops else "different"  # no op made it or reads it: a sum of the recorder's

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
        own = said.own.target.error if said.own else None
        return Row(
            *self._both(pair), pair.how, slot, said.status, close, said.floor, floor_from,
            said.ratio, own, amplified, said.note or close.reason,
        )  # fmt: skip


def _hands_on(call: Call) -> bool:
    """Tell whether a call returns its inputs, same geometry and all, and makes nothing."""
    given = {value.id for _, value in call.input_values()}
    return not call.mutated and all(value.id in given for _, value in call.output_values())


def _noise(close: Closeness) -> float:
    return close.metrics.rmse if close.metrics is not None else 0.0


def _said_of(inputs: Inputs) -> str:
    texts = {
        "same": "its inputs are bitwise equal",
        "within": f"its inputs agree within noise (relative L2 up to {inputs.error:.2g})",
    }
    return texts.get(inputs.worst, "its inputs differ already, but its own error is too large for them")


def _is_random(call: Call) -> bool:
    namespace, name, overload = read_op_name(call.op)
    op = getattr(getattr(getattr(torch.ops, namespace, None), name, None), overload or "default", None)
    return op is not None and torch.Tag.nondeterministic_seeded in op.tags
