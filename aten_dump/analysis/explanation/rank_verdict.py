"""The verdict of one step and rank: both sides are evaluated, their ends compared, their kernels checked.

Theory of operation
    Three questions are asked of a step, each by itself. Are both the same function: does each end have its counterpart
    (`ends`, `cone`)? Is each kernel right: is each result, from its own recorded inputs, what float64 gives (`rerun`)?
    Rows say of each value what was found; findings say what is wrong. A step whose ends differ is evaluated once more
    with every result moved a little, so that what rounding alone decides is no difference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal

from ...dump import Call, RankDump, Value
from ..distance.value_distance import Closeness, Level, closeness
from ..ends.ends import End, Left, ends_of, unmatched, wanted_of
from ..evaluation.evaluation import JITTER, EvaluatedStep, Evaluation, Shared
from ..evaluation.numbers_in_python import COMPUTED, NearCall, is_near
from ..evidence.evidence_rows import Pair
from ..evidence.findings import Finding, Place, Row, Status
from ..evidence.place_of_call import place_of
from ..flow.data_flow import DataFlow
from ..pairing.alignment import HOW_TEXTS
from ..rerun.op_errors import Replays
from ..rerun.rounding_error import SUSPECT, LocalError
from ..sources.stand_ins import LeftBefore, Recorded, Sources, match_sources
from .causes import Cause, Causes

_LEVELS: Final[tuple[Level, ...]] = ("tensor", "statistic", "hash")


@dataclass(slots=True)
class Evaluated:
    """Both sides of a step, evaluated from the same sources."""

    sides: tuple[Evaluation, Evaluation]
    sources: Sources
    ends: tuple[list[End], list[End]]
    odd: tuple[list[End], list[End]]  # ends that the other side does not have
    near: list[NearCall] = field(default_factory=list)  # calls with another number that hardly shows

    @property
    def differs(self) -> bool:
        return bool(self.odd[0] or self.odd[1] or self.near)


def evaluate(ranks: tuple[RankDump, RankDump], before: LeftBefore | None, *, by_role: bool) -> Evaluated:
    """Evaluate both sides of a step.

    Args:
        ranks: of the target and the baseline.
        before: what the step before left.
        by_role: sources that differ stand for each other where they are read in the same role.
    """
    flows = DataFlow(ranks[0], "aten"), DataFlow(ranks[1], "aten")
    left = Left(flows[0]), Left(flows[1])
    steps = [
        EvaluatedStep(flow, [value for value, _ in one.buffers], wanted_of(flow))
        for flow, one in zip(flows, left, strict=True)
    ]
    shared = Shared()
    shared.in_python.apart = 0.0 if before is None else before.apart
    target = Evaluation(steps[0], shared, leads=True)
    target.run()
    sources = match_sources(target, flows[1], before, by_role=by_role, recorded=Recorded())
    baseline = Evaluation(steps[1], shared, sources.stand_ins)
    baseline.run()
    target.unproven |= dict.fromkeys(shared.in_python.unknown, COMPUTED)
    found = _evaluated((target, baseline), sources, left)
    if not found.differs:
        return found
    moved = Evaluation(steps[0], Shared(), leads=True, jitter=JITTER)
    moved.run()
    again = Shared()
    target.renumber(again, target.noise_beside(moved))
    baseline.renumber(again)
    return _evaluated((target, baseline), sources, left)


def _evaluated(sides: tuple[Evaluation, Evaluation], sources: Sources, left: tuple[Left, Left]) -> Evaluated:
    ends = ends_of(sides[0], left[0]), ends_of(sides[1], left[1])
    near = [one for one in sides[1].near if is_near(one, sides[0].signatures, sides[1].signatures)]
    return Evaluated(sides, sources, ends, unmatched(*ends, sides), near)


class RankVerdict:
    """Makes the rows and findings of one evaluated step."""

    def __init__(self, found: Evaluated, pairs: Sequence[Pair], replays: Replays) -> None:
        self._found = found
        self._pairs = pairs
        self._replays = replays
        self._partners = {pair.target.id: pair for pair in pairs}
        self._places: dict[tuple[int, int], Place] = {}
        self._known: dict[tuple[int, int], Closeness] = {}
        self._equal: set[int] = set()  # values of the baseline that hold the same bits as their counterpart
        self._cones: tuple[set[int], ...] = (set(), set())
        self.rows: list[Row] = []
        self.findings: list[Finding] = []

    def run(self) -> None:
        if self._found.differs:
            causes = Causes(self._found.sides, self._found.sources, self._found.ends)
            self.findings.append(self._finding(causes.find(self._found.odd, self._found.near)))
            self._cones = tuple(set(cone.calls) for cone in causes.cones)
        self._compare_results()
        self._check_baseline()
        self.rows.sort(key=lambda row: (row.place.id, row.target is None))
        self.findings.sort(key=lambda finding: finding.order)

    # -- rows --------------------------------------------------------------------------------------------------------

    def _compare_results(self) -> None:
        """Add a row for each result of the target's calls, and for calls of the baseline's that have no counterpart."""
        target, baseline = self._found.sides
        met: set[int] = set()
        for call in target.flow.rank.calls:
            pair = self._partners.get(call.id)
            if call.kind == "aten" and target.flow.takes_part(call):
                met |= self._of_op(call, pair)
            elif pair is not None:
                self._of_pair(pair)
        paired = {pair.baseline.id for pair in self._pairs}
        for call in baseline.flow.calls():
            if call.id not in paired and call.id not in met and baseline.flow.results(call):
                self._alone(call, 1)

    def _of_op(self, call: Call, pair: Pair | None) -> set[int]:
        """Add the rows of one op; return the baseline's calls that made the same."""
        target = self._found.sides[0]
        met = set()
        results = target.flow.results(call)
        if not results and pair is not None:
            return {pair.baseline.id}
        theirs = {} if pair is None else dict(pair.baseline.result_values())
        for slot, value in results:
            number = target.numbers.get(value.id)
            other, maker = self._counterpart(number, slot, theirs, pair)
            if other is not None and maker is not None:
                met.add(maker.id)
                self._of_values(call, maker, slot, (value, other), pair)
            elif pair is not None and slot in theirs and call.id in self._cones[0]:
                self._differs(pair, slot, (value, theirs[slot]))
            else:
                self._alone(call, 0)
                break
        return met

    def _counterpart(
        self, number: int | None, slot: str, theirs: dict[str, Value], pair: Pair | None
    ) -> tuple[Value | None, Call | None]:
        """Return the baseline's value of the same number: that of the paired call, else any."""
        baseline = self._found.sides[1]
        if pair is not None and slot in theirs and baseline.numbers.get(theirs[slot].id) == number:
            return theirs[slot], pair.baseline
        for held in baseline.holders.get(number, ()) if number is not None else ():
            value = baseline.flow.rank.value_by_id(held)
            maker = baseline.flow.maker(value)
            if maker is not None:
                return value, maker
        return None, None

    def _of_values(self, call: Call, maker: Call, slot: str, values: tuple[Value, Value], pair: Pair | None) -> None:
        """Add the row of a result that is the same function on both sides: only kernels may differ."""
        close = self._close(*values)
        how = pair.how if pair is not None and pair.baseline.id == maker.id else "flow"
        places = self._place(call), self._place(maker)
        note = COMPUTED if self._found.sides[0].unproven.get(call.id) == COMPUTED else close.reason
        if close.bitwise or not close.known:
            status: Status = "same" if close.bitwise else "unknown"
            self.rows.append(Row(*places, how, slot, status, close, note=note, floor_from="exact"))
            return
        own = self._own_error(call, slot)
        if own is None:
            self.rows.append(Row(*places, how, slot, "within", close, note=note, floor_from="semantics"))
            return
        ratio = own.ratio / SUSPECT
        row = Row(
            *places, how, slot, "different" if ratio > 1 else "within", close, SUSPECT * own.floor, "replay", ratio,
            own.error, note=note, floor_reason=f"{SUSPECT:g} times {own.reason}" if own.reason else "",
        )  # fmt: skip
        self.rows.append(row)
        if ratio > 1:
            text = "its result is wrong for its inputs"
            self.findings.append(Finding("nonfinite" if close.nonfinite else "op", row, text, "", (call.id, 1)))

    def _own_error(self, call: Call, slot: str) -> LocalError | None:
        errors = self._replays.errors(call)
        return None if isinstance(errors, str) else errors.get(slot)

    def _differs(self, pair: Pair, slot: str, values: tuple[Value, Value]) -> None:
        close = self._close(*values)
        self.rows.append(
            Row(
                self._place(pair.target),
                self._place(pair.baseline),
                pair.how,
                slot,
                "different",
                close,
                floor_from="semantics",
            )
        )

    def _of_pair(self, pair: Pair) -> None:
        """Add the rows of a pair of Python calls, modules or nodes: what their outputs are."""
        target, baseline = self._found.sides
        theirs = dict(pair.baseline.output_values())
        for slot, value in pair.target.output_values():
            if slot not in theirs:
                continue
            numbers = _number(target, value), _number(baseline, theirs[slot])
            same = numbers[0] is not None and numbers[0] == numbers[1]
            close = self._close(value, theirs[slot])
            status: Status = "same" if close.bitwise else "within" if same else "unknown"
            if not same and not close.bitwise and None not in numbers:
                status = "different" if self._found.differs else "unmatched"
            self.rows.append(Row(self._place(pair.target), self._place(pair.baseline), pair.how, slot, status, close))

    def _alone(self, call: Call, side: int) -> None:
        note = "behind what differs" if call.id in self._cones[side] else "what it leads to is the same on both sides"
        place = self._place(call)
        self.rows.append(Row(None if side else place, place if side else None, "", "", "unmatched", note=note))

    def _check_baseline(self) -> None:
        """Add findings about kernels of the baseline that are wrong."""
        baseline = self._found.sides[1]
        wrong = {finding.row.baseline.id for finding in self.findings if finding.row.baseline is not None}
        for call in baseline.flow.calls():
            if call.id in wrong:
                continue
            for slot, value in baseline.flow.results(call):
                if value.id in self._equal:
                    continue
                own = self._own_error(call, slot)
                if own is not None and own.ratio > SUSPECT:
                    row = Row(
                        None, self._place(call), "", slot, "different", None, SUSPECT * own.floor, "replay",
                        own.ratio / SUSPECT, own.error,
                    )  # fmt: skip
                    text = "the baseline's result is wrong for its inputs"
                    self.findings.append(Finding("op", row, text, "", (self.in_target_order(call), 1)))

    def _close(self, target: Value, baseline: Value) -> Closeness:
        """Return how close two recorded values are; each pair is read once."""
        key = target.id, baseline.id
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = closeness(target, baseline)
            if found.bitwise:
                self._equal.add(baseline.id)
        return found

    def in_target_order(self, call: Call) -> int:
        """Return the id of the target's call at which one of the baseline's stands."""
        return next((t for b, t in self._order if b >= call.id), self._order[-1][1] if self._order else call.id)

    @cached_property
    def _order(self) -> list[tuple[int, int]]:
        return sorted((pair.baseline.id, pair.target.id) for pair in self._pairs)

    # -- findings ----------------------------------------------------------------------------------------------------

    def _finding(self, cause: Cause) -> Finding:
        close: Closeness | None = None
        slot = cause.slot
        values = _compared(cause)
        if values is not None:
            slot, close = values[0], self._close(*values[1])
        target, baseline = (None if call is None else self._place(call) for call in (cause.target, cause.baseline))
        how: Literal["flow", ""] = "flow" if target and baseline else ""
        row = Row(target, baseline, how, slot, "different", close, floor_from="semantics")
        at = cause.target.id if cause.target is not None else self.in_target_order(cause.named)
        return Finding(cause.kind, row, cause.text, cause.inputs, (at, int(not slot.startswith("input"))), cause.calls)

    def _place(self, call: Call) -> Place:
        key = id(call.rank), call.id
        found = self._places.get(key)
        if found is None:
            found = self._places[key] = place_of(call)
        return found


