"""Go through the pairs of calls of two recordings: does each make of what it is given what the other makes?

Theory of operation
    Calls are aligned (`pairing`); only one kind is walked, aten ops where both sides have them. Of each pair the inputs
    are asked first. What paired calls made has its state from there; what comes from outside is judged as a source;
    what calls without a counterpart made is compared by its numbers, and where these differ though the calls' own
    inputs agree, the first of those calls is a finding. Then the results are judged (`result_judge.py`). A result that
    differs while the inputs agree is a finding. Behind it the walk goes on, and what differs because of it is none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch

from ...dump import Call, RankDump, Value
from ...store.op_names import is_workspace
from ..distance.cancelled_sums import times_cancelled
from ..distance.value_distance import Closeness, is_of_other_numbers
from ..evidence.evidence_rows import EvidenceRows, Pair, said_of
from ..evidence.findings import FindingKind, Row, Status
from ..evidence.judgement import WORSE, Inputs, Judgement, State, inputs_of
from ..evidence.noise_floors import AMPLIFIES, distance
from ..flow.argument_differences import ArgumentDifference, argument_differences
from ..flow.computed_dtype import computed_dtype, dtype_text
from ..flow.counterparts import NOT_TOLD, UNWRITTEN, Counterparts, Side
from ..flow.data_flow import DataFlow, made_by_both, read_by_both
from ..flow.undefined_memory import UndefinedMemory
from ..rerun.op_errors import Undefined
from ..rerun.rounding_error import SUSPECT
from ..rerun.undefined_elements import DEPENDS
from .result_judge import OTHER_DRAWS, ResultJudge
from .sources import Outside, digest_of

Place = tuple[object, ...]  # a storage seen with a geometry

_MOST_BEHIND: Final = 8000  # values that are looked at behind one value
_MOST_NAMED: Final = 3
_MOST_NOISE: Final = 512.0  # times what rounding leaves of an element, in a number that was read of a tensor
_MOST_OF_A_NUMBER: Final = 1e-2
_ROUNDED: Final = 8  # of a dtype's eps, what elements are off that were rounded and differ in their statistics
_UNDEFINED: Final = State("unknown", undefined=True)


@dataclass(frozen=True, slots=True)
class Behind:
    """The calls without a counterpart that made a value, in execution order, and the states of what they start from."""

    calls: list[Call]
    starts: list[State]


class Walk:
    """Walks the pairs of one step and rank; what it finds is in `evidence`.

    It has more than fifteen attributes and more than twenty methods: all that is known while pairs are walked.
    """

    def __init__(
        self, ranks: tuple[RankDump, RankDump], kind: str, judge: ResultJudge, sources: Outside, *, read_data: bool
    ) -> None:
        self.ranks = ranks
        self.evidence = EvidenceRows()
        self.flows = DataFlow(ranks[0], kind), DataFlow(ranks[1], kind)
        self.unproven: dict[int, Call] = {}  # calls of the target that could only be estimated
        self.judged: set[int] = set()  # calls of the target that make something, and were judged
        undefined = UndefinedMemory(self.flows[0], runs=read_data), UndefinedMemory(self.flows[1], runs=read_data)
        self._undefined = undefined
        self.known = Counterparts(read_data=read_data, undefined=undefined)
        judge.replays.undefined = self._undefined_in
        self._judge = judge
        self._sources = sources
        self.from_outside: tuple[dict[Place, Value], dict[Place, Value]] = {}, {}  # counterparts, by place in memory
        self.unknown: list[str] = []  # results of which nobody knows whether they agree
        self.led_to: dict[tuple[Side, int], Status] = {}  # what calls without a counterpart led to, by side and id
        self._paired: tuple[set[int], set[int]] = set(), set()
        self._seen_at: dict[int, int] = {}  # at which call of the target findings were seen, by their number
        self._is_near: dict[int, bool] = {}  # whether the results of a judged call of the target's are near, by its id
        self._noise = 0.0  # the greatest error of what agrees
        dtypes = computed_dtype(ranks[0]), computed_dtype(ranks[1])
        self._rounding = max((torch.finfo(one).eps for one in dtypes if one is not None), default=0.0) / _ROUNDED
        self._computed_in = None if None in dtypes else tuple(dtype_text(one) for one in dtypes if one is not None)

    def run(self, pairs: Sequence[Pair]) -> list[Pair]:
        """Walk pairs, in the order of the target's calls; return those that are none, as they read other shapes."""
        kept = repaired([pair for pair in pairs if not self._reads_other_shapes(pair)], self.flows)
        self._paired = {pair.target.id for pair in kept}, {pair.baseline.id for pair in kept}
        for pair in sorted(kept, key=lambda pair: pair.target.id):
            is_view = self.flows[0].is_view(pair.target) or self.flows[1].is_view(pair.baseline)
            self._view(pair) if is_view else self._pair(pair)
        return [pair for pair in pairs if pair.target.id not in self._paired[0]]

    def _reads_other_shapes(self, pair: Pair) -> bool:
        """Return True if what both calls read has other shapes, and not because it came so from outside."""
        read = read_by_both(self.flows, pair.target, pair.baseline).values()
        return any(one.shape != other.shape and not self._are_sources(one, other) for one, other in read)

    def is_near(self, target: Value, baseline: Value, close: Closeness) -> bool:
        """Return True if two values are as near as if nothing that was different had gone into them."""
        if close.level == "hash" or not close.known:
            return close.bitwise
        return close.bitwise or (self._distance(target, baseline, close, State("same"))[1] <= 1)

    def drop_what_meets_again(self) -> bool:
        """Drop findings about what a call is given where all that comes of it is the same again; return True if any."""
        kept = []
        for number, finding in enumerate(self.evidence.findings):
            seen_at = self._seen_at.get(number)
            if finding.kind == "argument" and self._shows_otherwise(finding.row):
                seen_at = finding.row.place.id
            if seen_at is None or not self._meets_again(seen_at):
                kept.append(finding)
        dropped = len(kept) < len(self.evidence.findings)
        self.evidence.findings[:] = kept
        return dropped

    def keep_to_contents(self) -> None:
        """Mark the findings of an op that was given the same contents on both sides as found by that, not by the order.

        Whichever calls are counterparts, one op makes the same of the same; with other arguments it is another call,
        which nobody misses if the other side has none with these.
        """
        contents = _Contents(self.flows[0]), _Contents(self.flows[1])
        for number, finding in enumerate(self.evidence.findings):
            row = finding.row
            if row.target is None or row.baseline is None or finding.kind == "random":
                continue
            calls = self.ranks[0].call(row.target.id), self.ranks[1].call(row.baseline.id)
            is_same = calls[0].op == calls[1].op and contents[0].read(calls[0]) == contents[1].read(calls[1])
            if is_same and contents[0].are_known(calls[0]) and calls[0].kernel is None and not self._has_both(calls):
                self.evidence.findings[number] = replace(finding, row=replace(row, how="flow"))

    def _has_both(self, calls: tuple[Call, Call]) -> bool:
        """Return True if two calls have other arguments, and one of them those of a call of the other side."""
        ours, theirs = map(_literals, calls)
        if ours == theirs:
            return False
        kinds = [flow.rank.calls.filter(op=calls[0].op) for flow in self.flows]
        return any(_literals(call) == ours for call in kinds[1]) or any(_literals(call) == theirs for call in kinds[0])

    def _shows_otherwise(self, row: Row) -> bool:
        """Return True if a result shows that it is another one, or if statistics are all that is known of it."""
        by_statistics = row.closeness is not None and row.closeness.level == "statistic"
        return by_statistics or self._is_near.get(row.place.id) is False

    def _meets_again(self, number: int) -> bool:
        """Return True if all that comes of what one of the target's calls makes is the same again on both sides."""
        waiting, seen, has_met = [self.ranks[0].call(number)], {number}, False
        while waiting:
            call = waiting.pop()
            is_near = self._is_near.get(call.id)
            if is_near:
                has_met = True
                continue
            readers = self.flows[0].readers(call)
            if not readers and (is_near is False or call.mutated):
                return False
            waiting += [reader for reader in readers if reader.id not in seen]
            seen |= {reader.id for reader in readers}
        return has_met

    def describe(self, pair: Pair) -> None:
        """Add rows of a pair that is not judged: what is known of its values."""
        theirs = dict(pair.baseline.input_values()) | dict(pair.baseline.result_values())
        for slot, value in (*pair.target.input_values(), *pair.target.result_values()):
            if slot in theirs:
                close, state = self.known.close(value, theirs[slot]), self.state(value, theirs[slot])
                self.evidence.known(pair, slot, close, "unknown" if state is None else state.status)

    def state(self, target: Value, baseline: Value) -> State | None:
        """Return what is known of two values, also as views of what paired calls made; None if nothing is."""
        if target.undefined or baseline.undefined:
            return _UNDEFINED
        found = self.known.find(target, baseline)
        if found is None:
            writers = self.flows[0].writer(target), self.flows[1].writer(baseline)
            if writers[0] is not None and writers[1] is not None:
                found = self.known.find(writers[0][2], writers[1][2])
                if found is not None and self._are_other_views(target, baseline, found):
                    return None
        return found

    def _are_other_views(self, target: Value, baseline: Value, whole: State) -> bool:
        """Return True if two values see other elements of memory that is the same on both sides."""
        close = self.known.close(target, baseline)
        if whole.status not in ("same", "within") or close.bitwise or not close.known:
            return False
        return close.shape is not None or self._distance(target, baseline, close, whole)[1] > 1

    def _distance(self, target: Value, baseline: Value, close: Closeness, starts: State) -> tuple[float, float]:
        """Return the limit for two values, and how many times that they are apart."""
        depth = max(self.known.depth, starts.depth)
        limit, ratio = distance(target, baseline, close, depth, starts.error)
        if close.level == "statistic":
            writers = self.flows[0].writer(target), self.flows[1].writer(baseline)
            sums = zip(writers, (target, baseline), strict=True)
            ratio /= max(1.0, *(times_cancelled(one[0], one[1], value) for one, value in sums if one is not None), 1.0)
        return limit, ratio

    def compare(self, target: Value, baseline: Value) -> tuple[Judgement, str, Behind | None]:
        """Judge two values that no pair made; return what is said, the sentence if it is a finding, what is behind."""
        close = self.known.close(target, baseline)
        if self._are_sources(target, baseline):
            self.from_outside[0].setdefault(target.record.place, baseline)
            self.from_outside[1].setdefault(baseline.record.place, target)
            return *self._sources.judge(target, baseline, close), None
        behind = Behind([], []), Behind([], [])
        if not close.bitwise:
            behind = self._behind(0, target), self._behind(1, baseline)
        both = Behind([*behind[0].calls, *behind[1].calls], behind[0].starts)
        said, text = self._made_otherwise((target, baseline), close, both)
        for side in (0, 1):
            for call in behind[side].calls:
                worst = self.led_to.get((side, call.id), "same")
                self.led_to[side, call.id] = max(worst, said.status, key=lambda status: WORSE[status])
        return said, text, both

    def _made_otherwise(self, values: tuple[Value, Value], close: Closeness, both: Behind) -> tuple[Judgement, str]:
        """Judge two values that calls without a counterpart made, or calls that are none of each other."""
        target, baseline = values
        if target.unsettled or baseline.unsettled or not close.known:
            return Judgement("unknown", note=close.reason), ""
        if close.bitwise:
            return Judgement("same", floor_from="exact"), ""
        starts = inputs_of(both.starts)
        limit, ratio = self._distance(target, baseline, close, State(starts.worst, starts.error, starts.depth))
        if ratio <= 1:
            return Judgement("within", floor=limit, floor_from="depth", ratio=ratio), ""
        names = [[call.name for call in both.calls if call.rank is rank] for rank in self.ranks]
        texts = [", ".join(some[:_MOST_NAMED]) + (", …" if len(some) > _MOST_NAMED else "") for some in names]
        made = [maker.name for flow, value in zip(self.flows, values, strict=True) if (maker := flow.maker(value))]
        text = "it is given another value than in the baseline"
        if len(made) == len(values):
            text = f"it reads what {made[0]} made, in the baseline what {made[1]} made"
        if names[0] or names[1]:
            one, other = (some or "no call without a counterpart" for some in texts)
            text = f"what it is given was made by {one}; in the baseline by {other}"
        return Judgement("different", starts.worst != "different", limit, "depth", ratio), text

    def blame_behind(self, kind: FindingKind, row: Row, text: str, behind: Behind | None) -> None:
        """Add a finding about the calls behind a value, at the odd one among them, else at the row."""
        seen = row.place
        if row.slot.partition(".")[0] in ("input", "output"):
            self._seen_at[len(self.evidence.findings)] = seen.id
        if behind is None or not behind.calls:
            kind = "rewired" if kind == "region" else kind
            self.evidence.blame(kind, row, text, "", (seen.id, 0))
            return
        wrong = next((call for call in behind.calls if self._is_wrong(call)), None)
        odd = wrong or self._odd(behind.calls)
        text = f"{text}; {odd.name} is off by more than rounding from a float64 replay" if wrong is not None else text
        side = 0 if odd.rank is self.ranks[0] else 1
        place = self.evidence.place(odd)
        at = replace(row, target=None if side else place, baseline=place if side else None, slot="output")
        first = [call for call in behind.calls if call.rank is self.ranks[0]]
        order = (seen.id if side and not first else min(seen.id, first[0].id if first else seen.id), 0)
        self.evidence.blame("region", at, f"{text}; seen at {row.slot} of {seen.call}", "", order)
        calls = tuple(call.name for call in behind.calls)
        self.evidence.findings[-1] = replace(self.evidence.findings[-1], calls=calls, kind=kind)

    # -- one pair ----------------------------------------------------------------------------------------------------

    def _view(self, pair: Pair) -> None:
        """Note what both look at: what paired calls were given from outside is judged at once."""
        for slot, (target, baseline) in read_by_both(self.flows, pair.target, pair.baseline).items():
            if self.state(target, baseline) is not None or self._are_sources(target, baseline):
                self._input(pair, slot, target, baseline)
        theirs = dict(pair.baseline.output_values())
        for slot, value in pair.target.output_values():
            state = self.state(value, theirs[slot]) if slot in theirs else None
            if state is not None:
                self.evidence.known(pair, slot, self.known.close(value, theirs[slot]), state.status)

    def _are_sources(self, target: Value, baseline: Value) -> bool:
        return self.flows[0].maker(target) is None and self.flows[1].maker(baseline) is None

    def _pair(self, pair: Pair) -> None:
        read = read_by_both(self.flows, pair.target, pair.baseline)
        results = {
            slot: (*values, self.known.close(*values))
            for slot, values in made_by_both(self.flows, pair.target, pair.baseline).items()
        }
        makes_same = bool(results) and all(c.bitwise and not is_of_other_numbers(c) for _, _, c in results.values())
        before = len(self.evidence.findings)
        states = [self._input(pair, slot, *values, makes_same=makes_same) for slot, values in read.items()]
        closes = [self.known.close(*values) for values in read.values()]
        is_blank = all(close.undefined for _, _, close in results.values())  # else what is compared depends on no blank
        inputs = inputs_of(
            [self._at_least_rounded(state) for state in states if is_blank or not state.undefined],
            same_shapes=all(close.shape is None for close in closes),
            same_dtypes=all(close.dtype is None for close in closes),
        )
        differences = self._differences(pair)
        judged = self._judge.results(pair.target, pair.baseline, results, inputs)
        blamed = len(self.evidence.findings) > before
        for slot, (target, baseline, close) in results.items():
            said = judged[slot]
            if not is_workspace(pair.target.op, slot):
                said = self._with_arguments(said, close, inputs, differences)
                if differences and close.bitwise and any(state.undefined for state in states):
                    self.unknown.append(f"{pair.target.name}.{slot}")
                    said = replace(said, status="unknown", note=UNWRITTEN)
            if close.reason == NOT_TOLD and not self.flows[0].readers(pair.target):
                self.unknown.append(f"{pair.target.name}.{slot}")
            state = _state(said, close, inputs.depth + 1, undefined=close.undefined or inputs.undefined)
            self._keep(target, baseline, state)
            row = self.evidence.judged(pair, slot, close, said, inputs)
            if said.guilty and not blamed:
                blamed = True
                self._blame(row, said, inputs, differences)
        if results:
            alike = (self.is_near(*values) for values in results.values())
            self._is_near[pair.target.id] = all(alike)
            self._note_proof(pair, list(judged.values()))

    def _input(self, pair: Pair, slot: str, target: Value, baseline: Value, *, makes_same: bool = False) -> State:
        """Judge one input of a pair, once; one that differs and `makes_same` results counts for nothing."""
        close = self.known.close(target, baseline)
        state = self.state(target, baseline)
        if state is not None:
            self.evidence.known(pair, slot, close, state.status)
            return state
        said, text, behind = self.compare(target, baseline)
        if makes_same and said.status == "different":
            self.evidence.known(pair, slot, close, "unknown", "its result is bitwise equal")
            return State("same")
        said = self._judge.rule(pair.target, slot, close) or said
        starts = inputs_of(behind.starts) if behind is not None else None
        depth = 0 if starts is None else starts.depth + 1
        state = _state(said, close, depth)
        self._keep(target, baseline, state)
        row = self.evidence.judged(pair, slot, close, said)
        if said.guilty:
            self.blame_behind("source" if behind is None else "region", row, text, behind)
        return state

    def _at_least_rounded(self, state: State) -> State:
        """Return a state with the error that rounding left, of which statistics show less than elements have."""
        return replace(state, error=max(state.error, self._rounding)) if state.error else state

    def _keep(self, target: Value, baseline: Value, state: State) -> None:
        self.known.keep(target, baseline, state)
        if state.status in ("same", "within"):
            self._noise = max(self._noise, state.error)

    def _note_proof(self, pair: Pair, judged: Sequence[Judgement]) -> None:
        self.judged.add(pair.target.id)
        if not all(said.proven for said in judged):
            self.unproven[pair.target.id] = pair.target

    def _differences(self, pair: Pair) -> list[ArgumentDifference]:
        """Return the arguments that differ, but numbers that noise explains, and dtypes in which both sides compute."""
        declared = {*self._sources.precisions, self._computed_in}
        return [
            found
            for found in argument_differences(pair.target, pair.baseline)
            if (found.dtypes is None or found.dtypes not in declared) and not self._is_noise(found)
        ]

    def _is_noise(self, found: ArgumentDifference) -> bool:
        """Return True if numbers differ by no more than what was computed before: they may have been read from it."""
        limit = min(AMPLIFIES * self._noise, _MOST_NOISE * self._rounding, _MOST_OF_A_NUMBER)
        return bool(found.numbers) and all(abs(one - other) <= limit * abs(other) for one, other in found.numbers)

    def _with_arguments(
        self, said: Judgement, close: Closeness, inputs: Inputs, differences: list[ArgumentDifference]
    ) -> Judgement:
        """Hold other arguments, or another dtype, against a result that is not bitwise equal."""
        if not close.known:
            said = replace(said, seen="; ".join(map(str, differences)))
        if said.floor_from == "rule" or not inputs.agree or not inputs.same_shapes:
            return said
        declared = {*self._sources.precisions, self._computed_in} if close.dtype is not None else set()
        wrong_dtype = close.dtype is not None and inputs.same_dtypes and close.dtype not in declared
        is_equal = close.bitwise and not is_of_other_numbers(close)
        if wrong_dtype or (not is_equal and close.known and differences):
            return replace(said, status="different", guilty=True)
        return said

    def _blame(self, row: Row, said: Judgement, inputs: Inputs, differences: list[ArgumentDifference]) -> None:
        close = row.closeness
        assert close is not None
        kind: FindingKind = "op"
        if differences and inputs.same_shapes:
            kind, text = "argument", f"it was called with other arguments: {'; '.join(map(str, differences))}"
        elif close.shape is not None:
            kind, text = "shape", f"its result has shape {list(close.shape[0])}, in the baseline {list(close.shape[1])}"
        elif said.note == OTHER_DRAWS:
            kind, text = "random", said.note
        elif close.nonfinite:
            kind, text = "nonfinite", "NaN or Inf stand at other places of its result"
        elif close.dtype is not None and said.ratio is None:
            kind, text = "dtype", f"its result is {close.dtype[0]}, in the baseline {close.dtype[1]}"
        else:
            text = "its result is wrong for its inputs" if said.own else "its result does not agree"
        if said.note and said.note not in text:
            text = f"{text} ({said.note})"
        self.evidence.blame(kind, row, text, said_of(inputs), (row.place.id, 1))

    # -- calls without a counterpart ---------------------------------------------------------------------------------

    def _behind(self, side: Side, value: Value) -> Behind:
        """Return the calls without a counterpart behind a value, and the states of what they start from."""
        flow, paired = self.flows[side], self._paired[side]
        calls: dict[int, Call] = {}
        starts: list[State] = []
        waiting, seen = [value], {value.id}
        while waiting and len(seen) < _MOST_BEHIND:
            one = waiting.pop()
            maker = flow.maker(one)
            if maker is None or (maker.id in paired and not flow.is_view(maker)):
                state = self._start(side, one)
                starts += [] if state is None else [state]
                continue
            if maker.id not in paired:
                calls.setdefault(maker.id, maker)
            given = [v for _, v in maker.input_values() if v.id not in seen]
            seen |= {v.id for v in given}
            waiting += given
        return Behind([calls[number] for number in sorted(calls)], starts)

    def _start(self, side: Side, value: Value) -> State | None:
        """Return what is known of a value that calls without a counterpart start from."""
        writer = self.flows[side].writer(value)
        for one in (value, None if writer is None else writer[2]):
            partner = None if one is None else self.known.partner(side, one)
            if one is not None and partner is not None:
                return self.known.find(partner, one) if side else self.known.find(one, partner)
        return None

    def _is_wrong(self, call: Call) -> bool:
        """Return True if a call is off by more than rounding, by a float64 replay."""
        replays = self._judge.replays
        errors = replays.errors(call) if replays.enabled and not self._is_view(call) else ""
        return isinstance(errors, dict) and any(error.ratio > SUSPECT for error in errors.values())

    def _odd(self, calls: Sequence[Call]) -> Call:
        """Return the first call whose op the other side's calls do not have as often, else the first."""
        sides = [[call for call in calls if call.rank is rank and self._computes(call)] for rank in self.ranks]
        for side in (0, 1):
            left = Counter(call.op for call in sides[1 - side])
            for call in sides[side]:
                if not left[call.op]:
                    return call
                left[call.op] -= 1
        return next(iter([*sides[0], *sides[1]]), calls[0])

    def _computes(self, call: Call) -> bool:
        return not self._is_view(call) and not all(value.undefined for _, value in call.result_values())

    def _is_view(self, call: Call) -> bool:
        return self.flows[0 if call.rank is self.ranks[0] else 1].is_view(call)

    def _undefined_in(self, call: Call) -> Undefined:
        """Return which elements of a call's results depend on memory that nothing had written."""
        for memory, rank in zip(self._undefined, self.ranks, strict=True):
            if call.rank is rank:
                found = {slot: memory.elements(value) for slot, value in call.result_values()}
                return {slot: elements == DEPENDS for slot, elements in found.items() if elements is not None}
        return {}  # another rank's, as part of a collective

    def alone(self, pairs: Sequence[Pair]) -> Iterator[tuple[Side, Call]]:
        """Yield the calls of any kind that are in none of some pairs, with their side."""
        taken = {p.target.id for p in pairs}, {p.baseline.id for p in pairs}
        for side in (0, 1):
            yield from ((side, call) for call in self.ranks[side].calls if call.id not in taken[side])


