"""What a step leaves in memory that was there before it: parameters, buffers, averages of weights, counters.

Theory of operation
    Memory from outside outlives the step. Each place in it, a storage seen with a geometry, that the program's calls
    wrote has what stood there before, and what was left. Some of it is no state: what the step itself goes on to
    compute with is seen there (a bucket, a staging buffer); gradients are compared by their names, and whether they are
    overwritten or dropped is the program's affair; the scale of the loss goes with the precision; how an optimizer
    counts its steps, in a tensor or not, shows in the parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from ...dump import Call, Value
from ...errors import MissingDataError
from ...store.op_names import LIFT_FRESH, read_op_name
from ..distance.value_distance import closeness
from ..rerun.shared_memory import extent
from .data_flow import DataFlow
from .flat_memory import has_parts, long_tensors, parts_of
from .last_reads import LastReads
from .leaves import accumulations

_SCALES_LOSS: Final = "_amp_update_scale_"


@dataclass(frozen=True, slots=True)
class LeftPlace:
    """A place in memory from outside that the program wrote: what stood there before the step, and what it left."""

    before: Value
    last: Value
    writer: Call


class LeftMemory:
    """What one recording leaves in memory from outside."""

    def __init__(self, flow: DataFlow, *, read_data: bool = True) -> None:
        self._flow = flow
        self._read_data = read_data

    @cached_property
    def places(self) -> list[LeftPlace]:
        """The places that were written, in the order in which they were written last."""
        newest: dict[tuple[object, ...], LeftPlace] = {}
        for value in self._written():
            known = newest.get(value.record.place)
            if known is not None and known.last.version >= value.version:
                continue
            before = known.before if known is not None else next(reversed([*self._flow.earlier(value)]), None)
            writer = self._flow.writer(value)
            if before is None or writer is None:
                continue
            if writer[2].id == value.id:
                newest[value.record.place] = LeftPlace(before, value, writer[0])
            elif _is_part(value, writer[2]):
                newest.pop(value.record.place, None)  # `counterparts` covers flat memory
        return sorted(newest.values(), key=lambda place: place.last.id)

    @cached_property
    def last(self) -> dict[tuple[object, ...], Value]:
        """The last value of each place that was written, whoever made its memory: a storage seen with a geometry."""
        rank, newest = self._flow.rank, dict[tuple[object, ...], tuple[int, int]]()
        for record in rank.tables.values.records():
            if record.storage:
                newest[record.place] = max(newest.get(record.place, (-1, -1)), (record.version, record.id))
        return {place: rank.value_by_id(id) for place, (version, id) in newest.items() if version}

    def _written(self) -> Iterator[Value]:
        outside: dict[int, bool] = {}
        apart = self._literals | self._of_gradients
        for record in self._flow.rank.tables.values.records():
            if not (record.storage and record.version):
                continue
            value = self._flow.rank.value_by_id(record.id)
            if record.storage not in outside:
                outside[record.storage] = value.from_outside and record.storage not in apart
            is_said = not (value.undefined or value.composed or value.opaque or has_parts(value))
            if outside[record.storage] and is_said:
                yield value

    @cached_property
    def flat(self) -> dict[int, list[LeftPlace]]:
        """The long tensors from outside that the program wrote, by storage: each whole first, then its parts."""
        first: dict[int, Value] = {}
        last: dict[int, Value] = {}
        values = long_tensors(self._flow.rank)
        apart = self._literals | self._of_gradients if values else set()
        for value in values:
            if value.from_outside and value.storage not in apart:
                known = first.setdefault(value.storage, value)
                first[value.storage] = min(known, value, key=lambda one: one.version)
                last[value.storage] = max(last.get(value.storage, value), value, key=lambda one: one.version)
        found = {}
        for storage, value in last.items():
            writer = self._flow.writer(value)
            if value.version > first[storage].version and writer is not None:
                parts = [(first[storage], value), *zip(parts_of(first[storage]), parts_of(value), strict=True)]
                found[storage] = [LeftPlace(before, after, writer[0]) for before, after in parts]
        return found

    @cached_property
    def _literals(self) -> set[int]:
        """Return the storages of tensors that the step made of literals, which no op fills."""
        lifts = (call for call in self._flow.calls() if call.op == LIFT_FRESH)
        return {v.storage for call in lifts for _, v in call.input_values()}

    def is_state(self, place: LeftPlace) -> bool:
        """Return True if a place was left otherwise than it was, and nothing but the next step will see it."""
        if not self.outlives(place):
            return False
        close = closeness(place.before, place.last, data=self._read_data)
        return close.known and not close.bitwise and not (close.level == "statistic" and not close.error)

    def outlives(self, place: LeftPlace) -> bool:
        """Return True if nothing but the next step will see what was left at a place."""
        if self.serves_step(place):
            return False
        return not self._reads.is_read(place.last, lambda call: bool(self._flow.results(call)))

    def serves_step(self, place: LeftPlace) -> bool:
        """Return True if a place holds the scale of the loss, or how many steps an optimizer took."""
        counts_steps = place.writer.phase == "optimizer" and place.last.numel == 1
        return (counts_steps and _is_count(place)) or read_op_name(place.writer.op).name == _SCALES_LOSS

    @cached_property
    def _reads(self) -> LastReads:
        return LastReads(self._flow)

    @cached_property
    def _of_gradients(self) -> set[int]:
        """Return the storages that gradients of leaves lie in."""
        found = {value.storage for value in self._flow.rank.gradients.values()}
        for call in accumulations(self._flow):
            found |= {v.storage for one in (call, *call.children) for _, v in one.all_values()}
        return found

    def belongs_to_model(self, place: LeftPlace) -> bool:
        """Return True if a module or the optimizer wrote a place, or made what another call wrote there.

        An average of weights is; what a training loop counts is not.
        """
        if is_of_model(place.writer):
            return True
        given = {v.storage for _, v in self._flow.reads(place.writer)} - {place.last.storage}
        return bool(given & self._of_model)

    @cached_property
    def _of_model(self) -> set[int]:
        """Return the storages from outside that a module or the optimizer writes."""
        return {place.last.storage for place in self.places if is_of_model(place.writer)}


def _is_count(place: LeftPlace) -> bool:
    """Return True if a number may be a count of steps: a parameter, or a rank's share of one, may have one element."""
    if place.before.requires_grad:
        return False
    try:
        return bool(place.last.shared_tensor().item() - place.before.shared_tensor().item() == 1)
    except (MissingDataError, NotImplementedError):  # not recorded, or without elements
        return True


def _is_part(value: Value, whole: Value) -> bool:
    """Return True if a value lies in flat memory that was written whole."""
    first, past = extent(whole)
    return has_parts(whole) and first <= extent(value)[0] and extent(value)[1] <= past


def is_of_model(call: Call) -> bool:
    """Return True if a call ran in a module or is the optimizer's."""
    if call.module or call.phase == "optimizer":
        return True
    around = call.parent
    while around is not None and around.kind != "module":
        around = around.parent
    return around is not None
