"""The first cause of a difference: the first calls behind the cut on both sides, and how they differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, takewhile
from typing import Final

from ...dump import Call, Value
from ...store.op_names import reads_no_elements
from ..cone.cone import Cone, cone_of
from ..ends.ends import End, earliest
from ..evaluation.evaluation import Evaluation
from ..evaluation.numbers_in_python import NearCall
from ..evidence.evidence_rows import Pair
from ..evidence.findings import FindingKind
from ..flow.argument_differences import argument_differences
from ..pairing.call_keys import line_of, place_of
from ..parts.blocks import dimensions_of
from ..parts.parts import PartsFound
from ..sources.batch_order import BatchOrder
from ..sources.stand_ins import Sources
from .candidates import Candidates, are_asked_otherwise, asked_otherwise
from .corrections import MOST_WORK, Corrections
from .cut_gradients import CutGradients
from .left_alone import SIDES, left_alone, name_of, parameter_of
from .other_layout import FORWARD, OtherLayout, factor_sentence
from .other_sources import computing, first_reader, other_source
from .region import RegionToCorrect
from .repair import Asked, Like, Repair
from .state_names import StateNames
from .told_apart import tell_apart
from .uncleared import uncleared
from .unread import unread
from .unwritten import unwritten
from .wiring import Wiring

Odd = tuple[Sequence[End], Sequence[End]]
_MOST_NAMED: Final = 3
_MOST_FIRST: Final = 2  # regions that are asked before the whole one
_OF_FIRST: Final = 0.5  # of the work that is left, for one of them
_KINDS: Final[dict[str, FindingKind]] = {
    "loss": "loss",
    "gradient": "gradient",
    "left": "left",
    "output": "result",
    "read": "result",
}


@dataclass(frozen=True, slots=True)
class Cause:
    """What makes two steps different functions.

    At least one of the two calls is there; `side` says whose it is that the cause is named by.
    """

    kind: FindingKind
    target: Call | None
    baseline: Call | None
    text: str  # one sentence
    inputs: str = ""  # what is known of the inputs, a clause
    slot: str = "output"
    calls: tuple[str, ...] = ()  # of both regions
    takes_another: bool = False  # of the results of one call, each side goes on with another

    @property
    def named(self) -> Call:
        """The call that the cause is named by."""
        found = self.target or self.baseline
        assert found is not None
        return found


class Causes:
    """Finds the cause of ends that differ.

    It has more than twenty methods, one for each way in which two calls may differ.

    Attributes:
        odd: the ends that differ, and not by how the work is laid out.
        cones: what lies behind these.
        repair: evaluates the target with one of its values replaced; None: what is behind the cut is taken as it is.
        tells_floats_apart: floats that two calls at one place make otherwise are no other values of the other side.
    """

    tells_floats_apart = True

    def __init__(
        self,
        sides: tuple[Evaluation, Evaluation],
        sources: Sources,
        ends: tuple[list[End], list[End]],
        pairs: Sequence[Pair] = (),
        parts: PartsFound | None = None,
    ) -> None:
        """Prepare to look.

        Args:
            sides: evaluated.
            sources: how those of both sides were matched.
            ends: of both sides.
            pairs: of calls that stand at the same place in both programs.
            parts: where parts of the other side's values were looked for, if they were.
        """
        self._sides = sides
        self._pairs = {pair.target.id: pair for pair in pairs}, {pair.baseline.id: pair for pair in pairs}
        self._sources = sources
        self._ends = ends
        self._parts = parts
        self.repair: Repair | None = None
        self._layout: OtherLayout | None = None
        self._candidates = Candidates(sides, sources, ends, self._pairs)
        self.odd: Odd = ([], [])
        self.cones: tuple[Cone, Cone] = (Cone(), Cone())
        self._wiring = Wiring(sides, self._pairs, self._candidates, self._is_part, self._is_laid_elsewhere)
        tell_apart(sides, pairs, floats=self.tells_floats_apart)
        if parts is not None:
            parts.let_wholes_meet(pairs)

    def find(self, odd: Odd, near: Sequence[NearCall] = ()) -> Cause:
        """Return the cause of some ends that one side lacks, or of calls that were given another number."""
        cause = self._found(odd, near)
        factor = factor_sentence(self._sides, self._ends)
        return replace(cause, text=f"{cause.text}; {factor}") if factor else cause

    def of_order(self, order: BatchOrder) -> Cause | None:
        """Return the cause where a rank has its batch in another order than the ranks that compute with its rows."""
        given = {self._sides[0].numbers.get(value.id, 0) for value in self._sources.target}
        first = first_reader(self._sides[0], given)
        if first is None:
            return None
        pair = self._pairs[0].get(first.id)
        slot = next((slot for slot, value in first.input_values() if self._sides[0].numbers.get(value.id) in given), "")
        text = f"{order}; that of the ranks that it computes with is not"
        return Cause("source", first, None if pair is None else pair.baseline, text, "", slot)

    def _found(self, odd: Odd, near: Sequence[NearCall]) -> Cause:
        if not (odd[0] or odd[1]):
            return self._same_op(near[0].target, near[0].baseline)
        flows = self._sides[0].flow, self._sides[1].flow
        if (alone := left_alone(odd, flows)) is not None:
            return self._unread(odd) or _at("left", *alone)
        self._layout = OtherLayout(self._sides, self._ends, odd, self._parts)
        if (lacking := self._layout.lacking_terms(odd)) is not None:
            return _at("gradient", *lacking)
        odd = self._without_losses_of_parts(self._layout.rest)
        self.odd, self.cones = odd, self._behind(odd)
        kinds, first_odd = _first_group(odd, self._ends)
        cones = self._behind(first_odd)
        if kinds != FORWARD or _reaches_backward(cones):
            if (kept := uncleared(self._sides, self._ends, odd)) is not None:
                return Cause("gradient", kept.target, kept.baseline, kept.text, takes_another=True)
            cut = CutGradients(self._sides, self._ends).find(cones, first_odd)
            if cut is not None:
                return _at("gradient", cut.side, cut.call, cut.text)
        behind_first = self._behind(earliest(first_odd, flows))
        if any(cone.calls for cone in behind_first):
            first_odd, cones = earliest(first_odd, flows), behind_first
        cause = self._of_cones(cones, kinds, first_odd)
        if all(end.kind == "left" for ends in odd for end in ends):
            side = 0 if odd[0] else 1
            name = name_of(self._sides[side].flow, odd[side][0].value)
            cause = replace(cause, text=f"{cause.text}; {name} is left behind otherwise")
        return cause

    def _without_losses_of_parts(self, odd: Odd) -> Odd:
        """Return ends without the losses, where one side has more of them and what comes of them differs too.

        Losses of parts are no part of the other side's loss: what is made of them shows what is wrong.
        """
        counts = [sum(end.kind == "loss" for end in some) for some in self._ends]
        rest = [end for end in odd[0] if end.kind != "loss"], [end for end in odd[1] if end.kind != "loss"]
        is_trained = any(end.kind == "gradient" for some in rest for end in some)
        return rest if counts[0] != counts[1] and is_trained else odd

    def may_be_innocent(self, cause: Cause) -> bool:
        """Return True if something else behind the ends may make them differ, and all of it can be evaluated."""
        if not self._sides[0].unproven.keys().isdisjoint(self.cones[0].calls):
            return False  # a corrected value does not reach the ends through a call that is not run
        sources = [{value.storage for value in cone.sources.values()} for cone in self.cones]
        return any(len(some) > 1 for some in sources) or any(
            call is not cause.target and call is not cause.baseline and self._is_done_otherwise(side, call)
            for side, cone in enumerate(self.cones)
            for call in cone.calls.values()
            if call.phase == cause.named.phase
        )

    def _is_done_otherwise(self, side: int, call: Call) -> bool:
        """Return True if the other side makes no such call, is given other arguments, or reads what others made."""
        pair = self._pairs[side].get(call.id)
        if pair is None or pair.target.op != pair.baseline.op or are_asked_otherwise(pair.target, pair.baseline):
            return True
        theirs = dict(self._sides[1].flow.reads(pair.baseline))
        for slot, value in self._sides[0].flow.reads(pair.target):
            maker = self._sides[0].flow.maker(value)
            known = None if maker is None else self._pairs[0].get(maker.id)
            if known is not None and slot in theirs and self._sides[1].flow.maker(theirs[slot]) is not known.baseline:
                return True
        return False

    def differences(self, cause: Cause) -> list[tuple[Value, Value]]:
        """Return the values of the target that a cause makes differ, each with what the baseline has there."""
        target, baseline = cause.target, cause.baseline
        if target is None or baseline is None or cause.takes_another or target.id not in self.cones[0].calls:
            return []
        flows = [side.flow for side in self._sides]
        if cause.kind == "source":
            ours, theirs = dict(flows[0].reads(target)), dict(flows[1].reads(baseline))
            pairs = [(ours[slot], theirs[slot]) for slot in (cause.slot,) if slot in ours and slot in theirs]
            pairs = [pair for pair in pairs if all(flow.maker(v) is None for flow, v in zip(flows, pair, strict=True))]
        elif flows[0].is_view(target) or flows[1].is_view(baseline) or _have_other_backwards(target, baseline):
            return []  # it shows memory that others read too, or its backward differs as well
        else:
            theirs = dict(flows[1].results(baseline))
            pairs = [(value, theirs[slot]) for slot, value in flows[0].results(target) if slot in theirs]
        is_alike = all(one.shape == other.shape and one.dtype == other.dtype for one, other in pairs)
        return pairs if is_alike else []

    def _of_cones(self, cones: tuple[Cone, Cone], kinds: Container[str], odd: Odd) -> Cause:
        """Return the cause in what lies behind some ends of these kinds."""
        if (found := unwritten(self._sides, cones)) is not None:
            return Cause("rewired", found[0], found[1], found[2], "", found[3])
        if (calls := self._reading_others(cones)) is not None:
            return calls
        if kinds == FORWARD and (stepped := self._stepped_before(cones)) is not None:
            return stepped
        whole: tuple[Cone, Cone] | None = None
        if self.repair is not None and self._are_written_otherwise(cones):
            whole, cones = cones, self.repair.narrow(cones, odd)
        in_other_order = self._layout is not None and self._layout.is_in_other_order
        is_packed = self._parts is not None and self._parts.is_packed
        firsts = self._candidates.find(cones, kinds, in_other_order=in_other_order, is_packed=is_packed)
        if firsts[0] is None and firsts[1] is None:
            return self._at_an_end(odd)
        given = None if self.repair is None else self._given_otherwise(cones, self.repair)
        cause = given or self._behind_the_cut(cones, firsts[0], firsts[1])
        if whole is not None or (cause.kind == "region" and self._is_of_views(cause)):
            corrected = self._corrected(whole or cones, odd, cause)
            if corrected is not None:
                return corrected
        repaired = [] if self.repair is None else self.repair.found
        return self._with_last(cause, repaired[-1][0], repaired[-1][1].value) if repaired else cause

    def _given_otherwise(self, cones: tuple[Cone, Cone], repair: Repair) -> Cause | None:
        """Return the cause where rows lie in other places, and a call was given other places, labels or another mask.

        That is the first call that computes with integers of its own side: what is computed before has the same rows on
        both sides. Calls that both programs make at one place, such as a negation, pass on what they are given.
        """
        for _, call in sorted(cones[0].calls.items()):
            pair = self._pairs[0].get(call.id)
            if pair is None or not any(value.is_floating for _, value in self._sides[0].flow.results(call)):
                continue
            if not (repair.is_in_rows or repair.rows.are_given_to(call)):
                continue
            theirs = dict(self._sides[1].flow.reads(pair.baseline))
            for slot, value in self._sides[0].flow.reads(call):
                if value.is_floating or slot not in theirs:
                    continue
                makers = self._makers_of_integers(value, theirs[slot])
                if makers[0] is not None and makers[1] is not None and place_of(makers[0]) == place_of(makers[1]):
                    continue  # of floats that lie in other places
                if makers[0] is not None and makers[0].id in cones[0].calls:
                    there = "" if makers[1] is None else f", in the baseline by {_op(makers[1])} ({_line(makers[1])})"
                    text = f"what {call.name} reads in {slot} is made by {_op(makers[0])}{there}"
                    return Cause("region", makers[0], makers[1], text, calls=_names_of(cones))
        return None

    def _makers_of_integers(self, value: Value, theirs: Value) -> tuple[Call | None, Call | None]:
        """Return the calls that made integers of both sides: no views, and no calls at one place of both programs."""
        makers = [self._computed_by(side, one) for side, one in enumerate((value, theirs))]
        while makers[0] is not None and makers[1] is not None and place_of(makers[0]) == place_of(makers[1]):
            read = [self._sides[side].flow.reads(maker) for side, maker in enumerate(makers) if maker is not None]
            pairs = [(one, two) for (_, one), (_, two) in zip(*read, strict=False) if not one.is_floating]
            if not pairs:
                break
            makers = [self._computed_by(side, one) for side, one in enumerate(pairs[0])]
        return makers[0], makers[1]

    def _computed_by(self, side: int, value: Value) -> Call | None:
        """Return the call that made a value, or what it shows."""
        flow = self._sides[side].flow
        maker = flow.maker(value)
        while maker is not None and flow.is_view(maker) and flow.reads(maker):
            maker = flow.maker(flow.reads(maker)[0][1])
        return maker

    def _corrected(self, cones: tuple[Cone, Cone], odd: Odd, cause: Cause) -> Cause | None:
        """Return the cause where one change of a call of the target makes what the baseline makes.

        Args:
            cones: what lies behind some ends.
            odd: these ends.
            cause: what is taken for it. If it is an argument, and the baseline's is right there, it is the cause.
        """
        repair, work = self.repair, 0.0
        if repair is None or not repair.corrects:
            return None
        asked = [(value, like, "the ends agree") for value, like in reversed(repair.found)]
        named = {(end.kind, end.name): end for end in odd[1]}
        if not asked and (end := next((end for end in odd[0] if (end.kind, end.name) in named), None)) is not None:
            asked = [(end.value, Like(named[end.kind, end.name].value), f"{end.name} agrees")]
        for value, like, what in asked:
            behind = repair.behind(value, like) if repair.found else cones
            tried: set[int] = set()
            for each in (behind, repair.behind_proven(behind, value, like.value)):
                given = None if each is None or work > MOST_WORK else repair.region(each, value, like)
                if each is None or given is None:
                    continue
                looking = self._looking(given, each, tried)
                whole, found = looking(None), None
                if cause.kind == "argument" and whole.is_argument(cause.target, cause.baseline):
                    return cause
                for smaller in islice(repair.alike(each, value) if not tried else (), _MOST_FIRST):
                    found = looking(smaller).find(given.region.work + (MOST_WORK - work) * _OF_FIRST)
                    work += smaller.work
                    if found is not None:
                        break
                found = found or whole.find(MOST_WORK - work)
                work += given.region.work
                if found is not None and found.like is not None and self._candidates.is_added(1, found.like):
                    there = f"{found.spot} of {found.call.name} ({_line(found.call)})"
                    text = f"the target has no such call: {_op(found.like)}; {what} if {there} goes through it"
                    return Cause("region", None, found.like, text, "", calls=_names_of(each))
                if found is not None:
                    pair = self._pairs[0].get(found.call.id)
                    other = None if pair is None else pair.baseline
                    return Cause("region", found.call, other, f"{what} {found.text}", "", calls=_names_of(each))
                tried |= each[0].calls.keys()
        return None

    def _looking(
        self, given: Asked, behind: tuple[Cone, Cone], tried: Container[int]
    ) -> Callable[[RegionToCorrect | None], Corrections]:
        """Return what makes a search for a correction of a region, or of a part of it."""
        calls = list(self._sides[0].flow.calls()), list(self._sides[1].flow.calls())
        likes = [call for _, call in sorted(behind[1].calls.items())]
        return partial(Corrections, given, calls, likes, without=tried)

    def _is_of_views(self, cause: Cause) -> bool:
        """Return True if a cause names no call that computes."""
        return all(
            call is None or side.flow.is_view(call)
            for side, call in zip(self._sides, (cause.target, cause.baseline), strict=True)
        )

    def _stepped_before(self, cones: tuple[Cone, Cone]) -> Cause | None:
        """Return the cause where an optimizer ran before a forward that differs, and on one side alone."""
        first = [
            next((call for _, call in sorted(cone.calls.items()) if call.phase == "optimizer"), None) for cone in cones
        ]
        side = 0 if first[0] is not None else 1
        call, other = first[side], SIDES[1 - side]
        if call is None or first[1 - side] is not None:
            return None
        text = f"a forward of this step reads what the optimizer leaves here; none of the {other}'s does"
        return _at("rewired", side, call, text)

    def _are_written_otherwise(self, cones: tuple[Cone, Cone]) -> bool:
        """Return True if one of two cones has more than one line that the other side's program does not run."""
        lines = self._candidates.lines
        if not any(lines):
            return True
        alone = (
            {line_of(call) for call in cone.calls.values() if place_of(call) not in others}
            for cone, others in zip(cones, lines[::-1], strict=True)
        )
        return any(len(some) > 1 for some in alone)

    def _with_last(self, cause: Cause, target: Value, baseline: Value) -> Cause:
        """Return a cause with the last call that may be it, where both sides make the same in two ways up to there."""
        calls = self._sides[0].flow.maker(target), self._sides[1].flow.maker(baseline)
        if cause.kind != "region" or cause.target is None or cause.baseline is None:
            return cause
        if calls[0] is None or calls[1] is None or cause.named in calls:
            return cause
        last, like = (f"{call.name} ({_line(call)})" for call in calls if call is not None)
        rows = "" if self.repair is None else self.repair.rows_apart
        text = f"the ends agree if {last} makes what {like} of the baseline does{rows}"
        return replace(cause, text=f"{cause.text}; {text}")

    def _unread(self, odd: Odd) -> Cause | None:
        """Return the cause where one side alone changes a parameter, as the other does not read it."""
        for side in (0, 1):
            for end in odd[side]:
                calls = None if end.buffer is None else unread(self._sides, 1 - side, end.buffer)
                if calls is not None and end.buffer is not None and not calls[1].mutated:  # what writes it is the cause
                    here, there = calls
                    name = name_of(self._sides[side].flow, end.buffer)
                    text = f"only the {SIDES[side]} reads {name}, and changes it"
                    return Cause("rewired", here if side else there, there if side else here, text)
        return None

    def _behind(self, odd: Odd) -> tuple[Cone, Cone]:
        target, baseline = self._sides
        return (
            cone_of(target, baseline.holders, [end.value for end in odd[0]]),
            cone_of(baseline, target.holders, [end.value for end in odd[1]]),
        )

    def _of_odd_source(self, call: Call) -> Cause | None:
        """Return the cause where a call of the target reads a source that the baseline does not have."""
        for slot, value in self._candidates.odd_sources(0, call):
            return Cause("source", call, None, self._other_contents(value, None), "", slot)
        return None

    def _behind_the_cut(self, cones: tuple[Cone, Cone], first: Call | None, other: Call | None) -> Cause:
        pair = (
            self._reading_otherwise(cones[0].first, cones[1].first)
            or self._reading_otherwise(first, other)
            or self._with_other_arguments(first, other)
        )
        if pair is not None:
            return self._same_op(*pair)
        if first is not None and other is not None:
            made = self._candidates.is_made_there(0, first), self._candidates.is_made_there(1, other)
            if made[0] != made[1]:  # one side goes on from what is an end of the other
                return self._one_sided(None if made[0] else first, other if made[0] else None, cones)
        alone = [self._candidates.is_at_this_line_alone(side, call) for side, call in ((0, first), (1, other))]
        if first is not None and other is not None and first.op == other.op:
            if alone[0] != alone[1]:
                first, other = (first, None) if alone[0] else (None, other)
            elif self._may_stand_for(first, other):
                return self._same_op(first, other)
        for side, call in ((0, first), (1, other)):
            known = None if call is None else self._pairs[side].get(call.id)
            if known is not None and self._candidates.is_asked_otherwise(known):
                return self._same_op(known.target, known.baseline)
            if known is not None and self._shows_what_will_be(known):
                for slot, text in self._rewired(known.target, known.baseline):
                    return Cause("rewired", known.target, known.baseline, text, "", slot)
        if first is None or other is None:
            return self._one_sided(first, other, cones)
        counts = [Counter(call.op for call in cone.calls.values()) for cone in cones]
        lacks = counts[1][other.op] > counts[0][other.op]
        adds = counts[0][first.op] > counts[1][first.op]
        is_rewritten = any(self._candidates.lines) and all(alone)  # what one side lacks, it may do otherwise
        if lacks and not (adds or is_rewritten):
            return self._of_odd_source(first) or self._one_sided(None, other, cones)
        if adds and not (lacks or is_rewritten):
            return self._one_sided(first, None, cones)
        return replace(self._region(first, other), calls=_names_of(cones))

    def _region(self, first: Call, other: Call) -> Cause:
        told = f"the target computes {_op(first)}, the baseline {_op(other)}"
        if first.op == other.op:
            given = _given(first), _given(other)
            apart = f"the target of {given[0]}, the baseline of {given[1]}"
            told = f"both compute {_op(first)}, {'of other contents' if given[0] == given[1] else apart}"
        return Cause("region", first, other, f"{told} ({_line(other)})", self._same_inputs(first, other))

    def _shows_what_will_be(self, pair: Pair) -> bool:
        """Return True if two views differ as one shows memory that is being written, as a collective does."""
        calls = pair.target, pair.baseline
        return all(side.flow.is_view(call) for side, call in zip(self._sides, calls, strict=True)) and any(
            value.undefined for call in calls for _, value in call.input_values()
        )

    def _may_stand_for(self, target: Call, baseline: Call) -> bool:
        """Return True if two calls of an op are made at one place, or make as much of something both sides have."""
        if place_of(target) == place_of(baseline) or not any(self._candidates.lines):
            return True
        sizes = [{value.numel for _, value in call.result_values()} for call in (target, baseline)]
        return bool(sizes[0] & sizes[1]) and self._candidates.share_inputs(target, baseline)

    def _reading_otherwise(self, first: Call | None, other: Call | None) -> tuple[Call, Call] | None:
        """Return one of two calls and its like at the same place, if both read values that the two sides have."""
        for side, call in ((0, first), (1, other)):
            pair = None if call is None else self._pairs[side].get(call.id)
            if pair is None or place_of(pair.target) != place_of(pair.baseline):
                continue
            given = self._given(0, pair.target), self._given(1, pair.baseline)
            shapes = [[value.shape for _, value in one.input_values()] for one in (pair.target, pair.baseline)]
            are_known = all(
                number in self._sides[1 - at].holders or any(number == one for _, one in given[1 - at])
                for at in (0, 1)
                for _, number in given[at]
            )
            theirs = dict(self._sides[1].flow.reads(pair.baseline))
            apart = [
                (value, theirs[slot])
                for slot, value in self._sides[0].flow.reads(pair.target)
                if slot in theirs and self._sides[0].number_of(value) != self._sides[1].number_of(theirs[slot])
            ]
            is_wired_so = any(self._wiring.pair_that_made(*values) is None for values in apart)  # else it began before
            if given[0] != given[1] and shapes[0] == shapes[1] and are_known and is_wired_so:
                return pair.target, pair.baseline
        return None

    def _reading_others(self, cones: tuple[Cone, Cone]) -> Cause | None:
        """Return the cause where the first calls that compute are alike, and read other memory from outside."""
        found = [computing(side.flow, cone) for side, cone in zip(self._sides, cones, strict=True)]
        first, other = found
        if first is None or other is None or first.op != other.op or argument_differences(first, other):
            return None
        source = other_source(self._sides, self._sources, first, other)
        return None if source is None else Cause("source", first, other, source[1], "", source[0])

    def _with_other_arguments(self, first: Call | None, other: Call | None) -> tuple[Call, Call] | None:
        """Return the first call of one of both sides and its like on the other: given the same, but for arguments."""
        for side, call in ((0, first), (1, other)):
            if call is None or not self._sides[side].flow.reads(call):
                continue
            wanted, flow = self._given(side, call), self._sides[1 - side].flow
            likes = [one for one in flow.calls() if one.op == call.op and self._given(1 - side, one) == wanted]
            pairs = [(like, call) if side else (call, like) for like in likes]
            # A pair that is the same ends the search: the other side makes this very call.
            pairs = [*takewhile(lambda pair: are_asked_otherwise(*pair), pairs)]
            is_alone = self._candidates.is_at_this_line_alone(side, call)
            pairs = [pair for pair in pairs if self._candidates.may_be_other_arguments(*pair)]
            pairs = [p for p in pairs if self._candidates.is_at_this_line_alone(1 - side, p[1 - side]) == is_alone]
            if pairs:
                return min(pairs, key=lambda pair: place_of(pair[0]) != place_of(pair[1]))
        return None

    def _given(self, side: int, call: Call) -> list[tuple[str, int | None]]:
        return [(slot, self._sides[side].numbers.get(value.id)) for slot, value in self._sides[side].flow.reads(call)]

    def _one_sided(self, first: Call | None, other: Call | None, cones: tuple[Cone, Cone]) -> Cause:
        side = 1 if first is None else 0
        call = other if first is None else first
        assert call is not None
        places = self._places_of_inputs(side, call)
        is_like = self._candidates.is_made_as_often(side, call)
        next_call = None if is_like else self._in_its_place(side, call, cones[1 - side])
        what = "computes no such value at this line" if is_like else f"has no such call: {_op(call)}"
        if next_call is not None and next_call.op == call.op:
            what = "makes no such value"
        more = "" if next_call is None else f"; from there on it computes {_op(next_call)} ({_line(next_call)})"
        return Cause("region", first, other, f"the {SIDES[1 - side]} {what}{more}", places, calls=_names_of(cones))

    def _in_its_place(self, side: int, call: Call, cone: Cone) -> Call | None:
        """Return the call with which the other side, which lacks a call, goes on from what that reads."""
        given, other = self._candidates.numbers_read(side, call), self._sides[1 - side]
        for _, one in sorted(cone.calls.items()):
            if not (reads_no_elements(one.op) or given.isdisjoint(self._candidates.numbers_read(1 - side, one))):
                return one
        return first_reader(other, given)

    def _places_of_inputs(self, side: int, call: Call) -> str:
        """Return where in the other side's values the inputs of a call lie, in a clause; "" if none is a part."""
        found = []
        places = {} if self._parts is None else self._parts.places[side]
        for slot, value in self._sides[side].flow.reads(call):
            is_whole_there = bool(self._sides[1 - side].holders.get(self._sides[side].numbers.get(value.id, 0)))
            for held, block in () if is_whole_there else places.get(value.id, ())[:1]:
                whole = self._sides[1 - side].flow.rank.value_by_id(held)
                found.append(f"{slot} is {block} of the {SIDES[1 - side]}'s {self._maker(1 - side, whole)}")
        return "; ".join(found)

    def _same_op(self, first: Call, other: Call) -> Cause:
        """Return how two calls of one op differ: arguments, sources, random draws, wiring, dtype."""
        numbers = asked_otherwise(first, other)
        forward, its = (first.forward, other.forward) if numbers and first.phase == "backward" else (None, None)
        if forward is not None and its is not None and forward.op == its.op and are_asked_otherwise(forward, its):
            return self._same_op(forward, its)
        if numbers:
            text = "; ".join(map(str, numbers[:_MOST_NAMED]))
            name = numbers[0].name
            return Cause("argument", first, other, f"other arguments: {text}", self._same_inputs(first, other), name)
        if (source := other_source(self._sides, self._sources, first, other)) is not None:
            return Cause("source", first, other, source[1], "", source[0])
        read = self._sides[0].flow.reads(first)
        odd = [(slot, value) for slot, value in read if self._candidates.is_odd_source(0, value)]
        if odd:
            slot, value = odd[0]
            theirs = dict(self._sides[1].flow.reads(other)).get(slot)
            if (readers := self._first_readers(value, theirs)) is not None and readers[0].id < first.id:
                return self._same_op(*readers)
            return Cause("source", first, other, self._other_contents(value, theirs), "", slot)
        if first.id in self._sides[0].flow.rank.tables.random:
            return Cause("random", first, other, "it draws other random numbers")
        if self._layout is not None and (lacking := self._layout.reading_a_term(first, other)) is not None:
            return _at("gradient", *lacking)
        rewired = [*self._rewired(first, other)]
        if rewired and (cause := self._before_it(first, other, rewired[0][0])) is not None:
            return cause
        if rewired:
            return Cause("rewired", first, other, rewired[0][1], "", rewired[0][0])
        taken = [self._taken(side, call) for side, call in enumerate((first, other))]
        if taken[0] and taken[1] and taken[0] != taken[1]:
            text = f"the target goes on with {taken[0]} of it, the baseline with {taken[1]}"
            same = self._same_inputs(first, other)
            return Cause("rewired", first, other, text, same, taken[0], takes_another=True)
        special = self._shaped(first, other) or self._in_other_dtype(first, other)
        if special is not None:
            return special
        if (parted := self._wiring.parted_before(first, other)) is not None:
            return self._same_op(*parted) if parted[0].op == parted[1].op else self._region(*parted)
        pairs = zip(self._sides[0].flow.reads(first), self._sides[1].flow.reads(other), strict=False)
        parts = "parts of " if any(self._is_part(one, theirs) for (_, one), (_, theirs) in pairs) else ""
        text = f"from {parts}the same inputs it computes something else"
        inputs = self._places_of_inputs(0, first) if parts else self._same_inputs(first, other)
        return Cause("op", first, other, text, inputs)

    def _before_it(self, first: Call, other: Call, slot: str) -> Cause | None:
        """Return the cause before two calls that read something else in a slot, if it is known where that began."""
        reads = dict(self._sides[0].flow.reads(first))[slot], dict(self._sides[1].flow.reads(other))[slot]
        makers = self._wiring.viewed_otherwise(first, other, slot)
        if makers is None and self._layout is not None and not self._layout.is_reordered(*reads):
            makers = self._wiring.made_alike(first, other, slot)
        if makers is not None:
            return self._same_op(*makers)
        if (added := self._wiring.added(first, other, slot)) is not None:
            side, call = added
            return self._one_sided(None if side else call, call if side else None, (Cone(), Cone()))
        ops = self._wiring.other_op(first, other, slot)
        return None if ops is None else self._region(*ops)

    def _taken(self, side: int, call: Call) -> str:
        """Return the slots of a view that what differs was made of; "" of another call."""
        evaluation, other = self._sides[side], self._sides[1 - side]
        if not evaluation.flow.is_view(call):
            return ""
        slots = call.output_values()
        return ", ".join(s for s, v in slots if evaluation.numbers.get(v.id, 0) not in (0, *other.holders))

    def _shaped(self, first: Call, other: Call) -> Cause | None:
        """Return the view that gives the same elements another shape, if two calls read them in other shapes."""
        while (found := self._reading_apart(first, other, _is_shaped_otherwise)) is not None:
            slot, value, theirs = found
            makers = self._alike_makers(value, theirs)
            if makers is None or self._reading_apart(*makers, _is_shaped_otherwise) is None:
                break
            first, other = makers
        if found is None:
            return None
        text = f"{{}} is given the same elements in shape {list(value.shape)}, in the baseline {list(theirs.shape)}"
        for side, one in ((0, value), (1, theirs)):
            flow = self._sides[side].flow
            maker = flow.maker(one)
            if maker is not None and flow.is_view(maker):
                return _at("rewired", side, maker, text.format(first.name))
        return Cause("rewired", first, other, text.format("it"), "", slot)

    def _in_other_dtype(self, first: Call, other: Call) -> Cause | None:
        """Return where two calls that compute in other dtypes got these from."""
        if _result_dtypes(first) == _result_dtypes(other):
            return None
        while (found := self._reading_apart(first, other, _is_of_other_dtype)) is not None:
            makers = self._alike_makers(*found[1:])
            if makers is None:
                break
            first, other = makers
        told = [str(one) for one in argument_differences(first, other) if one.dtypes is not None]
        text = f"other arguments: {told[0]}" if told else "it computes in another dtype than the baseline"
        return Cause("argument" if told else "op", first, other, text, self._same_inputs(first, other))

    def _reading_apart(
        self, first: Call, other: Call, is_apart: Callable[[Value, Value], bool]
    ) -> tuple[str, Value, Value] | None:
        """Return the first slot in which what two calls read is apart in some way and no part of one another."""
        theirs = dict(self._sides[1].flow.reads(other))
        for slot, value in self._sides[0].flow.reads(first):
            if slot in theirs and is_apart(value, theirs[slot]) and not self._is_laid_elsewhere(value, theirs[slot]):
                return slot, value, theirs[slot]
        return None

    def _alike_makers(self, value: Value, theirs: Value) -> tuple[Call, Call] | None:
        """Return the calls that made two values, if they are of one op."""
        makers = self._sides[0].flow.maker(value), self._sides[1].flow.maker(theirs)
        if makers[0] is None or makers[1] is None or makers[0].op != makers[1].op:
            return None
        return makers[0], makers[1]

    def _first_readers(self, value: Value, theirs: Value | None) -> tuple[Call, Call] | None:
        """Return the calls of both sides that read a source first, if they are of one op."""
        if theirs is None or self._sides[1].flow.maker(theirs) is not None:
            return None
        numbers = self._sides[0].number_of(value), self._sides[1].number_of(theirs)
        one, other = (first_reader(side, {number}) for side, number in zip(self._sides, numbers, strict=True))
        return None if one is None or other is None or one.op != other.op else (one, other)

    def _other_contents(self, value: Value, theirs: Value | None) -> str:
        """Return what a call reads from outside the step, by name where it is a parameter's, in a sentence."""
        name = parameter_of(self._sides[0].flow, value)
        other = parameter_of(self._sides[1].flow, theirs) if theirs is not None else ""
        if name and other and name != other:
            return f"it reads {name}, in the baseline {other}"
        step = getattr(value.rank, "step", 0)
        state = StateNames(self._sides[0].flow).of(value)
        name = name or (state.name if state.group in ("buffers", "optimizer state") else "")
        return f"it reads other contents{' of ' + name if name else ''}, which no call of step {step} made"

    def _rewired(self, first: Call, other: Call) -> Iterator[tuple[str, str]]:
        """Yield the slots in which two calls read different ones of the same values, and what they read."""
        theirs = dict(self._sides[1].flow.reads(other))
        for slot, value in self._sides[0].flow.reads(first):
            if slot in theirs:
                numbers = self._sides[0].number_of(value), self._sides[1].number_of(theirs[slot])
                if numbers[0] != numbers[1] and not self._is_laid_elsewhere(value, theirs[slot]):
                    made = self._named_on_both(value), self._maker(1, theirs[slot])
                    if self._layout is not None and self._layout.is_reordered(value, theirs[slot]):
                        yield (
                            slot,
                            f"the elements of {made[0]} are in another order than those of the baseline's {made[1]}",
                        )
                    else:
                        yield slot, f"it reads {made[0]}, the baseline's reads {made[1]}"

    def _named_on_both(self, value: Value) -> str:
        """Return who made a value of the target, and who made the same on the baseline, if that has another name."""
        name = self._maker(0, value)
        held = self._sides[1].holders.get(self._sides[0].number_of(value), ())
        names = [self._maker(1, self._sides[1].flow.rank.value_by_id(id)) for id in held]
        return name if name in names or not names else f"{name} (the same as the baseline's {names[0]})"

    def _maker(self, side: int, value: Value) -> str:
        """Return who made a value, or what it is that was there before the step."""
        made = value.producer
        if made is not None:
            return f"{made[0].name}.{made[1]}"
        writer = self._sides[side].flow.last_writer(value)
        if writer is not None:
            return f"what {writer.name} {'writes' if value.undefined else 'left'}"
        return f"{name_of(self._sides[side].flow, value)} as it was before the step"

    def _is_laid_elsewhere(self, value: Value, other: Value) -> bool:
        """Return True if the target has the baseline's rows in other places, or one value is a part of the other."""
        return (self.repair is not None and self.repair.rows.has(value, other)) or self._is_part(value, other)

    def _is_part(self, value: Value, other: Value) -> bool:
        """Return True if one of two values is a part of what the other side has, and that has nothing equal to it."""
        shapes = tuple(value.shape), tuple(other.shape)
        if not (dimensions_of(*shapes) or dimensions_of(*shapes[::-1])):
            return False
        numbers = (self._sides[side].numbers.get(one.id, 0) for side, one in enumerate((value, other)))
        return any(self._sides[1 - side].holders.get(number) == [] for side, number in enumerate(numbers))

    def _same_inputs(self, first: Call, other: Call) -> str:
        """Return what both sides have of what two calls read, in a clause; "" if the target reads something alone."""
        ours, theirs = (
            {side.numbers.get(value.id) for _, value in side.flow.reads(call)}
            for side, call in zip(self._sides, (first, other), strict=True)
        )
        if not ours or not all(self._sides[1].holders.get(number or 0) for number in ours):
            return ""
        return "its inputs are the same" + ("" if ours == theirs else " as values of the baseline")

    def _at_an_end(self, odd: Odd) -> Cause:
        """Return the cause where every value has a counterpart, and an end has another one."""
        side = 0 if odd[0] else 1
        end = odd[side][0]
        flow = self._sides[side].flow
        writer = flow.writer(end.value)
        call = writer[0] if writer else next(iter(flow.calls()))
        kind = _KINDS[end.kind]
        text = f"{end.name} is another one of the values that both sides have"
        return _at(kind, side, call, text)