def _state(said: Judgement, close: Closeness, depth: int, *, undefined: bool = False) -> State:
    noise = close.metrics.rmse if close.metrics is not None else 0.0
    return State(said.status, close.error or 0.0, depth, noise, undefined)


def repaired(pairs: Sequence[Pair], flows: tuple[DataFlow, DataFlow]) -> list[Pair]:
    """Return pairs of calls; those that read other contents change partners where that makes them read the same.

    Args:
        pairs: as they were aligned.
        flows: of the target and the baseline.
    """
    ours, theirs = _Contents(flows[0]), _Contents(flows[1])
    odd = [pair for pair in pairs if ours.read(pair.target) != theirs.read(pair.baseline)]
    paired = {pair.target.id for pair in pairs}, {pair.baseline.id for pair in pairs}
    lone = [[call for call in flows[side].calls() if call.id not in paired[side]] for side in (0, 1)]
    by_contents: dict[Hashable, list[Call]] = {}
    for call in [*(pair.baseline for pair in odd), *lone[1]]:
        by_contents.setdefault(theirs.key(call), []).append(call)
    found: dict[int, Call] = {}
    for call in [*(pair.target for pair in odd), *lone[0]]:
        alike = by_contents.get(ours.key(call)) if ours.are_known(call) else None
        if alike:
            found[call.id] = alike.pop(0)
    if not found:
        return [*pairs]
    taken = {call.id for call in found.values()}
    left: dict[Hashable, list[Call]] = {}  # those that found no other share what partners are left, in order
    for pair in odd:
        if pair.baseline.id not in taken:
            left.setdefault((pair.baseline.op, pair.baseline.phase), []).append(pair.baseline)
    for pair in odd:
        partners = left.get((pair.target.op, pair.target.phase))
        if pair.target.id not in found and partners:
            found[pair.target.id] = partners.pop(0)
    odd_ids = {pair.target.id for pair in odd}
    kept = [_with_partner(pair, found.get(pair.target.id)) for pair in pairs]
    kept = [pair for pair in kept if pair.target.id not in odd_ids or pair.target.id in found]
    return [*kept, *(Pair(call, found[call.id], "flow") for call in lone[0] if call.id in found)]


