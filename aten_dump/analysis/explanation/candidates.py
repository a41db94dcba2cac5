"""Which call behind the cut is asked first, on either side: of many, the one that may be the cause.

Theory of operation
    The walk back from ends that differ finds all that one side alone makes. Some of it may be another way to the same
    result: a cache's pages, tokens sorted by expert, a rotary table as complex numbers. So not every call is asked. A
    call counts if it leads to the first call that both programs make at one line and that came out otherwise, and if
    it leads to nothing that came out right. Of these the first in execution order is taken. Where both sides' first
    calls make integers or tables, calls that compute are asked before them.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final

from ...dump import Call, Value
from ...store.op_names import reads_no_elements
from ..cone.cone import Cone, cone_of, made_of_nothing
from ..ends.ends import End
from ..evaluation.evaluation import Evaluation
from ..evidence.evidence_rows import Pair
from ..flow.argument_differences import argument_differences
from ..flow.moving_ops import moves_elements
from ..signatures.signature import is_equal
from ..sources.stand_ins import Sources
from .other_layout import FORWARD
from .other_sources import holds_permuted
from .state_names import StateNames

_OF_ONE_PROGRAM: Final = 0.3  # of the lines that make calls on one side, which make the same on the other

Place = tuple[str, str, str]


class Candidates:
    """Finds the calls that may be the cause.

    It has more than twenty methods, one for each thing that may put a call behind others.
    """

    def __init__(
        self,
        sides: tuple[Evaluation, Evaluation],
        sources: Sources,
        ends: tuple[Sequence[End], Sequence[End]],
        pairs: tuple[dict[int, Pair], dict[int, Pair]],
    ) -> None:
        """Prepare to look.

        Args:
            sides: evaluated.
            sources: how those of both sides were matched.
            ends: of both sides.
            pairs: of calls that stand at the same place in both programs, by the id of either side's.
        """
        self._sides = sides
        self._sources = sources
        self._ends = ends
        self._pairs = pairs

    def find(self, cones: tuple[Cone, Cone], kinds: Container[str], *, in_other_order: bool) -> list[Call | None]:
        """Return the call of either cone to ask first.

        Args:
            cones: what lies behind the ends that differ.
            kinds: of these ends.
            in_other_order: one side's rows are in another order than the other's.
        """
        behind = self._behind_first_like(0, cones[0]), self._behind_first_like(1, cones[1])
        right = [self._came_right(side, cone) for side, cone in enumerate(cones)]
        firsts = self._firsts(_without(behind, right), kinds, in_other_order)
        if any(self._reads_of(side, call, right[side]) for side, call in enumerate(firsts)):
            firsts = self._firsts(behind, kinds, in_other_order)  # what it reads was right by chance, as before a norm
        firsts = self._beside_each_other(cones, firsts)
        if firsts[0] is None or firsts[1] is None or firsts[0].op == firsts[1].op:
            return firsts
        asked = [self._computing(side, cone) for side, cone in enumerate(cones)]
        if all(map(_makes_integers, filter(None, firsts))):
            return asked if any(asked) else firsts
        if all(self.lines) and any(moves_elements(call.op) for call in firsts if call is not None):
            alone = [call if self._is_lacking(side, call, cones[1 - side]) else None for side, call in enumerate(asked)]
            if any(alone):
                return alone
        if asked[0] is None or asked[1] is None:
            return firsts
        if firsts[0].id not in self._tables[0] and firsts[1].id not in self._tables[1]:
            return firsts
        return asked if self._numbers_read(0, asked[0]) & self._numbers_read(1, asked[1]) else firsts

    def _behind_first_like(self, side: int, cone: Cone) -> Cone:
        """Return the part of a cone behind the first call that the other side's program makes too, at the same line.

        A cone that begins with calls of one side alone may begin with another layout of the work, as a cache's pages:
        of such calls those count that lead to the first one that came out otherwise.
        """
        flow, others = self._sides[side].flow, self._sides[1 - side].holders
        made = made_of_nothing(self._sides[side], cone, others)
        computing = (
            call
            for number, call in sorted(cone.calls.items())
            if not (number in made or flow.is_view(call) or _makes_integers(call))
        )
        likes = self.lines[1 - side]
        found = next((call for call in computing if place_of(call) in likes), cone.first)
        if found is None or found is cone.first:
            return cone
        return cone_of(self._sides[side], others, [value for _, value in found.result_values()])

    def _firsts(self, cones: tuple[Cone, Cone], kinds: Container[str], in_other_order: bool) -> list[Call | None]:
        """Return the first call of either cone that may be the cause.

        A call of a forward of which all came out right is none. What one side alone makes of nothing (a table of
        distances) is none either: what is done with it is.
        """
        is_exact = kinds == FORWARD or self._is_forward_exact()
        made = [made_of_nothing(self._sides[side], cones[side], self._sides[1 - side].holders) for side in (0, 1)]
        found: list[Call | None] = []
        for side, cone in enumerate(cones):
            left_out: set[int] = set() if made[1 - side] else made[side]
            if in_other_order:
                left_out = left_out | self._ordering(side, cone)
            if kinds != FORWARD:
                right = [end.value for end in self._ends[side] if end.kind in FORWARD]
                left_out = left_out | cone_of(self._sides[side], (), right).calls.keys()
            pairs = self._pairs[side]
            asked = {
                number
                for number in left_out & pairs.keys()
                if self.is_asked_otherwise(pairs[number])
                or (not is_exact and pairs[number].target.op == pairs[number].baseline.op)
            }
            calls = (call for number, call in sorted(cone.calls.items()) if number not in left_out - asked)
            found.append(next(calls, cone.first))
        return found

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
            self.is_odd(side, value) for value in made
        )

    def _reads_of(self, side: int, call: Call | None, makers: set[int]) -> bool:
        """Return True if a call reads what one of some calls made."""
        flow = self._sides[side].flow
        found = (flow.maker(value) for _, value in flow.reads(call)) if call is not None else ()
        return any(maker is not None and maker.id in makers for maker in found)

    def _is_lacking(self, side: int, call: Call | None, others: Cone) -> bool:
        """Return True if the other side makes no such call at this line, nor one like it behind its own cut."""
        if call is None or not self.is_at_this_line_alone(side, call):
            return False
        likes = [one for one in others.calls.values() if one.op == call.op]
        return all(are_asked_otherwise(*((one, call) if side else (call, one))) for one in likes)

    def _computing(self, side: int, cone: Cone) -> Call | None:
        """Return the first call of a cone that computes floats, no table, of nothing but what both sides have."""
        flow, others = self._sides[side].flow, self._sides[1 - side].holders
        for _, call in sorted(cone.calls.items()):
            is_aside = flow.is_view(call) or moves_elements(call.op) or call.id in self._tables[side]
            if not (_makes_integers(call) or reads_no_elements(call.op) or is_aside):
                read = [self._sides[side].numbers.get(value.id) for _, value in flow.reads(call)]
                if read and all(number in others for number in read):
                    return call
        return None

    @cached_property
    def _tables(self) -> tuple[set[int], set[int]]:
        """The ids of either side's calls that depend on no data and no parameter: on buffers and positions alone."""
        found: tuple[set[int], set[int]] = (set(), set())
        for side in (0, 1):
            flow, names = self._sides[side].flow, StateNames(self._sides[side].flow)
            for call in flow.calls():
                for _, value in flow.reads(call):
                    maker = flow.maker(value)
                    if maker is not None and maker.id not in found[side]:
                        break
                    if maker is None and value.is_floating and names.of(value).group != "buffers":
                        break
                else:
                    found[side].add(call.id)
        return found

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
                if any(self.odd_sources(1 - side, other)):
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

    def _numbers_read(self, side: int, call: Call) -> set[int]:
        """Return the numbers of what a call computes with and both sides have: of floats, if it reads any."""
        read = [value for _, value in self._sides[side].flow.reads(call)]
        read = [value for value in read if value.is_floating] or read
        numbers = (self._sides[side].numbers.get(value.id) for value in read)
        return {number for number in numbers if number is not None and number in self._sides[1 - side].holders}

    @cached_property
    def lines(self) -> tuple[set[Place], set[Place]]:
        """The places of both sides' calls; none if these are not of one program, or of two versions of it."""
        target, baseline = ({place_of(call) for call in side.flow.calls()} for side in self._sides)
        is_one = len(target & baseline) >= _OF_ONE_PROGRAM * min(len(target), len(baseline))
        return (target, baseline) if is_one else (set(), set())

    def is_at_this_line_alone(self, side: int, call: Call | None) -> bool:
        """Return True if a side's program makes a call at a line at which the other's makes none."""
        return call is not None and place_of(call) not in self.lines[1 - side]

    def is_asked_otherwise(self, pair: Pair) -> bool:
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
            and self.is_at_this_line_alone(0, pair.target) == self.is_at_this_line_alone(1, pair.baseline)
            and are_asked_otherwise(pair.target, pair.baseline)
        )

    def odd_sources(self, side: int, call: Call) -> Iterator[tuple[str, Value]]:
        """Yield the sources that a call reads and the other side does not have, not even in another order."""
        others = (self._sources.target, self._sources.baseline)[1 - side]
        for slot, value in self._sides[side].flow.reads(call):
            if self.is_odd_source(side, value) and not any(holds_permuted(value, other) for other in others):
                yield slot, value

    def is_odd_source(self, side: int, value: Value) -> bool:
        return self._sides[side].flow.maker(value) is None and self.is_odd(side, value)

    def is_odd(self, side: int, value: Value) -> bool:
        """Return True if the other side does not have a value."""
        return self._sides[side].numbers.get(value.id) not in self._sides[1 - side].holders


def _without(cones: tuple[Cone, Cone], left_out: Sequence[set[int]]) -> tuple[Cone, Cone]:
    """Return cones without some calls; a cone of which nothing would be left is whole."""
    rest = [{n: call for n, call in cone.calls.items() if n not in left_out[i]} for i, cone in enumerate(cones)]
    one, other = (replace(cone, calls=calls or cone.calls) for cone, calls in zip(cones, rest, strict=True))
    return one, other


def are_asked_otherwise(target: Call, baseline: Call) -> bool:
    """Return True if two calls are given other arguments, and not dtypes alone."""
    return any(one.dtypes is None for one in argument_differences(target, baseline))


def place_of(call: Call) -> Place:
    """Return what two calls share that a program makes at the same place: op, phase and line."""
    return call.op, call.phase, call.where


def _makes_integers(call: Call) -> bool:
    """Return True if a call makes nothing but integers."""
    return all(not value.is_floating for _, value in call.result_values())