def _compared(cause: Cause) -> tuple[str, tuple[Value, Value]] | None:
    """Return a slot that both calls of a cause have, and its values."""
    if cause.target is None or cause.baseline is None:
        return None
    ours, theirs = dict(cause.target.all_values()), dict(cause.baseline.all_values())
    slots = [
        slot
        for slot in (cause.slot, *(s for s in ours if not s.startswith("input")))
        if slot in ours and slot in theirs
    ]
    return (slots[0], (ours[slots[0]], theirs[slots[0]])) if slots else None


def _number(evaluation: Evaluation, value: Value) -> int | None:
    found = evaluation.numbers.get(value.id)
    if found is None:
        writer = evaluation.flow.writer(value)
        found = None if writer is None or writer[2].id == value.id else evaluation.numbers.get(writer[2].id)
    return found


def evidence_parts(verdict: RankVerdict, pairs: Sequence[Pair]) -> dict[str, object]:
    """Return the counts of a verdict, as fields of `RankEvidence`."""
    levels = Counter(row.closeness.level for row in verdict.rows if row.closeness is not None)
    return {
        "level": next((level for level in _LEVELS if levels[level]), "none"),
        "levels": {str(level): count for level, count in levels.items()},
        "pairs": {HOW_TEXTS[how]: count for how, count in Counter(pair.how for pair in pairs).items()},
        "paired": {pair.target.name: pair.baseline.name for pair in pairs},
    }
