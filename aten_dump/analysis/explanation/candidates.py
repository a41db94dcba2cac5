"""Which call behind the cut, on either side, is examined first as the possible cause.

Theory of operation
    The calls behind the cut begin with the mistake, or with another way to the same result: tokens sorted by expert, a
    rotary table as complex numbers. The first call in execution order is taken. If it makes integers or a table, the
    first call that computes is examined before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Sequence
from functools import cached_property
from typing import Final

from ...dump import Call, Value
from ...store.op_names import reads_no_elements
from ..cone.cone import Cone, cone_of, made_of_nothing, written_parts
from ..ends.ends import End
from ..evaluation.evaluation import Evaluation
from ..evidence.evidence_rows import Pair
from ..flow.argument_differences import ArgumentDifference, argument_differences
from ..flow.moving_ops import moves_elements
from ..pairing.call_keys import ProgramPlace, place_of
from ..signatures.signature import is_equal
from ..sources.stand_ins import Sources
from .other_layout import FORWARD
from .state_names import StateNames

_SIZES: Final = frozenset(("size", "shape", "sizes", "input_sizes", "self_sizes", "normalized_shape"))
_OF_ONE_PROGRAM: Final = 0.3  # the share of one side's lines that make the same calls on the other side


class Candidates:
    """Finds the calls that may be the cause.

    It has more than twenty methods, one for each reason to examine a call later than others.
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
            sources: how the sources of both sides were matched.
            ends: of both sides.
            pairs: calls at the same place in both programs, by the id on either side.
        """
        self._sides = sides
        self._sources = sources
        self._ends = ends
        self._pairs = pairs

    def find(
        self, cones: tuple[Cone, Cone], kinds: Container[str], *, in_other_order: bool, is_packed: bool = False
    ) -> list[Call | None]:
        """Return the call of either cone to examine first.

        Args:
            cones: what lies behind the ends that differ.
            kinds: of these ends.
            in_other_order: True if one side's rows are in another order than the other's.
            is_packed: True if one side begins with rows of the other side's sources.
        """
        firsts = self._firsts(cones, kinds, in_other_order, is_packed)
        firsts = self._beside_each_other(cones, firsts)
        if firsts[0] is None or firsts[1] is None or firsts[0].op == firsts[1].op:
            return firsts
        asked = [self._computing(side, cone) for side, cone in enumerate(cones)]
        are_integers = [_makes_integers(call) for call in firsts if call is not None]
        if all(are_integers):
            return asked if any(asked) else firsts
        if any(are_integers):
            pairs = zip(firsts, asked, are_integers, strict=True)
            return [other or one if is_integer else one for one, other, is_integer in pairs]
        if all(self.lines) and any(moves_elements(call.op) for call in firsts if call is not None):
            alone = [call if self._is_lacking(side, call, cones[1 - side]) else None for side, call in enumerate(asked)]
            if any(alone):
                return alone
        if asked[0] is None or asked[1] is None:
            return firsts
        if firsts[0].id not in self._tables[0] and firsts[1].id not in self._tables[1]:
            return firsts
        return asked if self.numbers_read(0, asked[0]) & self.numbers_read(1, asked[1]) else firsts

    def _firsts(
        self, cones: tuple[Cone, Cone], kinds: Container[str], in_other_order: bool, is_packed: bool
    ) -> list[Call | None]:
        """Return the first call of either cone that may be the cause.

        A call that leads to a correct end of the forward is no cause. Nor is a call that makes something from nothing
        on one side alone (a table of distances): the cause is the call that uses it. If a batch is packed in another
        way, both sides make such tables.
        """
        is_exact = kinds == FORWARD or self._is_forward_exact()
        made = [made_of_nothing(self._sides[side], cones[side], self._sides[1 - side].holders) for side in (0, 1)]
        found: list[Call | None] = []
        for side, cone in enumerate(cones):
            left_out: set[int] = set() if made[1 - side] and not is_packed else made[side]
            if in_other_order or is_packed:
                left_out = left_out | self._ordering(side, cone)
            if kinds != FORWARD or not cones[1 - side].calls:  # parts of the other side's work, as decoded words
                left_out = left_out | cone_of(self._sides[side], (), self._right(side)).calls.keys()
            pairs = self._pairs[side]
            asked = {
                number
                for number in (left_out & pairs.keys() if not is_packed else ())
                if self.is_asked_otherwise(pairs[number])
                or (not is_exact and pairs[number].target.op == pairs[number].baseline.op)
            }
            calls = (call for number, call in sorted(cone.calls.items()) if number not in left_out - asked)
            found.append(next(calls, cone.first))
        return found

    def _right(self, side: int) -> list[Value]:
        """Return the ends of the forward that the other side has."""
        others = self._sides[1 - side].holders
        return [end.value for end in self._ends[side] if end.kind in FORWARD and end.number in others]

    def _is_lacking(self, side: int, call: Call | None, others: Cone) -> bool:
        """Return True if the other side makes no such call at this line, and no similar one behind its own cut."""
        if call is None or not self.is_at_this_line_alone(side, call):
            return False
        likes = [one for one in others.calls.values() if one.op == call.op]
        return all(are_asked_otherwise(*((one, call) if side else (call, one))) for one in likes)

    def _computing(self, side: int, cone: Cone) -> Call | None:
        """Return the first call of a cone that computes floats, but no table, only from values that both sides have."""
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
        """The ids of each side's calls that depend only on buffers and positions, not on data or parameters."""
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
        """Return the calls that only make integers: bringing values into another order is no cause.

        Return none if the first other call reads their results, as these may not be the same in another order.
        """
        found = {number for number, call in cone.calls.items() if _makes_integers(call)}
        flow = self._sides[side].flow
        first = next((call for number, call in sorted(cone.calls.items()) if number not in found), None)
        read = [] if first is None else [value for _, value in flow.reads(first) if value.id not in cone.cut]
        makers = (flow.maker(value) for value in read)
        return set() if any(maker is not None and maker.id in found for maker in makers) else found

    def _is_forward_exact(self) -> bool:
        """Return True if the ends of the forward are the same on both sides to (nearly) all digits of float64.

        A loss may hardly show what its gradients show: it counts as the baseline's, but is not equal to it.
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
            given = self.numbers_read(side, one)
            if given & self.numbers_read(1 - side, other):
                return firsts
            if given:
                if any(self.odd_sources(1 - side, other)):
                    return firsts
                shared = {
                    number: (len(given & self.numbers_read(1 - side, call)), call.op == one.op)
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
        """Return True if a call reads a value of both sides where its counterpart reads one of the other side alone."""
        flow = self._sides[1 - side].flow
        ours = dict(self._sides[side].flow.reads(one))
        for slot, value in flow.reads(beside) if one.op == beside.op else ():
            writer = flow.writer(value)
            if writer is not None and writer[0].id in cone.calls and slot in ours:
                return self._sides[side].numbers.get(ours[slot].id) in self._sides[1 - side].holders
        return False

    def may_be_other_arguments(self, target: Call, baseline: Call) -> bool:
        """Return False for views of unlike sizes at two places: programs read parts of one tensor in many places."""
        if place_of(target) == place_of(baseline) or not self._sides[0].flow.is_view(target):
            return True
        sizes = [[value.numel for _, value in call.output_values()] for call in (target, baseline)]
        return sizes[0] == sizes[1]

    def share_inputs(self, target: Call, baseline: Call) -> bool:
        """Return True if two calls compute with something that both sides have."""
        return bool(self.numbers_read(0, target) & self.numbers_read(1, baseline))

    def numbers_read(self, side: int, call: Call) -> set[int]:
        """Return the numbers of a call's inputs that both sides have: only of floats, if it reads any."""
        read = [value for _, value in self._sides[side].flow.reads(call)]
        read = [value for value in read if value.is_floating] or read
        numbers = (self._sides[side].numbers.get(value.id) for value in read)
        return {number for number in numbers if number is not None and number in self._sides[1 - side].holders}

    @cached_property
    def lines(self) -> tuple[set[ProgramPlace], set[ProgramPlace]]:
        """The places of both sides' calls; empty unless both are one program, or two versions of it."""
        target, baseline = ({place_of(call) for call in side.flow.calls()} for side in self._sides)
        is_one = len(target & baseline) >= _OF_ONE_PROGRAM * min(len(target), len(baseline))
        return (target, baseline) if is_one else (set(), set())

    def is_made_as_often(self, side: int, call: Call) -> bool:
        """Return True if both programs make such calls at the call's line, and the other side as many."""
        place, counts = place_of(call), self._counts
        return bool(self.lines[1 - side]) and 0 < counts[side][place] <= counts[1 - side][place]

    @cached_property
    def _counts(self) -> tuple[Counter[ProgramPlace], Counter[ProgramPlace]]:
        ours, theirs = (Counter(place_of(call) for call in side.flow.calls()) for side in self._sides)
        return ours, theirs

    def is_at_this_line_alone(self, side: int, call: Call | None) -> bool:
        """Return True if the call is at a line at which the other side's program makes no calls."""
        return call is not None and place_of(call) not in self.lines[1 - side]

    def is_made_there(self, side: int, call: Call) -> bool:
        """Return True if the other side has all that a call makes, as wholes."""
        held, numbers = self._sides[1 - side].holders, self._sides[side].numbers
        made = [numbers.get(value.id, 0) for _, value in self._sides[side].flow.results(call)]
        return bool(made) and all(held.get(number) for number in made)

    def is_added(self, side: int, call: Call) -> bool:
        """Return True if the other side makes no such call here."""
        pair = self._pairs[side].get(call.id)
        return pair is None or place_of(pair.target) != place_of(pair.baseline)

    def is_asked_otherwise(self, pair: Pair) -> bool:
        """Return True if two calls do the same op on the same values with other arguments.

        Only one of them lies behind the cut if the other one's value (a mask, a table) is also made elsewhere.
        """
        read = [
            [side.numbers.get(value.id) for _, value in side.flow.reads(call)]
            for side, call in zip(self._sides, (pair.target, pair.baseline), strict=True)
        ]
        return (
            pair.target.op == pair.baseline.op
            and read[0] == read[1]
            and self.may_be_other_arguments(pair.target, pair.baseline)
            and self._are_placed_alike(pair)
            and are_asked_otherwise(pair.target, pair.baseline)
        )

    def _are_placed_alike(self, pair: Pair) -> bool:
        """Return True if two calls are the only ones in a module, or both or none are at a line of both sides."""
        alone = self.is_at_this_line_alone(0, pair.target), self.is_at_this_line_alone(1, pair.baseline)
        return alone[0] == alone[1] or (pair.how == "module" and bool(pair.target.module))

    def odd_sources(self, side: int, call: Call) -> Iterator[tuple[str, Value]]:
        """Yield the sources of a call that the other side does not have, not even with elements in other places."""
        for slot, value in self._sides[side].flow.reads(call):
            if self.is_odd_source(side, value) and not any(one.has(value) for one in self._sources.relaid):
                yield slot, value

    def is_odd_source(self, side: int, value: Value) -> bool:
        return self.is_odd(side, value) and not self._is_made(side, value)

    def is_made_otherwise(self, side: int, value: Value) -> bool:
        """Return True if the step made a value, and the other side does not have it."""
        return self.is_odd(side, value) and self._is_made(side, value)

    def _is_made(self, side: int, value: Value) -> bool:
        return self._sides[side].flow.maker(value) is not None or bool(written_parts(value))

    def is_odd(self, side: int, value: Value) -> bool:
        """Return True if the other side does not have a value."""
        return self._sides[side].numbers.get(value.id) not in self._sides[1 - side].holders


def asked_otherwise(target: Call, baseline: Call) -> list[ArgumentDifference]:
    """Return the arguments that differ: no dtypes, and no sizes if the calls read unequal numbers of elements."""
    found = [one for one in argument_differences(target, baseline) if one.dtypes is None]
    counts = [sum(value.numel for _, value in call.input_values()) for call in (target, baseline)]
    return [one for one in found if one.name not in _SIZES or counts[0] == counts[1]]


def are_asked_otherwise(target: Call, baseline: Call) -> bool:
    """Return True if two calls get different arguments, other than dtypes and sizes that follow from their tensors."""
    return bool(asked_otherwise(target, baseline))


def _makes_integers(call: Call) -> bool:
    """Return True if a call makes nothing but integers."""
    return all(not value.is_floating for _, value in call.result_values())
