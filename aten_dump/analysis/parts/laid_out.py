"""Finds values that the other side has in another layout: with rows in another order, or as terms of a sum.

Theory of operation
    If ends differ, the walk back from them should not blame calls that only arrange the work. One side may make a value
    several times, once for each part of the batch. These values stand for one of the other side if they add up to it
    (shares of a loss, gradients of a weight), or if together they hold its elements: the same count and norm. This
    decides only what counts as a counterpart in the search for the cause, never a verdict.
    Values made at one line of a module are split into k rounds, for each k that divides their number. Elements in
    another order, and picked rows, count as a layout only if at least two values have it: if only one has (permuted
    labels), the call that did it is the cause. Rows also count if a side begins with rows of the other side's sources,
    as with packed documents.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ...dump import Call, Value
from ..evaluation.evaluation import Evaluation
from ..pairing.call_keys import line_of
from ..signatures.signature import TOLERANCE, Signature, distance
from .parts import PartsFound

_MOVES: Final = frozenset(
    f"aten::{name}"
    for name in ("index", "index_select", "gather", "take", "take_along_dim", "flip", "roll", "sort", "embedding")
)
_SLICES: Final = frozenset(
    f"aten::{name}" for name in ("slice", "split", "split_with_sizes", "narrow", "select", "unbind", "tensor_split")
)
_LEAST_MOVED: Final = 2  # least number of values in another order that make a layout
_MOST_LIKE: Final = 64  # most values made at one line in one round
_SPREAD: Final = 10.0  # times the tolerance of a norm: error of a projection

Sides = tuple[Evaluation, Evaluation]


@dataclass(frozen=True, slots=True)
class _Made:
    """A result of a call, with its number and signature."""

    call: Call
    number: int
    signature: Signature


@dataclass(frozen=True, slots=True)
class Term:
    """A term of a sum, or of a mean, that the other side has."""

    of: int  # the number of the other side's value
    count: int  # number of all terms
    is_mean: bool


class LaidOut:
    """Finds values in another layout, and lets each side have the numbers of the other side's.

    Attributes:
        is_in_other_order: True if one side's rows are in another order than the other's.
        terms: the terms of each side, by number.
    """

    def __init__(self, sides: Sides, wrong: Collection[int], parts: PartsFound | None) -> None:
        """Look at both sides.

        Args:
            sides: evaluated.
            wrong: numbers of ends that differ, which stand for nothing.
            parts: the parts of the other side's values, if they were looked for.
        """
        self._sides = sides
        self._found: tuple[set[int], set[int]] = (set(), set())  # numbers of each side that the other side has
        self.terms: tuple[dict[int, Term], dict[int, Term]] = ({}, {})
        moved = self._taken_by(0, _MOVES), self._taken_by(1, _MOVES)
        self.is_in_other_order = any(len(some) >= _LEAST_MOVED for some in moved)
        if parts is not None and (self.is_in_other_order or parts.is_packed):
            for side in (0, 1):
                self._found[side].update(parts.in_rows[side])
        for side, some in enumerate(moved) if self.is_in_other_order else ():
            self._found[side].update(*some.values())
        for side in (0, 1):
            self._found[side].update(*self._taken_by(side, _SLICES).values())
            self._found[side].update(() if parts is None else parts.relaid.in_other_places[side])
        made = self._made_by(0), self._made_by(1)
        candidates = [*_alike(made), *_in_rounds(0, made), *_in_rounds(1, made)]
        for side, one, terms in sorted(candidates, key=lambda found: found[1].call.id):
            self._compare(side, one, terms)
        for side, numbers in enumerate(self._found):
            for number in numbers.difference(wrong, sides[1 - side].holders):
                sides[1 - side].holders[number] = []
                sides[1 - side].supposed.add(number)

    def _is_odd(self, side: int, number: int | None) -> bool:
        return number is not None and number not in self._sides[1 - side].holders

    def _taken_by(self, side: int, ops: Collection[str]) -> dict[int, set[int]]:
        """Return the values of which some ops read all elements, as the numbers of their results, by number."""
        evaluation = self._sides[side]
        taken: dict[int, list[_Made]] = defaultdict(list)
        for call in evaluation.flow.calls():
            if call.op.partition(".")[0] in ops and (reads := evaluation.flow.reads(call)):
                whole = evaluation.numbers.get(reads[0][1].id)
                if whole is None or self._is_odd(side, whole):
                    continue
                for _, value in call.result_values() if ops is _SLICES else evaluation.flow.results(call)[:1]:
                    made = self._made(side, call, value)
                    if made is not None and self._is_odd(side, made.number):
                        taken[whole].append(made)
        found: dict[int, set[int]] = {}
        for whole, parts in taken.items():
            of_whole = evaluation.signatures.get(next(iter(evaluation.holders.get(whole, ())), 0))
            if of_whole is None:
                continue
            for some in (*([one] for one in parts), parts):
                if may_hold([one.signature for one in some], of_whole):
                    found.setdefault(whole, set()).update(one.number for one in some)
        return found

    def _made(self, side: int, call: Call, value: Value) -> _Made | None:
        number = self._sides[side].numbers.get(value.id)
        signature = self._sides[side].signatures.get(value.id)
        return None if number is None or signature is None else _Made(call, number, signature)

    def _made_by(self, side: int) -> dict[str, list[_Made]]:
        """Return what a side makes, in order, by the slot."""
        found: dict[str, list[_Made]] = defaultdict(list)
        flow = self._sides[side].flow
        for call in flow.calls():
            for slot, value in flow.results(call) or call.output_values():  # of a view, what it shows
                made = self._made(side, call, value)
                if made is not None:
                    found[f"{call.op} {call.phase} {slot}"].append(made)
        return found

    def _compare(self, side: int, one: _Made, parts: Sequence[_Made]) -> None:
        """Let both sides have the numbers of a value and of its parts."""
        if not (self._is_odd(side, one.number) or any(self._is_odd(1 - side, part.number) for part in parts)):
            return
        signatures = [part.signature for part in parts]
        is_sum = len(parts) > 1 and _adds_up(signatures, one.signature, 1)
        is_met = is_sum or (len(parts) > 1 and _adds_up(signatures, one.signature, len(parts)))
        if is_met:
            self.terms[1 - side].update((part.number, Term(one.number, len(parts), not is_sum)) for part in parts)
        elif self.is_in_other_order and may_hold(signatures, one.signature):
            is_met = self._reads_met(side, one) and all(self._reads_met(1 - side, part) for part in parts)
        if is_met:
            self._found[side].add(one.number)
            self._found[1 - side].update(part.number for part in parts)

    def _reads_met(self, side: int, made: _Made) -> bool:
        """Return True if the other side has all that a call reads, perhaps in another layout."""
        evaluation = self._sides[side]
        numbers = (evaluation.numbers.get(value.id) for _, value in evaluation.flow.reads(made.call))
        return all(not self._is_odd(side, number) or number in self._found[side] for number in numbers)


def _alike(made: tuple[dict[str, list[_Made]], dict[str, list[_Made]]]) -> Iterator[tuple[int, _Made, list[_Made]]]:
    """Yield each result of the target with the baseline's at the same place: the nth in a module or at a line."""
    places: tuple[Callable[[_Made], Hashable], ...] = (lambda one: one.call.module, lambda one: line_of(one.call))
    for slot in (one for one in made[0] if one in made[1]):
        for place in places:
            ours, theirs = _by(made[0][slot], place), _by(made[1][slot], place)
            for where in (one for one in ours if one in theirs):
                if len(ours[where]) == len(theirs[where]):
                    yield from ((0, one, [other]) for one, other in zip(ours[where], theirs[where], strict=True))


