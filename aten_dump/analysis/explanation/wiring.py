"""Where what two calls read began to differ.

Theory of operation
    Two calls of one op are given other values. Between what both sides have and what they read there may be a call that
    one side makes more, another op at the same line, or a view with other arguments. Otherwise the calls that made the
    two values are followed back, as long as both sides make them by the same op: to the first that reads or computes
    something else. Values that differ by a hair, which counts as the same, are followed in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ...dump import Call, Value
from ..evaluation.evaluation import Evaluation
from ..evidence.evidence_rows import Pair
from ..pairing.call_keys import place_of
from ..signatures.signature import is_equal
from .candidates import Candidates, are_asked_otherwise

_MOST_BETWEEN: Final = 16  # calls that one side makes more between two values

Sides = tuple[Evaluation, Evaluation]
Calls = tuple[Call, Call]
IsAlike = Callable[[Value, Value], bool]


class Wiring:
    """Finds where what two calls read began to differ."""

    def __init__(
        self,
        sides: Sides,
        pairs: tuple[Mapping[int, Pair], Mapping[int, Pair]],
        candidates: Candidates,
        is_part: IsAlike,
        is_elsewhere: IsAlike,
    ) -> None:
        """Prepare to look.

        Args:
            sides: evaluated.
            pairs: of their calls, by the ids of each side's.
            candidates: knows which calls and sources one side has alone.
            is_part: says whether one of two values is a part of the other.
            is_elsewhere: says whether one of two values has the rows of the other, or is a part of it.
        """
        self._sides = sides
        self._pairs = pairs
        self._candidates = candidates
        self._is_part = is_part
        self._is_elsewhere = is_elsewhere

    def viewed_otherwise(self, first: Call, other: Call, slot: str) -> Calls | None:
        """Return the calls at one place that showed what two calls read in a slot, if they were given other arguments.

        What a call shows may be what an earlier one showed: then that is its maker.
        """
        reads = self._read(first, other, slot)
        for side in (0, 1):
            maker = self._sides[side].flow.maker(reads[side])
            pair = None if maker is None else self._pairs[side].get(maker.id)
            if pair is not None and first is not pair.target and are_asked_otherwise(pair.target, pair.baseline):
                shown = [[value.id for _, value in call.result_values()] for call in (pair.target, pair.baseline)]
                if all(value.id in ids for value, ids in zip(reads, shown, strict=True)):
                    return pair.target, pair.baseline
        return None

    def added(self, first: Call, other: Call, slot: str) -> tuple[int, Call] | None:
        """Return the side and the call by which it makes what it reads in a slot of what the other reads."""
        reads = self._read(first, other, slot)
        for side, value in enumerate(reads):
            call = self._between(side, value, self._sides[1 - side].number_of(reads[1 - side]))
            if call is not None:
                return side, call
        return None

    def _between(self, side: int, value: Value, wanted: int | None) -> Call | None:
        """Return the first call between a value of some number and another one, if one side alone makes them."""
        evaluation, found = self._sides[side], None
        waiting, seen = [value], set[int]()
        while waiting and wanted and len(seen) < _MOST_BETWEEN:
            writer = evaluation.flow.writer(waiting.pop())
            call = None if writer is None else writer[0]
            if call is None or call.id in seen or not self._candidates.is_added(side, call):
                continue
            seen.add(call.id)
            read = [one for _, one in call.input_values()]
            if any(evaluation.number_of(one) == wanted for one in read):
                found = call if found is None or call.id < found.id else found
            waiting += read
        return found

    def other_op(self, first: Call, other: Call, slot: str) -> Calls | None:
        """Return the calls that made what two calls read in a slot, if they do another op at one line on the same."""
        maker, its = self._makers(*self._read(first, other, slot))
        if maker is None or its is None or maker.op == its.op or place_of(maker)[1:] != place_of(its)[1:]:
            return None
        given = [
            [(slot, side.numbers.get(value.id)) for slot, value in side.flow.reads(call)]
            for side, call in zip(self._sides, (maker, its), strict=True)
        ]
        return (maker, its) if given[0] == given[1] else None

    def made_alike(self, first: Call, other: Call, slot: str) -> Calls | None:
        """Return where what two calls read in a slot begins to differ, if calls at the same places make it.

        Both sides know rows that only lie in other places, so a difference between such rows shows late. Of the
        calls behind, those that take sources which the baseline does not have come first, then the first that reads or
        computes something else.
        """
        waiting = [*filter(None, [self.pair_that_made(*self._read(first, other, slot))])]
        seen: dict[int, tuple[Pair, bool]] = {}  # and whether all that differs before it is made by pairs as well
        while waiting:
            pair = waiting.pop()
            read, there = dict(self._sides[0].flow.reads(pair.target)), dict(self._sides[1].flow.reads(pair.baseline))
            if any(self._candidates.is_odd_source(0, value) for value in read.values()):
                return pair.target, pair.baseline
            both = [(value, there[slot]) for slot, value in read.items() if slot in there]
            both = [(one, two) for one, two in both if self._sides[0].number_of(one) != self._sides[1].number_of(two)]
            behind = [self.pair_that_made(one, two) for one, two in both if not self._is_elsewhere(one, two)]
            seen[pair.target.id] = pair, bool(behind) and None not in behind
            waiting += [one for one in behind if one is not None and one.target.id not in seen]
        outer = (pair for _, (pair, is_inner) in sorted(seen.items()) if not is_inner)
        found = next((pair for pair in outer if self._sides[0].flow.reads(pair.target)), None)  # and is no table
        return None if found is None else (found.target, found.baseline)

    def parted_before(self, first: Call, other: Call) -> Calls | None:
        """Return the calls with which what two calls read began to differ, if it is the same but for a hair.

        What an optimizer's epsilon is added to may be, and a loss that hardly shows a mask. From there on the calls
        that made it are followed back, as long as both sides make it by the same op.
        """
        if (views := self._asked_for_otherwise(first, other)) is not None:
            return views
        waiting, seen = [(first, other)], set[int]()
        found: list[Calls] = []
        while waiting:
            target, baseline = waiting.pop()
            seen.add(target.id)
            read = self._both_given(target, baseline)
            makers = [self._makers(*pair) for pair in read if not (self._is_exact(*pair) or self._is_part(*pair))]
            begins = not makers or are_asked_otherwise(target, baseline)
            for maker, like in makers:
                if maker is None or like is None:
                    begins = True
                elif maker.op != like.op:
                    found.append((maker, like))
                elif maker.id not in seen:
                    waiting.append((maker, like))
            if begins and target is not first:
                found.append((target, baseline))
        return min(found, key=lambda calls: calls[0].id, default=None)

    def _asked_for_otherwise(self, first: Call, other: Call) -> Calls | None:
        """Return the calls that made what two calls read or write to, if they are of one op with other arguments."""
        for one, its in self._both_given(first, other):
            maker, like = self._makers(one, its)
            if maker is None or like is None or maker.op != like.op or self._is_part(one, its):
                continue
            if are_asked_otherwise(maker, like):
                return maker, like
        return None

    @staticmethod
    def _both_given(first: Call, other: Call) -> Sequence[tuple[Value, Value]]:
        """Return what two calls are given in the same slots, also what they only write to: it says where."""
        theirs = dict(other.input_values())
        return [(value, theirs[slot]) for slot, value in first.input_values() if slot in theirs]

    def _is_exact(self, value: Value, other: Value) -> bool:
        """Return True if two values are the same to all digits of float64; of one without elements, by its number."""
        one, its = self._sides[0].signatures.get(value.id), self._sides[1].signatures.get(other.id)
        if one is None or its is None:
            return self._sides[0].number_of(value) == self._sides[1].number_of(other)
        return is_equal(one, its)

    def pair_that_made(self, value: Value, theirs: Value) -> Pair | None:
        """Return the calls that made two values, if they stand at the same place."""
        maker = self._sides[0].flow.maker(value)
        pair = None if maker is None else self._pairs[0].get(maker.id)
        return pair if pair is not None and self._sides[1].flow.maker(theirs) is pair.baseline else None

    def _makers(self, value: Value, theirs: Value) -> tuple[Call | None, Call | None]:
        return self._sides[0].flow.maker(value), self._sides[1].flow.maker(theirs)

    def _read(self, first: Call, other: Call, slot: str) -> tuple[Value, Value]:
        """Return what two calls read in a slot."""
        return dict(self._sides[0].flow.reads(first))[slot], dict(self._sides[1].flow.reads(other))[slot]
