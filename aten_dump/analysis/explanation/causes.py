"""The first cause of a difference: the first calls behind the cut, on both sides, and what tells them apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from ...dump import Call, Value
from ...store.op_names import read_op_name, reads_no_elements
from ..cone.cone import Cone, cone_of, made_of_nothing
from ..ends.ends import End, earliest
from ..evaluation.evaluation import Evaluation
from ..evaluation.numbers_in_python import NearCall
from ..evidence.evidence_rows import Pair
from ..evidence.findings import FindingKind
from ..flow.argument_differences import argument_differences
from ..flow.moving_ops import MOVES
from ..parts.blocks import dimensions_of
from ..parts.parts import PartsFound
from ..signatures.signature import is_equal
from ..sources.stand_ins import Sources
from .cut_gradients import CutGradients
from .left_alone import SIDES, left_alone, name_of, parameter_of
from .other_layout import FORWARD, OtherLayout, factor_sentence
from .other_sources import computing, first_reader, holds_permuted, other_source
from .state_names import StateNames
from .uncleared import uncleared
from .unread import unread
from .unwritten import unwritten

_MOST_NAMED: Final = 3
_OF_ONE_PROGRAM: Final = 0.75  # of the lines that make calls on one side, which make the same on the other
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

    It has more than twenty methods, one for each thing that may tell two calls apart.
    """

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
        self._layout: OtherLayout | None = None
        self.cones: tuple[Cone, Cone] = (Cone(), Cone())

    def find(self, odd: tuple[Sequence[End], Sequence[End]], near: Sequence[NearCall] = ()) -> Cause:
        """Return the cause of some ends that one side lacks, or of calls that were given another number."""
        cause = self._found(odd, near)
        factor = factor_sentence(self._sides, self._ends)
        return replace(cause, text=f"{cause.text}; {factor}") if factor else cause

    def _found(self, odd: tuple[Sequence[End], Sequence[End]], near: Sequence[NearCall]) -> Cause:
        if not (odd[0] or odd[1]):
            return self._same_op(near[0].target, near[0].baseline)
        flows = self._sides[0].flow, self._sides[1].flow
        if (alone := left_alone(odd, flows)) is not None:
            return self._unread(odd) or _at("left", *alone)
        self._layout = OtherLayout(self._sides, self._ends, odd, self._parts)
        if (lacking := self._layout.lacking_terms(odd)) is not None:
            return _at("gradient", *lacking)
        odd = self._layout.rest
        self.cones = self._behind(odd)
        kinds, first_odd = _first_group(odd)
        cones = self._behind(first_odd)
        if kinds != FORWARD or _reaches_backward(cones):
            if (kept := uncleared(self._sides, self._ends, odd)) is not None:
                return Cause("gradient", kept.target, kept.baseline, kept.text, takes_another=True)
            cut = CutGradients(self._sides, self._ends).find(cones, first_odd)
            if cut is not None:
                return _at("gradient", cut.side, cut.call, cut.text)
        behind_first = self._behind(earliest(first_odd, flows))
        if any(cone.calls for cone in behind_first):
            cones = behind_first
        if (found := unwritten(self._sides, cones)) is not None:
            return Cause("rewired", found[0], found[1], found[2], "", found[3])
        if (calls := self._reading_others(cones)) is not None:
            return calls
        firsts = self._candidates(cones, kinds)
        if firsts[0] is None and firsts[1] is None:
            return self._at_an_end(first_odd)
        cause = self._behind_the_cut(cones, firsts[0], firsts[1])
        if all(end.kind == "left" for ends in odd for end in ends):
            side = 0 if odd[0] else 1
            name = name_of(self._sides[side].flow, odd[side][0].value)
            cause = replace(cause, text=f"{cause.text}; {name} is left behind otherwise")
        return cause

    def _unread(self, odd: tuple[Sequence[End], Sequence[End]]) -> Cause | None:
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

    def _behind(self, odd: tuple[Sequence[End], Sequence[End]]) -> tuple[Cone, Cone]:
        target, baseline = self._sides
        return (
            cone_of(target, baseline.holders, [end.value for end in odd[0]]),
            cone_of(baseline, target.holders, [end.value for end in odd[1]]),
        )

    def _behind_first_like(self, side: int, cone: Cone) -> Cone:
        """Return the part of a cone behind the first call that the other side's program makes too, at the same line.

        A cone that begins with calls of one side alone may begin with another layout of the work, as a cache's pages:
        of such calls those count that lead to the first one that came out otherwise.
        """
        flow, others = self._sides[side].flow, self._sides[1 - side].holders
        made = made_of_nothing(self._sides[side], cone, others)
        others_too = (c for n, c in sorted(cone.calls.items()) if n not in made and not flow.is_view(c))
        likes = self._lines[1 - side]
        found = next((call for call in others_too if _place(call) in likes), cone.first)
        if found is None or found is cone.first:
            return cone
        return cone_of(self._sides[side], others, [value for _, value in found.result_values()])

    @cached_property
    def _lines(self) -> tuple[set[tuple[str, str, str]], set[tuple[str, str, str]]]:
        """The places of both sides' calls; none if these are not of one program, or of two versions of it."""
        target, baseline = ({_place(call) for call in side.flow.calls()} for side in self._sides)
        is_one = len(target & baseline) >= _OF_ONE_PROGRAM * min(len(target), len(baseline))
        return (target, baseline) if is_one else (set(), set())

    def _is_at_this_line_alone(self, side: int, call: Call | None) -> bool:
        """Return True if a side's program makes a call at a line at which the other's makes none."""
        return call is not None and _place(call) not in self._lines[1 - side]

    def _candidates(self, cones: tuple[Cone, Cone], kinds: Container[str]) -> list[Call | None]:
        """Return the first call of either cone that may be the cause.

        What came out right further on is left out first. Where both sides make integers in two ways (which tokens an
        expert gets), or tables of nothing, these may lay out the work: what computes is asked before.
        """
        behind = self._behind_first_like(0, cones[0]), self._behind_first_like(1, cones[1])
        right = [self._came_right(side, cone) for side, cone in enumerate(cones)]
        rest = self._without(behind, right)
        firsts = self._firsts(rest, kinds)
        if any(self._reads_of(side, call, right[side]) for side, call in enumerate(firsts)):
            firsts = self._firsts(behind, kinds)  # what is read may have come right by chance, as before a norm
        firsts = self._beside_each_other(cones, firsts)
        if firsts[0] is None or firsts[1] is None or firsts[0].op == firsts[1].op:
            return firsts
        asked = [self._computing(side, cone) for side, cone in enumerate(cones)]
        if all(map(_makes_integers, filter(None, firsts))):
            return asked if any(asked) else firsts
        alone = [call if self._is_at_this_line_alone(side, call) else None for side, call in enumerate(asked)]
        if all(self._lines) and any(alone) and any(read_op_name(call.op).name in MOVES for call in firsts if call):
            return alone
        if asked[0] is None or asked[1] is None or not any(self._is_table(*item) for item in enumerate(firsts)):
            return firsts
        return asked if self._numbers_read(0, asked[0]) & self._numbers_read(1, asked[1]) else firsts

    def _is_table(self, side: int, call: Call | None) -> bool:
        """Return True if what a call makes depends on no data and no parameter: on buffers and positions alone."""
        flow, names = self._sides[side].flow, StateNames(self._sides[side].flow)
        waiting = [] if call is None else [value for _, value in flow.reads(call)]
        seen: set[int] = set()
        while waiting:
            value = waiting.pop()
            if value.id in seen:
                continue
            seen.add(value.id)
            maker = flow.maker(value)
            if maker is not None:
                waiting += [one for _, one in flow.reads(maker)]
            elif value.is_floating and names.of(value).group != "buffers":
                return False
        return call is not None

    def _came_right(self, side: int, cone: Cone) -> set[int]:
        """Return the ids of the calls of a cone that lead to a value of the forward that both sides have."""
        flow = self._sides[side].flow
        found: set[int] = set()
        for call in reversed([call for call in flow.calls() if call.phase == "forward"]):
            if call.id in found or self._is_right(side, call):
                for _, value in flow.reads(call):
                    for maker in (flow.maker(value), (flow.writer(value) or (None,))[0]):
                        if maker is not None:
                            found.add(maker.id)
        return found & cone.calls.keys()

    def _is_right(self, side: int, call: Call) -> bool:
        """Return True if the other side has all floats that a call made, and they say something of what it read."""
        made = [value for _, value in self._sides[side].flow.results(call) if value.is_floating and value.numel > 1]
        if not made or reads_no_elements(call.op):
            return False
        signatures = [self._sides[side].signatures.get(value.id) for value in made]
        return all(one is not None and one.norm for one in signatures) and not any(
            self._is_odd(side, value) for value in made
        )

    def _without(self, cones: tuple[Cone, Cone], left_out: Sequence[set[int]]) -> tuple[Cone, Cone]:
        """Return cones without some calls; a cone of which nothing would be left is whole."""
        rest = [{n: call for n, call in cone.calls.items() if n not in left_out[i]} for i, cone in enumerate(cones)]
        one, other = (replace(cone, calls=calls or cone.calls) for cone, calls in zip(cones, rest, strict=True))
        return one, other

    def _reads_of(self, side: int, call: Call | None, makers: set[int]) -> bool:
        """Return True if a call reads what one of some calls made."""
        flow = self._sides[side].flow
        found = (flow.maker(value) for _, value in flow.reads(call)) if call is not None else ()
        return any(maker is not None and maker.id in makers for maker in found)

    def _firsts(self, cones: tuple[Cone, Cone], kinds: Container[str]) -> list[Call | None]:
        """Return the first call of either cone that may be the cause.

        A call of a forward of which all came out right is none. What one side alone makes of nothing (a table of
        distances) is none either: what is done with it is.
        """
        is_exact = kinds == FORWARD or self._is_forward_exact()
        made = [made_of_nothing(self._sides[side], cones[side], self._sides[1 - side].holders) for side in (0, 1)]
        found: list[Call | None] = []
        for side, cone in enumerate(cones):
            left_out: set[int] = set() if made[1 - side] else made[side]
            if self._layout is not None and self._layout.is_in_other_order:
                left_out = left_out | self._ordering(side, cone)
            if kinds != FORWARD:
                right = [end.value for end in self._ends[side] if end.kind in FORWARD]
                left_out = left_out | cone_of(self._sides[side], (), right).calls.keys()
            pairs = self._pairs[side]
            asked = {
                number
                for number in left_out & pairs.keys()
                if self._is_asked_otherwise(pairs[number])
                or (not is_exact and pairs[number].target.op == pairs[number].baseline.op)
            }
            calls = (call for number, call in sorted(cone.calls.items()) if number not in left_out - asked)
            found.append(next(calls, cone.first))
        return found

    def _computing(self, side: int, cone: Cone) -> Call | None:
        """Return the first call of a cone that computes floats, no table, of nothing but what both sides have."""
        flow, others = self._sides[side].flow, self._sides[1 - side].holders
        for _, call in sorted(cone.calls.items()):
            is_aside = flow.is_view(call) or read_op_name(call.op).name in MOVES or self._is_table(side, call)
            if not (_makes_integers(call) or is_aside):
                read = [self._sides[side].numbers.get(value.id) for _, value in flow.reads(call)]
                if read and all(number in others for number in read):
                    return call
        return None

    def _ordering(self, side: int, cone: Cone) -> set[int]:
        """Return the calls that only make integers, for what they bring into another order is no cause.

        If the first other call reads what they make, that is not known to be the same in another order: then none.
        """
        found = {number for number, call in cone.calls.items() if _makes_integers(call)}
        flow = self._sides[side].flow
        first = next((call for number, call in sorted(cone.calls.items()) if number not in found), None)
        read = [] if first is None else [value for _, value in flow.reads(first) if value.id not in cone.cut]
        makers = (flow.maker(value) for value in read)
        return set() if any(maker is not None and maker.id in found for maker in makers) else found

    def _is_forward_exact(self) -> bool:
        """Return True if what the forward ends with is the same on both sides to all digits of float64, or nearly.

        A loss may hardly show what its gradients show: it is the same as the baseline's, and not equal.
        """
        theirs = {end.number: end.value for end in self._ends[1] if end.kind in FORWARD}
        for end in self._ends[0]:
            if end.kind in FORWARD and end.number in theirs:
                one = self._sides[0].signatures.get(end.value.id)
                other = self._sides[1].signatures.get(theirs[end.number].id)
                if one is not None and other is not None and not is_equal(one, other):
                    return False
        return True

    def _beside_each_other(self, cones: tuple[Cone, Cone], firsts: list[Call | None]) -> list[Call | None]:
        """Return the first call of one cone, and the call of the other cone that goes on from the same values."""
        for side in (0, 1):
            one, other = firsts[side], firsts[1 - side]
            if one is None or other is None:
                return firsts
            given = self._numbers_read(side, one)
            if given & self._numbers_read(1 - side, other):
                return firsts
            if given:
                if any(self._odd_sources(1 - side, other)):
                    return firsts
                shared = {
                    number: (len(given & self._numbers_read(1 - side, call)), call.op == one.op)
                    for number, call in cones[1 - side].calls.items()
                }
                best = max(shared, key=lambda number: (*shared[number], -number))
                if not shared[best][0]:
                    return firsts
                beside = cones[1 - side].calls[best]
                if beside.id != other.id and self._is_skipped(side, one, beside, cones[1 - side]):
                    return [other, None] if side else [None, other]
                return [beside, one] if side else [one, beside]
        return firsts

    def _is_skipped(self, side: int, one: Call, beside: Call, cone: Cone) -> bool:
        """Return True if a call of a side reads what both have where its like reads what the other side alone makes."""
        flow = self._sides[1 - side].flow
        ours = dict(self._sides[side].flow.reads(one))
        for slot, value in flow.reads(beside) if one.op == beside.op else ():
            writer = flow.writer(value)
            if writer is not None and writer[0].id in cone.calls and slot in ours:
                return self._sides[side].numbers.get(ours[slot].id) in self._sides[1 - side].holders
        return False

    def _of_odd_source(self, call: Call) -> Cause | None:
        """Return the cause where a call of the target reads a source that the baseline does not have."""
        for slot, value in self._odd_sources(0, call):
            return Cause("source", call, None, self._other_contents(value, None), "", slot)
        return None

    def _odd_sources(self, side: int, call: Call) -> Iterator[tuple[str, Value]]:
        """Yield the sources that a call reads and the other side does not have, not even in another order."""
        others = (self._sources.target, self._sources.baseline)[1 - side]
        for slot, value in self._sides[side].flow.reads(call):
            if self._is_odd_source(side, value) and not any(holds_permuted(value, other) for other in others):
                yield slot, value

    def _numbers_read(self, side: int, call: Call) -> set[int]:
        """Return the numbers of what a call computes with and both sides have: of floats, if it reads any."""
        read = [value for _, value in self._sides[side].flow.reads(call)]
        read = [value for value in read if value.is_floating] or read
        numbers = (self._sides[side].numbers.get(value.id) for value in read)
        return {number for number in numbers if number is not None and number in self._sides[1 - side].holders}

    # -- behind the cut ----------------------------------------------------------------------------------------------

    def _behind_the_cut(self, cones: tuple[Cone, Cone], first: Call | None, other: Call | None) -> Cause:
        calls = tuple(call.name for cone in cones for _, call in sorted(cone.calls.items()))
        pair = self._beside_no_change(first, other, cones) or self._with_other_arguments(first, other)
        if pair is not None:
            return self._same_op(*pair)
        alone = [self._is_at_this_line_alone(side, call) for side, call in ((0, first), (1, other))]
        if first is not None and other is not None and first.op == other.op:
            if alone[0] == alone[1]:
                return self._same_op(first, other)
            first, other = (first, None) if alone[0] else (None, other)
        for side, call in ((0, first), (1, other)):
            known = None if call is None else self._pairs[side].get(call.id)
            if known is not None and self._is_asked_otherwise(known):
                return self._same_op(known.target, known.baseline)
        if first is None or other is None:
            return self._one_sided(first, other, calls)
        counts = [Counter(call.op for call in cone.calls.values()) for cone in cones]
        lacks = counts[1][other.op] > counts[0][other.op]
        adds = counts[0][first.op] > counts[1][first.op]
        if lacks and not adds:
            return self._of_odd_source(first) or self._one_sided(None, other, calls)
        if adds and not lacks:
            return Cause("region", first, None, f"the baseline has no such call{self._where(other)}", calls=calls)
        text = f"the target computes {_op(first)}, the baseline {_op(other)} ({_line(other)})"
        return Cause("region", first, other, text, self._same_inputs(0, first, other), calls=calls)

    def _beside_no_change(
        self, first: Call | None, other: Call | None, cones: tuple[Cone, Cone]
    ) -> tuple[Call, Call] | None:
        """Return two calls of one op, of which one alone leaves what it reads as it is, as a product with ones does.

        It has no value of its own and lies in no cone: the call beside it would seem to be missing on its side, and
        what goes on from both to be given other arguments. So the first calls are asked, and those before them.
        """
        for side, call in ((0, first), (1, other)):
            flow = self._sides[side].flow
            read = () if call is None else flow.reads(call)
            for one in (call, *(flow.maker(value) for _, value in read)):
                pair = self._pairs[side].get(one.id) if one is not None and not flow.is_view(one) else None
                if pair is not None and any(self._is_no_change_beside(at, pair, cones) for at in (0, 1)):
                    return pair.target, pair.baseline
        return None

    def _is_no_change_beside(self, side: int, pair: Pair, cones: tuple[Cone, Cone]) -> bool:
        """Return True if the call of a side changes nothing, and its like makes something new of what both have."""
        calls = pair.target, pair.baseline
        one, like = calls[side], calls[1 - side]
        results, there = self._sides[side].flow.results(one), self._sides[1 - side]
        return (
            one.op == like.op
            and one.id not in cones[side].calls
            and like.id in cones[1 - side].calls
            and not any(
                there.flow.maker(value) and self._is_odd(1 - side, value) for _, value in there.flow.reads(like)
            )
            and any(self._changes_nothing(side, one, value) for _, value in results)
        )

    def _changes_nothing(self, side: int, call: Call, result: Value) -> bool:
        numbers = self._sides[side].numbers
        return result.id in numbers and any(number == numbers[result.id] for _, number in self._given(side, call))

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
            if not all(_are_asked_otherwise(*pair) for pair in pairs):
                continue  # the other side has this very call
            is_alone = self._is_at_this_line_alone(side, call)
            pairs = [p for p in pairs if self._is_at_this_line_alone(1 - side, p[1 - side]) == is_alone]
            if pairs:
                return min(pairs, key=lambda pair: _place(pair[0]) != _place(pair[1]))
        return None

    def _given(self, side: int, call: Call) -> list[tuple[str, int | None]]:
        return [(slot, self._sides[side].numbers.get(value.id)) for slot, value in self._sides[side].flow.reads(call)]

    def _one_sided(self, first: Call | None, other: Call | None, calls: tuple[str, ...]) -> Cause:
        side = 1 if first is None else 0
        call = other if first is None else first
        assert call is not None
        places = self._places_of_inputs(side, call)
        is_like = places and _place(call) in self._lines[1 - side]
        what = "computes no such value at this line" if is_like else f"has no such call: {_op(call)}"
        return Cause("region", first, other, f"the {SIDES[1 - side]} {what}", places, calls=calls)

    def _places_of_inputs(self, side: int, call: Call) -> str:
        """Return where in the other side's values the inputs of a call lie, in a clause; "" if none is a part."""
        found = []
        places = {} if self._parts is None else self._parts.places[side]
        for slot, value in self._sides[side].flow.reads(call):
            for held, block in places.get(value.id, ())[:1]:
                whole = self._sides[1 - side].flow.rank.value_by_id(held)
                found.append(f"{slot} is {block} of the {SIDES[1 - side]}'s {self._maker(1 - side, whole)}")
        return "; ".join(found)

    def _is_asked_otherwise(self, pair: Pair) -> bool:
        """Return True if two calls do the same op on the same values with other arguments.

        Only one of them lies behind the cut if the side of the other makes its value elsewhere too: a mask, a table.
        """
        read = [
            [side.numbers.get(value.id) for _, value in side.flow.reads(call)]
            for side, call in zip(self._sides, (pair.target, pair.baseline), strict=True)
        ]
        return (
            pair.target.op == pair.baseline.op
            and read[0] == read[1]
            and _are_asked_otherwise(pair.target, pair.baseline)
        )

    def _where(self, call: Call) -> str:
        return f"; from there on it computes {_op(call)} ({_line(call)})"

    def _same_op(self, first: Call, other: Call) -> Cause:
        """Return what tells two calls of one op apart: arguments, sources, draws, wiring, dtype."""
        differences = argument_differences(first, other)
        numbers = [difference for difference in differences if difference.dtypes is None]
        if numbers:
            text = "; ".join(map(str, numbers[:_MOST_NAMED]))
            name = numbers[0].name
            return Cause("argument", first, other, f"other arguments: {text}", self._same_inputs(0, first, other), name)
        if (source := other_source(self._sides, self._sources, first, other)) is not None:
            return Cause("source", first, other, source[1], "", source[0])
        odd = [(slot, value) for slot, value in self._sides[0].flow.reads(first) if self._is_odd_source(0, value)]
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
        if rewired:
            return Cause("rewired", first, other, rewired[0][1], "", rewired[0][0])
        taken = [self._taken(side, call) for side, call in enumerate((first, other))]
        if taken[0] and taken[1] and taken[0] != taken[1]:
            text = f"the target goes on with {taken[0]} of it, the baseline with {taken[1]}"
            same = self._same_inputs(0, first, other)
            return Cause("rewired", first, other, text, same, taken[0], takes_another=True)
        special = self._shaped(first, other) or self._in_other_dtype(first, other)
        if special is not None:
            return special
        if (makers := self._made_otherwise(first, other)) is not None:
            return self._same_op(*makers)
        pairs = zip(self._sides[0].flow.reads(first), self._sides[1].flow.reads(other), strict=False)
        parts = "parts of " if any(self._is_part(one, theirs) for (_, one), (_, theirs) in pairs) else ""
        text = f"from {parts}the same inputs it computes something else"
        return Cause("op", first, other, text, "" if parts else self._same_inputs(0, first, other))

    def _taken(self, side: int, call: Call) -> str:
        """Return the slots of a view that what differs was made of; "" of another call."""
        evaluation, other = self._sides[side], self._sides[1 - side]
        if not evaluation.flow.is_view(call):
            return ""
        slots = call.output_values()
        return ", ".join(s for s, v in slots if evaluation.numbers.get(v.id, 0) not in (0, *other.holders))

    def _shaped(self, first: Call, other: Call) -> Cause | None:
        """Return the view that gives the same elements another shape, if two calls read them in other shapes."""
        theirs = dict(self._sides[1].flow.reads(other))
        for slot, value in self._sides[0].flow.reads(first):
            if slot not in theirs or theirs[slot].shape == value.shape:
                continue
            if self._is_part(value, theirs[slot]):
                continue
            shapes = list(value.shape), list(theirs[slot].shape)
            text = f"{{}} is given the same elements in shape {shapes[0]}, in the baseline {shapes[1]}"
            for side, one in ((0, value), (1, theirs[slot])):
                flow = self._sides[side].flow
                maker = flow.maker(one)
                if maker is not None and flow.is_view(maker):
                    return _at("rewired", side, maker, text.format(first.name))
            return Cause("rewired", first, other, text.format("it"), "", slot)
        return None

    def _in_other_dtype(self, first: Call, other: Call) -> Cause | None:
        """Return where two calls that compute in other dtypes got these from."""
        if _result_dtypes(first) == _result_dtypes(other):
            return None
        while (behind := self._makers_in_other_dtypes(first, other)) is not None:
            first, other = behind
        told = [str(one) for one in argument_differences(first, other) if one.dtypes is not None]
        text = f"other arguments: {told[0]}" if told else "it computes in another dtype than the baseline"
        return Cause("argument" if told else "op", first, other, text, self._same_inputs(0, first, other))

    def _makers_in_other_dtypes(self, first: Call, other: Call) -> tuple[Call, Call] | None:
        theirs = dict(self._sides[1].flow.reads(other))
        for slot, value in self._sides[0].flow.reads(first):
            if slot in theirs and theirs[slot].dtype != value.dtype:
                makers = self._sides[0].flow.maker(value), self._sides[1].flow.maker(theirs[slot])
                if makers[0] is not None and makers[1] is not None and makers[0].op == makers[1].op:
                    return makers  # type: ignore[return-value]
        return None

    def _made_otherwise(self, first: Call, other: Call) -> tuple[Call, Call] | None:
        """Return the calls that made what two calls read, if they were given other arguments.

        What they made may be the same but for a hair, as what an optimizer's epsilon is added to, and not what is
        made of it.
        """
        theirs = dict(other.input_values())
        for slot, value in first.input_values():  # what is only written to as well: it says where
            if slot not in theirs or self._is_part(value, theirs[slot]):
                continue
            makers = self._sides[0].flow.maker(value), self._sides[1].flow.maker(theirs[slot])
            if makers[0] is None or makers[1] is None or makers[0].op != makers[1].op:
                continue
            if _are_asked_otherwise(makers[0], makers[1]):
                return makers[0], makers[1]
        return None

    def _first_readers(self, value: Value, theirs: Value | None) -> tuple[Call, Call] | None:
        """Return the calls of both sides that read a source first, if they are of one op."""
        if theirs is None or self._sides[1].flow.maker(theirs) is not None:
            return None
        numbers = self._sides[0].number_of(value), self._sides[1].number_of(theirs)
        one, other = (first_reader(side, {number}) for side, number in zip(self._sides, numbers, strict=True))
        return None if one is None or other is None or one.op != other.op else (one, other)

    def _is_odd_source(self, side: int, value: Value) -> bool:
        return self._sides[side].flow.maker(value) is None and self._is_odd(side, value)

    def _is_odd(self, side: int, value: Value) -> bool:
        """Return True if the other side does not have a value."""
        return self._sides[side].numbers.get(value.id) not in self._sides[1 - side].holders

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
                if numbers[0] != numbers[1] and not self._is_part(value, theirs[slot]):
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
        return f"{name_of(self._sides[side].flow, value)} as it was before the step"

    def _is_part(self, value: Value, other: Value) -> bool:
        """Return True if one of two values is a part of what the other side has, and that has nothing equal to it."""
        shapes = tuple(value.shape), tuple(other.shape)
        if not (dimensions_of(*shapes) or dimensions_of(*shapes[::-1])):
            return False
        numbers = (self._sides[side].numbers.get(one.id, 0) for side, one in enumerate((value, other)))
        return any(self._sides[1 - side].holders.get(number) == [] for side, number in enumerate(numbers))

    def _same_inputs(self, side: int, first: Call, other: Call) -> str:
        ours = {self._sides[0].numbers.get(value.id) for _, value in self._sides[0].flow.reads(first)}
        theirs = {self._sides[1].numbers.get(value.id) for _, value in self._sides[1].flow.reads(other)}
        if ours == theirs and ours:
            return "its inputs are the same"
        return "its inputs are the same as values of the baseline" if ours else ""

    def _at_an_end(self, odd: tuple[Sequence[End], Sequence[End]]) -> Cause:
        """Return the cause where every value has a counterpart, and an end has another one."""
        side = 0 if odd[0] else 1
        end = odd[side][0]
        flow = self._sides[side].flow
        writer = flow.writer(end.value)
        call = writer[0] if writer else next(iter(flow.calls()))
        kind = _KINDS[end.kind]
        text = f"{end.name} is another one of the values that both sides have"
        return _at(kind, side, call, text)