def _in_rounds(
    side: int, made: tuple[dict[str, list[_Made]], dict[str, list[_Made]]]
) -> Iterator[tuple[int, _Made, list[_Made]]]:
    """Yield each result of a side with those of the other side's same op at one line, one of each round."""
    for slot in (one for one in made[0] if one in made[1]):
        wholes: dict[tuple[str, int], list[list[_Made]]] = defaultdict(list)  # by module and number in a round
        for (module, _), ones in _by_line(made[side][slot]).items():
            wholes[module, len(ones)].append(ones)
        for (module, _), others in _by_line(made[1 - side][slot]).items():
            for count in range(1, min(len(others) // 2, _MOST_LIKE) + 1):
                for ones in wholes.get((module, count), ()) if not len(others) % count else ():
                    yield from ((side, one, others[at::count]) for at, one in enumerate(ones))


def _by_line(made: Sequence[_Made]) -> dict[tuple[str, str], list[_Made]]:
    return _by(made, lambda one: (one.call.module, line_of(one.call)))


def _by(made: Sequence[_Made], key: Callable[[_Made], Hashable]) -> dict[Any, list[_Made]]:
    found: dict[Any, list[_Made]] = defaultdict(list)
    for one in made:
        found[key(one)].append(one)
    return found


def _adds_up(parts: Sequence[Signature], whole: Signature, times: int) -> bool:
    """Return True if tensors sum to so many times another."""
    if whole.nonfinite or any(part.nonfinite or part.numel != whole.numel for part in parts):
        return False
    allowed = _SPREAD * TOLERANCE * max(whole.norm, *(part.norm for part in parts))
    first, second = sum(part.first for part in parts) / times, sum(part.second for part in parts) / times
    return allowed > 0 and abs(first - whole.first) <= allowed and abs(second - whole.second) <= allowed


def may_hold(parts: Sequence[Signature], whole: Signature) -> bool:
    """Return True if tensors may hold the elements of another in another order: the count and norm are equal."""
    if sum(part.numel for part in parts) != whole.numel or sum(part.nonfinite for part in parts) != whole.nonfinite:
        return False
    norm = sum(part.norm**2 for part in parts) ** 0.5
    is_near = norm > 0 and abs(norm - whole.norm) <= TOLERANCE * whole.norm
    return is_near and (len(parts) > 1 or distance(parts[0], whole) > TOLERANCE * whole.norm)