def _with_partner(pair: Pair, partner: Call | None) -> Pair:
    is_other = partner is not None and partner.id != pair.baseline.id
    return Pair(pair.target, partner, "flow") if is_other and partner is not None else pair


class _Contents:
    """What the calls of one side read, as digests; each value's is taken once."""

    def __init__(self, flow: DataFlow) -> None:
        self._flow = flow
        self._digests: dict[int, str | None] = {}

    def read(self, call: Call) -> tuple[str | None, ...]:
        """Return the digests of what a call reads."""
        return tuple(self._digest(value) for _, value in self._flow.reads(call))

    def _digest(self, value: Value) -> str | None:
        if value.id not in self._digests:
            self._digests[value.id] = digest_of(value)
        return self._digests[value.id]

    def key(self, call: Call) -> Hashable:
        """Return what a call computes, and of what."""
        return call.op, call.phase, _literals(call), self.read(call)

    def are_known(self, call: Call) -> bool:
        """Return True if what a call reads is known, and is something."""
        read = self.read(call)
        return bool(read) and None not in read and not self._flow.is_view(call)


def _literals(call: Call) -> str:
    args, kwargs = call.inputs
    return repr([_literal(item) for item in (*args, *kwargs.values())])


def _literal(item: object) -> object:
    """Return an argument without its tensors."""
    if isinstance(item, Value):
        return "tensor"
    return [_literal(entry) for entry in item] if isinstance(item, (list, tuple)) else item