def _first_group(odd: Odd, ends: Odd) -> tuple[Container[str], Odd]:
    """Return the ends that are computed first, of those that differ, and their kinds: what comes later follows.

    If one side has no ends of a kind, as a program without gradients that autograd leaves, the next kind is looked at.
    """
    groups: list[tuple[tuple[str, ...], Odd]] = []
    for kinds in (FORWARD, ("gradient",), ("left",)):
        found = [end for end in odd[0] if end.kind in kinds], [end for end in odd[1] if end.kind in kinds]
        groups += [(kinds, found)] if any(found) else []
    of_both = [one for one in groups if all(any(end.kind in one[0] for end in side) for side in ends)]
    return (of_both or groups or [((), ([], []))])[0]


def _names_of(cones: tuple[Cone, Cone]) -> tuple[str, ...]:
    return tuple(call.name for cone in cones for _, call in sorted(cone.calls.items()))


def _reaches_backward(cones: tuple[Cone, Cone]) -> bool:
    """Return True if a backward lies behind some ends: a later loss may rest on what an optimizer made of gradients."""
    return any(call.phase == "backward" for cone in cones for call in cone.calls.values())


def _at(kind: FindingKind, side: int, call: Call, text: str) -> Cause:
    """Return a cause at a call of one side."""
    return Cause(kind, None if side else call, call if side else None, text)


def _have_other_backwards(target: Call, baseline: Call) -> bool:
    """Return True if the backwards of two calls do not do the same, as those of other powers do not."""
    ours, theirs = ([one for one in call.backward if one.kind == "aten"] for call in (target, baseline))
    return len(ours) != len(theirs) or any(are_asked_otherwise(*pair) for pair in zip(ours, theirs, strict=True))


def _is_shaped_otherwise(one: Value, other: Value) -> bool:
    return one.shape != other.shape


def _is_of_other_dtype(one: Value, other: Value) -> bool:
    return one.dtype != other.dtype


def _result_dtypes(call: Call) -> list[str]:
    return [value.dtype_name for _, value in call.result_values()]


def _given(call: Call) -> str:
    """Return the shapes of the tensors that a call is given, the first ones; of a factory, that of what it makes."""
    shapes = [str(list(value.shape)) for _, value in (call.input_values() or call.output_values()[:1])]
    return ", ".join(shapes[:2]) or "no tensor"


def _op(call: Call) -> str:
    return call.op


def _line(call: Call) -> str:
    return call.where or call.name
