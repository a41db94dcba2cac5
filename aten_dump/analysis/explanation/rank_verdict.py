"""The verdict of one step and rank: both sides are evaluated, their ends compared, their kernels checked.

Theory of operation
    Two questions are asked of a step. Are both sides the same function: does each end have its counterpart (`ends`,
    `cone`)? Is each kernel right: is each result what float64 gives for its recorded inputs (`rerun`)? Rows hold what
    was found for each value, findings what is wrong. If ends differ, the step is evaluated again with every result
    moved a little: what rounding alone decides is no difference.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final, Literal

from ...dump import Call, Value
from ...store.op_names import is_collective, is_workspace
from ..distance.value_distance import Closeness, Level
from ..evaluation.evaluation import Evaluation
from ..evaluation.numbers_in_python import COMPUTED
from ..evidence.evidence_rows import Pair
from ..evidence.findings import Finding, Place, Row, Status, place_of
from ..evidence.noise_floors import limits_of
from ..flow.counterparts import Counterparts
from ..pairing.alignment import HOW_TEXTS, How
from ..precision.lost_precision import BUDGET, PrecisionSearch
from ..rerun.kernel_ops import unknown_slots
from ..rerun.op_errors import Replays, Storages, Undefined
from ..rerun.rounding_error import SUSPECT, LocalError
from ..rerun.undefined_elements import DEPENDS
from .both_sides import Evaluated
from .causes import Cause, Causes
from .repair import Repair
from .spread import Spread, spread

_MOST_ROUNDING: Final = 8.0  # times the limits of a dtype: tolerance for kernels that cannot be replayed
_MOST_INNOCENT: Final = 8  # most differences to put right
_LEVELS: Final[tuple[Level, ...]] = ("tensor", "statistic", "hash")


class RankVerdict:
    """Makes the rows and findings of one evaluated step.

    It has more than twenty methods, because rows and findings are made of the same numbers.

    Attributes:
        corrects: look for the change that would correct the step, if it is written otherwise.
    """

    corrects = True

    def __init__(
        self, found: Evaluated, pairs: Sequence[Pair], replays: Replays, precision_budget: float = BUDGET
    ) -> None:
        self._found = found
        self._pairs = pairs
        self._replays = replays
        self._budget = precision_budget
        replays.undefined, replays.storages = self._undefined_in, self._storages_of
        self._partners = {pair.target.id: pair for pair in pairs}
        self._taken = {pair.baseline.id for pair in pairs}
        self._places: dict[tuple[int, int], Place] = {}
        undefined = found.sides[0].undefined, found.sides[1].undefined
        self._known = Counterparts(read_data=True, undefined=undefined)
        self._equal: set[int] = set()  # the baseline's values that are bitwise equal to their counterpart
        self._leant: set[int] = set()  # collectives whose senders were looked at
        self._cones: tuple[set[int], ...] = (set(), set())
        self.rows: list[Row] = []
        self.findings: list[Finding] = []

    def run(self) -> None:
        if self._found.differs:
            self.findings.append(self._finding(self._cause()))
        self._compare_results()
        self._check_baseline()
        if self._found.differs and self._is_made_wrong(self.findings[0], self.findings[1:]):
            del self.findings[0]
        self._spread()
        has_unseen = any(side.has_unseen for side in self._found.sides)
        if not (self.findings or has_unseen or self._found.reordered) and self._is_far_apart():
            self._find_lost_precision()
        self.rows.sort(key=lambda row: (row.place.id, row.target is None))
        self.findings.sort(key=lambda finding: finding.order)

    def _is_made_wrong(self, cause: Finding, others: Sequence[Finding]) -> bool:
        """Return True if a replay shows that the named call, or the missing one, has a wrong result."""
        wrong = [finding.row for finding in others if finding.row.floor_from == "replay"]
        if cause.row.target is not None and cause.row.baseline is not None:
            named = cause.row.target.id
            return cause.kind == "op" and any(row.target is not None and row.target.id == named for row in wrong)
        if cause.row.target is None:
            partners = {pair.target.id for pair in self._pairs if pair.baseline.id == cause.row.place.id}
            return any(row.target is not None and row.target.id in partners for row in wrong)
        partners = {pair.baseline.id for pair in self._pairs if pair.target.id == cause.row.place.id}
        return any(row.baseline is not None and row.baseline.id in partners for row in wrong)

    def _cause(self) -> Cause:
        """Return the first cause on which the ends depend."""
        found = self._found
        repair = Repair(found.sides, found.steps, found.contents)
        repair.corrects = self.corrects
        causes = self._causes(found, repair)
        first = cause = (found.unmet and causes.of_order(found.unmet)) or causes.find(found.odd, found.near)
        cones = tuple(set(cone.calls) for cone in causes.cones)
        innocent: list[Cause] = []
        while (again := self._without(found, causes, cause)) is not None:
            innocent.append(cause)
            if len(innocent) > _MOST_INNOCENT:
                self._cones = cones
                return first
            found, repair = again, repair.of(again.sides)
            causes = self._causes(found, repair)
            cause = causes.find(found.odd, found.near)
        notes = [
            f"{one.named.name} differs ({one.text}), and nothing that the step ends with depends on it"
            for one in innocent
        ]
        self._found.notes = (*self._found.notes, *notes)
        if innocent and cause.inputs:
            cause = replace(cause, inputs=f"{cause.inputs}, if {innocent[-1].named.name} is put right")
        self._cones = tuple(set(cone.calls) for cone in causes.cones)
        return cause

    @staticmethod
    def _without(found: Evaluated, causes: Causes, cause: Cause) -> Evaluated | None:
        """Put a cause right and return the result if no end changes; return None if it may be the cause."""
        repair = causes.repair
        differences = [] if repair is None or not causes.may_be_innocent(cause) else causes.differences(cause)
        if repair is None or not differences:
            return None
        target = repair.without(differences, causes.odd)
        again = None if target is None else found.with_target(target, repair.contents[0])
        return None if again is None or not again.differs else again

    def _causes(self, found: Evaluated, repair: Repair) -> Causes:
        causes = Causes(found.sides, found.sources, found.ends, self._pairs, found.parts)
        causes.repair = repair
        return causes

    @property
    def unknown_ends(self) -> tuple[str, ...]:
        """The names of ends that depend on memory that nothing wrote, or that may have been kept.

        If one loss is known, another that was computed from unwritten memory does not count: a pipeline infers shapes
        on such memory. Some outputs may be memory to be filled, but not all of them.
        """
        target, _ = self._found.sides
        ends = self._found.ends[0]
        known = [end for end in ends if end.kind != "output"]
        odd = [end for end in known or ends if target.depends(end.value)]
        if not known and len(odd) < len(ends):
            odd = []
        has_loss = any(end.kind == "loss" and not target.depends(end.value) for end in known)
        found = [end.name for end in odd if not (has_loss and end.kind == "loss")]
        unclear = [] if self.findings else [f"result ({end.name})" for end in self._found.unclear]
        return tuple(dict.fromkeys([*found, *self._found.unknown, *unclear]))

    def _undefined_in(self, call: Call) -> Undefined:
        """Return the elements of a call's results that depend on memory that nothing wrote."""
        for side in self._found.sides:
            if call.rank is side.flow.rank:
                found = {slot: side.undefined.elements(value) for slot, value in call.result_values()}
                return {slot: elements == DEPENDS for slot, elements in found.items() if elements is not None}
        return {}  # another rank's, as part of a collective

    def _storages_of(self, call: Call) -> Storages:
        """Return the known elements of memory that was written only in part when a call read it."""
        found = (side.undefined.storages(call) for side in self._found.sides if call.rank is side.flow.rank)
        return next(found, {})

    # -- rows --------------------------------------------------------------------------------------------------------

    def _compare_results(self) -> None:
        """Add a row for each result of the target's calls, and for each baseline call without a counterpart."""
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
        """Add the rows of one op; return the baseline's calls that made the same results."""
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
                if pair is None and maker.id in self._taken and self._close(value, other).bitwise:
                    self._alone(call, 0)  # it repeats a call that has its counterpart
                    break
                met.add(maker.id)
                self._of_values(call, maker, slot, (value, other), pair)
            elif pair is not None and slot in theirs and call.id in self._cones[0]:
                self._differs(pair, slot, (value, theirs[slot]))
            elif not self._of_part(call, slot, value):
                self._alone(call, 0)
                break
        return met

    def _of_part(self, call: Call, slot: str, value: Value) -> bool:
        """Judge a result without a counterpart of its size by its own error; return False if that adds no row.

        The function is known to be the baseline's, or not to matter, but the kernel may be wrong.
        """
        own = self._own_error(call, slot)
        is_wrong = own is not None and own.ratio > SUSPECT
        if not is_wrong and self._found.sides[0].numbers.get(value.id) not in self._found.sides[1].holders:
            return False
        if own is None:
            return False
        note = "a part of what the baseline makes, or all of its parts" if not is_wrong else ""
        row = Row(
            self._place(call), None, "", slot, "different" if is_wrong else "within", None, SUSPECT * own.floor,
            "replay", own.ratio / SUSPECT, own.error, note=note,
        )  # fmt: skip
        self.rows.append(row)
        if is_wrong:
            self.findings.append(Finding("op", row, "its result is wrong for its inputs", "", (call.id, 1)))
        return True

    def _counterpart(
        self, number: int | None, slot: str, theirs: dict[str, Value], pair: Pair | None
    ) -> tuple[Value | None, Call | None]:
        """Return the baseline's value of the same number, preferably that of the paired call."""
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
        """Add the row of a result that is the same function on both sides, so that only kernels may differ."""
        close = self._close(*values)
        how = pair.how if pair is not None and pair.baseline.id == maker.id else "flow"
        places = self._place(call), self._place(maker)
        note = COMPUTED if self._found.sides[0].unproven.get(call.id) == COMPUTED else close.reason
        is_said = close.bitwise or not close.known
        # Being equal to the result of another op does not prove its kernel: a collective may return its input.
        own = None if is_said and (call.op == maker.op or not close.known) else self._own_error(call, slot)
        if is_said and (own is None or own.ratio <= SUSPECT):
            status: Status = "same" if close.bitwise else "unknown"
            self.rows.append(Row(*places, how, slot, status, close, note=note, floor_from="exact"))
            return
        theirs = {} if pair is None or pair.baseline.id == maker.id else dict(pair.baseline.result_values())
        if is_said and pair is not None and slot in theirs:  # it is shown beside what it should be
            self._of_values(call, pair.baseline, slot, (values[0], theirs[slot]), pair)
            return
        if is_collective(call.op):
            self._lean(call, maker)
        if own is None:
            self._estimate(call, maker, slot, values, how)
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

    def _estimate(self, call: Call, maker: Call, slot: str, values: tuple[Value, Value], how: How) -> None:
        """Add the row of a result that cannot be replayed: from bitwise equal inputs it may differ only by rounding."""
        close, floor = self._close(*values), _MOST_ROUNDING * limits_of(*values).rel_l2
        ratio = (math.inf if close.nonfinite else close.error or 0.0) / floor if floor else 0.0
        theirs = dict(maker.input_values())
        are_equal = call.op == maker.op and all(
            name in theirs and self._close(value, theirs[name]).bitwise
            for name, value in self._found.sides[0].flow.reads(call)
        )
        is_free = is_collective(call.op) or is_workspace(call.op, slot) or call.id in call.rank.tables.random
        is_free = is_free or slot in unknown_slots(call)  # the kernel that reads it is judged together with this one
        is_asked = are_equal and not is_free
        status: Status = "different" if ratio > 1 and is_asked and not close.undefined else "within"
        row = Row(
            self._place(call), self._place(maker), how, slot, status, close, floor if is_asked else None,
            "semantics", ratio if is_asked else None, note=close.reason,
        )  # fmt: skip
        self.rows.append(row)
        if status == "different":
            text = "from bitwise equal inputs it makes something else; no replay shows which side is wrong"
            self.findings.append(Finding("op", row, text, "", (call.id, 1)))

    def _lean(self, call: Call, maker: Call) -> None:
        """Note the other ranks that sent something different to a collective, as its result depends on them."""
        if call.id not in self._leant and is_collective(maker.op):
            self._leant.add(call.id)
            self._replays.local_errors(call, maker)

    def is_met(self, call: Call) -> bool:
        """Return True if a collective brought the right result of what all ranks gave, or the same on both sides."""
        if not is_collective(call.op):
            return False
        statuses = {row.status for row in self.rows if row.target is not None and row.target.id == call.id}
        errors = {} if statuses == {"same"} else self._replays.errors(call)
        return not isinstance(errors, str) and all(error.ratio <= SUSPECT for error in errors.values())

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
        """Add the rows of the outputs of a pair of Python calls, modules or nodes."""
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

    def _spread(self) -> None:
        """Mark the rows that are different because of wrong kernels."""
        wrong: tuple[set[int], set[int]] = set(), set()
        for finding in self.findings:
            row = finding.row
            if row.floor_from == "replay":
                side, place = (0, row.target) if row.target is not None else (1, row.baseline)
                wrong[side].update([] if place is None else [place.id])
        if any(wrong):
            flows = self._found.sides[0].flow, self._found.sides[1].flow
            self.rows = spread(self.rows, (Spread(flows[0], wrong[0]), Spread(flows[1], wrong[1])))

    def _close(self, target: Value, baseline: Value) -> Closeness:
        """Return how close two recorded values are; each pair is read once."""
        found = self._known.close(target, baseline)
        if found.bitwise:
            self._equal.add(baseline.id)
        return found

    def in_target_order(self, call: Call) -> int:
        """Return the id of the target's call at which a baseline's call stands."""
        return next((t for b, t in self._order if b >= call.id), self._order[-1][1] if self._order else call.id)

    @cached_property
    def _order(self) -> list[tuple[int, int]]:
        return sorted((pair.baseline.id, pair.target.id) for pair in self._pairs)

    # -- precision ---------------------------------------------------------------------------------------------------

    def _is_far_apart(self) -> bool:
        """Return True if two recorded ends are so far apart that one may be far from the exact value of both."""
        theirs = {end.number: end for end in self._found.ends[1]}
        for end in self._found.ends[0]:
            other = theirs.get(end.number)
            if other is not None and other.number is not None:
                error = self._close(end.value, other.value).error
                if error is not None and error > self._budget / 2:
                    return True
        return False

    def _find_lost_precision(self) -> None:
        search = PrecisionSearch(self._found.sides, self._found.steps, self._found.sources, self._budget)
        lost = search.find(self._found.ends)
        if lost is None:
            return
        partner = None if lost.partner is None else self._place(lost.partner[0])
        close = None if lost.partner is None else self._close(lost.value, lost.partner[1])
        row = Row(
            self._place(lost.call), partner, "flow" if partner else "", lost.slot, "different", close,
            floor_from="semantics", own_error=lost.made,
        )  # fmt: skip
        self.findings.append(Finding("precision", row, str(lost), "", (lost.call.id, 1)))

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
    """Return a slot of both calls of a cause, and its values; None if the cause has another slot in each."""
    if cause.target is None or cause.baseline is None or cause.takes_another:
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


def counts_of(rows: Sequence[Row], pairs: Sequence[Pair]) -> dict[str, Any]:
    """Return the counts of rows and pairs, as fields of `RankEvidence`."""
    return counted(rows, Counter(pair.how for pair in pairs), {pair.target.name: pair.baseline.name for pair in pairs})


def counted(rows: Sequence[Row], hows: Mapping[How, int], paired: dict[str, str]) -> dict[str, Any]:
    """Return the same for the number of pairs found in each way, and for the names of their calls."""
    levels = Counter(row.closeness.level for row in rows if row.closeness is not None)
    return {
        "level": next((level for level in _LEVELS if levels[level]), "none"),
        "levels": {str(level): count for level, count in levels.items()},
        "pairs": {HOW_TEXTS[how]: count for how, count in hows.items()},
        "paired": paired,
    }
