"""Matches the memory that two steps leave, and finds what only one side leaves.

Theory of operation
    Memory with the same initial contents on both sides belongs together; if several have them (zeros, copies), those
    with the same final contents. Memory that the step reads later may be a bucket or a staging buffer: it counts only
    if the same amount of the other side's memory had these initial contents and was written too. An update may be too
    small to show beside the old contents, so the changes are compared. Memory that begins otherwise on both sides and
    is changed by the same is the same in another form. Running means that were not restored are changed otherwise, and
    differ. If the other side wrote no such memory, it may have allocated the result (`kept.py`); then the contents of
    the old memory are no end.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from ...dump import Value
from ..evaluation.evaluation import Evaluation
from ..flow.flat_memory import has_parts
from ..flow.left_memory import is_of_model
from ..flow.moving_ops import moves_elements
from ..signatures.signature import is_same
from .ends import End
from .kept import Before, Kept

Sides = tuple[Evaluation, Evaluation]


class LeftEnds:
    """Compares what two steps left in memory.

    Attributes:
        odd: the ends of each side that the other side lacks.
        unknown: names of ends that the other side may or may not keep.
    """

    def __init__(self, ends: tuple[Sequence[End], Sequence[End]], sides: Sides, before: Before | None) -> None:
        self._sides = sides
        self._kept = Kept(0, sides[0], before), Kept(1, sides[1], before)
        self.odd: tuple[list[End], list[End]] = ([], [])
        self.unknown: list[str] = []
        groups: dict[int | None, tuple[list[End], list[End]]] = {}
        left = [[end for end in of_side if end.kind == "left"] for of_side in ends]
        for side in (0, 1):
            for end in self._as_there(side, left[side], left[1 - side]):
                groups.setdefault(sides[side].began(end.buffer), ([], []))[side].append(end)
        for ours, theirs in groups.values():
            self._compare(ours, theirs)
        self._compare_states(([ours for ours, _ in groups.values()], [theirs for _, theirs in groups.values()]))
        self._begun = tuple(
            {side.numbers.get(value.id) for value in side.sources.values() if side.flow.writer(value) is None}
            for side in sides
        )
        self._leave_out_moved_alike()
        if self.odd[0] and self.odd[1]:  # they may be the same memory with other initial contents
            one, other = ([replace(end, is_alone=False) for end in side] for side in self.odd)
            self.odd = one, other

    def _leave_out_moved_alike(self) -> None:
        """Leave out memory of both sides that began with contents of its own and was changed by the same.

        A port may keep a weight in another form: minus one, where its layer adds one.
        """
        for end in list(self.odd[0]):
            like = next((other for other in self.odd[1] if self._are_moved_alike(end, other)), None)
            if like is not None:
                self.odd[0].remove(end)
                self.odd[1].remove(like)

    def _are_moved_alike(self, end: End, other: End) -> bool:
        if end.buffer is None or other.buffer is None or not (end.is_changed and other.is_changed):
            return False
        began = self._sides[0].began(end.buffer), self._sides[1].began(other.buffer)
        if began[0] in self._begun[1] or began[1] in self._begun[0]:
            return False
        changes = self._sides[0].changes.get(end.buffer.id), self._sides[1].changes.get(other.buffer.id)
        return changes[0] is not None and changes[1] is not None and is_same(changes[0], changes[1])

    def _as_there(self, side: int, ends: Sequence[End], others: Sequence[End]) -> list[End]:
        """Return the ends of a side; for long tensors the whole if the other side has it too, else the parts."""
        began = {self._sides[1 - side].began(end.buffer) for end in others}
        wholes = {end.buffer.storage: end for end in ends if end.buffer is not None and has_parts(end.buffer)}
        found = []
        for end in ends:
            whole = wholes.get(end.buffer.storage) if end.buffer is not None else None
            if whole is None or (whole is end) == (self._sides[side].began(whole.buffer) in began):
                found.append(end)
        return found

    def _compare(self, ours: list[End], theirs: list[End]) -> None:
        """Compare memory with the same initial contents."""
        is_paired = len(ours) == len(theirs)
        for end in list(ours):
            match = next((other for other in theirs if self._is_left_alike(end, other)), None)
            if match is not None:
                ours.remove(end)
                theirs.remove(match)
        for side, rest, others in ((0, ours, theirs), (1, theirs, ours)):
            for place, end in enumerate(rest):
                twin = others[place] if place < len(others) else None
                if twin is None and self._sides[1 - side].has_unseen:
                    continue  # compiled code may have written it too, unseen
                if self._is_counted_otherwise(1 - side, end) if twin is None else self._has_moved(side, end, twin):
                    continue
                if end.is_changed and (is_paired or not end.is_read) and self._is_odd(side, end, twin):
                    is_alone = twin is None and not self._is_written(1 - side, end)
                    self._add(side, replace(end, is_alone=is_alone))
                    if twin is not None:
                        self._add(1 - side, twin)

    def _compare_states(self, rest: Sequence[Sequence[Sequence[End]]]) -> None:
        """Compare what one call of a module adds to on both sides, as running means, if it began otherwise.

        Args:
            rest: the ends of each side that were not compared, by their initial contents.
        """
        known: list[dict[Hashable, End]] = [{}, {}]
        for side in (0, 1):
            for end in (one for some in rest[side] for one in some if one.is_read and one.is_changed):
                writer = self._sides[side].flow.writer(end.value)
                if writer is not None and is_of_model(writer[0]) and not moves_elements(writer[0].op):
                    call, slot, _ = writer
                    known[side].setdefault((call.module, call.op, call.phase, slot, *end.value.shape), end)
        for role, end in known[0].items():
            twin = known[1].get(role)
            if twin is None or end.number == twin.number:
                continue
            if self._is_odd(0, end, twin) and self._is_odd(1, twin, end):
                self._add(0, end)
                self._add(1, twin)

    def _has_moved(self, side: int, end: End, twin: End) -> bool:
        """Return True if a side keeps the other side's result elsewhere, and no longer uses the memory."""
        evaluation, other = self._sides[side], self._sides[1 - side]
        if twin.number is None or twin.buffer is None or twin.number not in evaluation.holders:
            return False
        kept = self._kept[side]
        made = other.left_as(twin.buffer)
        return kept.keeps(twin.number, made, end.buffer) is True and not kept.is_read_after(end.value)

    def _is_counted_otherwise(self, side: int, end: End) -> bool:
        """Return True if integers that the other side's program keeps are in no tensor of this side.

        Python may count, and an engine keeps lengths and places of the requests that it serves together.
        """
        if end.buffer is None or end.buffer.is_floating:
            return False
        writer = self._sides[1 - side].flow.writer(end.value)
        if writer is None or is_of_model(writer[0]):  # a module's buffer is a tensor on both sides
            return False
        evaluation, began = self._sides[side], self._sides[1 - side].began(end.buffer)
        numbers = (evaluation.numbers.get(v.id) for v in evaluation.sources.values() if v.dtype == end.buffer.dtype)
        return began not in numbers

    def _is_written(self, side: int, end: End) -> bool:
        """Return True if a side writes, within larger memory, to contents that were the same as the other side's."""
        evaluation = self._sides[side]
        began = self._sides[1 - side].began(end.buffer)
        storages = {v.storage for v in evaluation.sources.values() if evaluation.numbers.get(v.id) == began}
        storages -= {0, *(value.storage for value in evaluation.left)}
        records = evaluation.flow.rank.tables.values.records() if storages else ()
        return any(record.version and record.storage in storages for record in records)

    def _add(self, side: int, end: End) -> None:
        if end not in self.odd[side]:
            self.odd[side].append(end)

    def _is_left_alike(self, end: End, other: End) -> bool:
        if end.number != other.number:
            return False
        if end.buffer is None or other.buffer is None:
            return True
        changes = self._sides[0].changes.get(end.buffer.id), self._sides[1].changes.get(other.buffer.id)
        return changes[0] is None or changes[1] is None or is_same(changes[0], changes[1])

    def _is_odd(self, side: int, end: End, twin: End | None) -> bool:
        """Return True if the other side did not leave the same in other memory."""
        evaluation, other = self._sides[side], self._sides[1 - side]
        if end.number is None or end.number not in other.holders:
            return end.number is not None
        if end.buffer is None or (twin is not None and twin.number == end.number):
            return end.buffer is not None  # nearly equal, but changed differently: an update may be tiny
        began = evaluation.began(end.buffer)
        began_so = (value for value in other.sources.values() if other.numbers.get(value.id) == began)
        held = next((value for value in began_so if self._may_be(side, value, end)), None)
        kept = self._kept[1 - side].keeps(end.number, evaluation.left_as(end.buffer), held)
        if kept is None and held is not None:
            self.unknown.append(f"left behind ({end.name})")
        return kept is False

    def _may_be(self, side: int, value: Value, end: End) -> bool:
        """Return False for a single number that the module of an end does not read: it was equal by chance."""
        writer = self._sides[side].flow.writer(end.value)
        module = writer[0].module if writer is not None and value.numel == 1 else ""
        flow = self._sides[1 - side].flow
        readers = (call for call in flow.calls() if module and call.module == module)
        return not module or any(one.storage == value.storage for call in readers for _, one in flow.reads(call))
