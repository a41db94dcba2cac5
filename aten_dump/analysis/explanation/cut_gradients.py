"""Finds where one side cuts off a gradient that the other has: a detach, a no_grad block, a frozen parameter.

Theory of operation
    A lost gradient shows in the backward, but the mistake is in the forward. It is looked for on the side that lacks
    the gradient, among the values that both sides have: values that only this side detaches, values made without a
    gradient, and parameters that need none. Such a value is the reason if the backward that only the other side has
    belongs to a call that read or made it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ...dump import Call, Value
from ..cone.cone import Cone, cone_of
from ..ends.ends import End, lost_gradients, number_of
from ..evaluation.evaluation import Evaluation
from .left_alone import SIDES
from .other_sources import first_reader
from .unread import unread

_MOST_NAMED: Final = 3
_DETACH: Final = "aten::detach"


@dataclass(frozen=True, slots=True)
class CutGradient:
    """What cuts a gradient off on one side."""

    side: int
    call: Call
    text: str


class CutGradients:
    """Finds what cuts gradients off."""

    def __init__(self, sides: tuple[Evaluation, Evaluation], ends: tuple[list[End], list[End]]) -> None:
        self._sides = sides
        self._ends = ends

    def find(self, cones: tuple[Cone, Cone], odd: tuple[Sequence[End], Sequence[End]]) -> CutGradient | None:
        """Return the first cut of either side that explains what differs, or None.

        Args:
            cones: the calls behind the gradients that differ.
            odd: the ends that differ.
        """
        found = [cut for side in (0, 1) if (cut := self._of_side(side, cones[1 - side], odd[1 - side])) is not None]
        return min(found, key=lambda cut: cut.call.id, default=None)

    def _of_side(self, side: int, lost: Cone, odd: Sequence[End]) -> CutGradient | None:
        """Return what cuts off a gradient on a side, if only the other side has it."""
        if not self._ends[1 - side] or not odd:
            return None
        missing = self._missing(side, odd)
        if not missing and not self._lacks_backward(side):
            return None
        if (without := self._unread(side, missing)) is not None:
            return without
        touched = self._touched(1 - side, lost)
        touched |= {self._sides[1 - side].numbers.get(end.leaf.id, 0) for end in missing if end.leaf is not None}
        last = self._last_reads(side)
        cuts = [
            (call, True)
            for number, call in self._cuts(side)
            if number in touched and any(last.get(value.id, 0) > call.id for _, value in call.result_values())
        ]
        frozen = [(call, False) for number, call in self._frozen(side) if number in touched]
        call, flows = min(cuts or frozen, key=lambda found: found[0].id, default=(None, False))
        if call is None:
            return None
        here, there = SIDES[side], SIDES[1 - side]
        text = f"no gradient flows back through it in the {here}, in the {there} one does" if flows else ""
        told = f"{self._names(1 - side, missing)} a gradient in the {there} only" if missing else ""
        if not flows:
            told = told or f"a tensor that it is given has a gradient in the {there} only"
            told += f": in the {here} it needs none"
        return CutGradient(side, call, "; ".join(part for part in (text, told) if part))

    def _lacks_backward(self, side: int) -> bool:
        """Return True if the other side's backward has calls that this side's lacks, or has them more often."""
        calls = [
            Counter(call.op for call in one.flow.calls() if call.phase == "backward")
            for one in (self._sides[side], self._sides[1 - side])
        ]
        return bool(calls[1] - calls[0])

    def _last_reads(self, side: int) -> dict[int, int]:
        """Return the last call that reads each value on the way to a side's ends, by id."""
        leading = cone_of(self._sides[side], (), [end.value for end in self._ends[side]]).calls
        reads = self._sides[side].flow.reads
        return {value.id: number for number, call in sorted(leading.items()) for _, value in reads(call)}

    def _unread(self, side: int, missing: Sequence[End]) -> CutGradient | None:
        """Return the first call of a side that does not read a parameter which the other side reads."""
        found = []
        for end in missing:
            if end.leaf is not None and (calls := unread(self._sides, side, end.leaf)) is not None:
                here, there = calls
                text = f"{end.name} has a gradient in the {SIDES[1 - side]} only: in the {SIDES[side]} no call reads it"
                found.append(CutGradient(1 - side, there, text) if here is None else CutGradient(side, here, text))
        return min(found, key=lambda cut: cut.call.id, default=None)

    def _missing(self, side: int, odd: Sequence[End]) -> list[End]:
        """Return those of some ends that are gradients which a side does not have at all."""
        names = {end.name for end in self._ends[side] if end.is_named}
        lost = {id(end) for end in lost_gradients(1 - side, self._ends, self._sides, made_within=True)}
        return [end for end in odd if id(end) in lost or (end.is_named and end.name not in names)]

    def _names(self, side: int, ends: Sequence[End]) -> str:
        names = [self._name(side, end) for end in ends]
        told = ", ".join(names[:_MOST_NAMED]) + (f" and {len(names) - _MOST_NAMED} more" * (len(names) > _MOST_NAMED))
        return f"{told} {'have' if len(names) > 1 else 'has'}"

    def _name(self, side: int, end: End) -> str:
        """Return the name of a parameter, or the reader of a leaf without a name."""
        evaluation = self._sides[side]
        if end.is_named or end.leaf is None:
            return end.name
        reader = first_reader(evaluation, {evaluation.numbers.get(end.leaf.id, 0)})
        return "a leaf" if reader is None else f"what {reader.name} is given"

    def _touched(self, side: int, cone: Cone) -> set[int]:
        """Return the numbers of all inputs and results of the forward calls whose backward is in a cone."""
        evaluation = self._sides[side]
        flow, found = evaluation.flow, set[int]()
        for call in cone.calls.values():
            forward = call.forward if call.phase == "backward" else None
            for _, value in (*flow.results(forward), *flow.reads(forward)) if forward is not None else ():
                shown: Value | None = value
                while shown is not None:
                    found.add(evaluation.numbers.get(shown.id, 0))
                    maker = flow.maker(shown)
                    shown = flow.reads(maker)[0][1] if maker is not None and flow.is_view(maker) else None
        found.discard(0)
        for call in _forward(evaluation):  # the backward of a sum passes the gradient on without an op
            given = {evaluation.numbers.get(value.id, 0) for _, value in flow.reads(call)}
            if given & found and call.sequence_nr is not None and all(one.kind != "aten" for one in call.backward):
                found |= {evaluation.numbers.get(value.id, 0) for _, value in flow.results(call)} - {0}
        return found

    # -- what cuts off -----------------------------------------------------------------------------------------------

    def _cuts(self, side: int) -> Iterator[tuple[int, Call]]:
        """Yield the forward calls that cut off a gradient, each with the number of the value that loses it."""
        yield from self._detaches(side)
        evaluation, other = self._sides[side], self._sides[1 - side]
        for call in evaluation.flow.calls():  # gradients may be asked for without their graph, and computed with
            if call.phase != "forward" or call.sequence_nr is not None or _has_own_backward(call):
                continue
            for _, value in evaluation.flow.results(call):
                number = evaluation.numbers.get(value.id)
                if number is not None and value.is_floating and self._has_node(other, number):
                    yield number, call

    @staticmethod
    def _has_node(evaluation: Evaluation, number: int) -> bool:
        """Return True if autograd made a node of each call that made a value."""
        flow = evaluation.flow
        makers = (flow.maker(flow.rank.value_by_id(held)) for held in evaluation.holders.get(number, ()))
        found = [maker.sequence_nr is not None for maker in makers if maker is not None and not flow.is_view(maker)]
        return bool(found) and all(found)

    def _detaches(self, side: int) -> Iterator[tuple[int, Call]]:
        """Yield what a side detaches more often than the other."""
        left = Counter(key for key, _, _ in self._detached(1 - side))
        for key, number, call in self._detached(side):
            if left[key]:
                left[key] -= 1
            elif call.parent is None or not _is_differentiated(call.parent):
                yield number, call

    def _detached(self, side: int) -> Iterator[tuple[Hashable, int, Call]]:
        evaluation = self._sides[side]
        for call in _forward(evaluation):
            if call.op == _DETACH:
                for _, value in call.input_values():
                    number = number_of(evaluation, value) or 0
                    yield (number, _around(call)), number, call

    def _frozen(self, side: int) -> Iterator[tuple[int, Call]]:
        """Yield the first reader of each source that needs a gradient only on the other side.

        Several sources may hold the same elements (ones, zeros): then the counts are compared.
        """
        evaluation = self._sides[side]
        needed = [_needing_gradients(one) for one in (evaluation, self._sides[1 - side])]
        for value in evaluation.sources.values():
            number = evaluation.numbers.get(value.id, 0)
            if value.is_floating and not value.requires_grad and needed[0][number] < needed[1][number]:
                reader = first_reader(evaluation, {number})
                if reader is not None:
                    yield number, reader


def _needing_gradients(evaluation: Evaluation) -> Counter[int]:
    """Return how many sources of each number need a gradient; views of one memory count once."""
    found = {
        (evaluation.numbers.get(value.id, 0), value.record.place or value.id)
        for value in evaluation.sources.values()
        if value.requires_grad
    }
    return Counter(number for number, _ in found)


def _forward(evaluation: Evaluation) -> Iterator[Call]:
    """Yield the calls of the forward: those before the backward begins."""
    calls = [*evaluation.flow.calls()]
    begun = next((call.id for call in calls if call.phase == "backward"), sys.maxsize)
    return (call for call in calls if call.phase == "forward" and call.id < begun)


def _has_own_backward(call: Call) -> bool:
    """Return True if a call is part of one that has a backward: inside an autograd function there are no nodes."""
    around = call.parent
    while around is not None and not _is_differentiated(around):
        around = around.parent
    return around is not None


def _is_differentiated(call: Call) -> bool:
    """Return True if a Python-level call has a backward: detaching inside of it cuts nothing off."""
    return call.kind == "api" and bool(call.backward)


def _around(call: Call) -> str:
    """Return the op of the Python-level call that a call is part of."""
    around = call.parent
    return around.op if around is not None and around.kind == "api" else ""