def _first_group(odd: tuple[Sequence[End], Sequence[End]]) -> tuple[Container[str], tuple[list[End], list[End]]]:
    """Return the ends that are computed first, of those that differ, and their kinds: what comes later follows."""
    for kinds in (FORWARD, ("gradient",), ("left",)):
        found = tuple([end for end in ends if end.kind in kinds] for ends in odd)
        if found[0] or found[1]:
            return kinds, (found[0], found[1])
    return (), ([], [])


def _reaches_backward(cones: tuple[Cone, Cone]) -> bool:
    """Return True if a backward lies behind some ends: a later loss may rest on what an optimizer made of gradients."""
    return any(call.phase == "backward" for cone in cones for call in cone.calls.values())


def _are_asked_otherwise(target: Call, baseline: Call) -> bool:
    """Return True if two calls are given other arguments, and not dtypes alone."""
    return any(one.dtypes is None for one in argument_differences(target, baseline))


def _place(call: Call) -> tuple[str, str, str]:
    """Return what two calls share that a program makes at the same place: op, phase and line."""
    return call.op, call.phase, call.where


def _makes_integers(call: Call) -> bool:
    """Return True if a call makes nothing but integers."""
    return all(not value.is_floating for _, value in call.result_values())


def _at(kind: FindingKind, side: int, call: Call, text: str) -> Cause:
    """Return a cause at a call of one side."""
    return Cause(kind, None if side else call, call if side else None, text)


def _result_dtypes(call: Call) -> list[str]:
    return [value.dtype_name for _, value in call.result_values()]


def _op(call: Call) -> str:
    return call.op


def _line(call: Call) -> str:
    return call.where or call.name
