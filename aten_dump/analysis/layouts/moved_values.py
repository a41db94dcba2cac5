"""Values that calls of the layout made of others: are they still the same?

Theory of operation
    Between two ops of the program a tensor may be gathered, scattered, reduced, split and padded. Put together over all
    ranks it must hold what it held before. From an input of an op the calls of the layout behind it are walked back
    to values that the program made; one of the same shape that holds the same is what it was before, and takes its
    place. Many tensors may have gone through one buffer (FSDP gathers a layer's parameters at once), so several are
    tried. If one tensor alone went in, only calls of the layout are between, and it comes out as something else, moving
    it went wrong. Memory that is given back and gathered anew for backward holds what it held before: its views are the
    views that were seen there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from ...dump import Call, Value
from ...dump.across_ranks.assembled_rank import AssembledRank
from ...dump.across_ranks.assembled_value import AssembledValue
from ...dump.across_ranks.part_holders import spec_of
from ...errors import AtenDumpError
from ...store.op_names import is_collective, is_reduction
from ..distance.value_distance import Closeness, closeness, stride_class
from ..evidence.noise_floors import limits_of
from ..flow.data_flow import DataFlow

_MOST_TRIED: Final = 8
_MOST_CALLS: Final = 2000
_IN_ORDER: Final = ("contiguous", "with holes")  # stride classes; the holes are padding
_ROUNDINGS: Final = 4.0  # of a sum over ranks, times the root of their number


Place = tuple[int, int, int, int]


def _place(value: Value) -> Place:
    """Return what the views of one part have in common."""
    return value.storage, value.version, value.storage_offset, value.numel


@dataclass(frozen=True, slots=True)
class Fault:
    """A value that does not hold what went into it."""

    value: int  # read by `reader`
    origin: int
    reader: Call
    moved_by: Call  # the last collective on the way
    behind: tuple[Call, ...]  # all calls on the way, the lead's, in execution order
    found: Closeness
    limit: float


@dataclass(slots=True)
class Moves:
    """Finds what values were before they were moved; `aliases` and `faults` have the outcome."""

    rank: AssembledRank
    paired: frozenset[int]  # ids of calls with a counterpart
    read_data: bool = True
    aliases: dict[int, int] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    _used: set[int] = field(default_factory=set)
    _places: dict[Place, int] = field(default_factory=dict)  # DTensors, which are moved as flat views of their parts
    _made_of_parts: set[int] = field(default_factory=set)  # ids of DTensors
    _makers: DataFlow = field(init=False)

    def run(self, calls: Iterable[Call]) -> None:
        """Look at the inputs of ops of the program, in execution order."""
        lead = self.rank.lead
        self._makers = DataFlow(lead, "aten")
        for number, id in self.rank.ids.items():
            if spec_of(lead.tables.values[number].extra) is not None:
                held = self.rank.whole.holders[lead.rank].of(lead.value_by_id(number))
                self._places.setdefault(_place(held), id)
                self._made_of_parts.add(id)
        seen: set[int] = set()
        for call in calls:
            for _, value in call.input_values():
                if value.id not in seen and isinstance(value, AssembledValue):
                    seen.add(value.id)
                    self._value(call, value)

    def _value(self, call: Call, value: AssembledValue) -> None:
        if value.undefined or value.unsettled:
            return
        earlier = self._restored(value)
        if earlier is not None:
            self.aliases[value.id] = self.aliases.get(earlier, earlier)
            return
        origins, passed, behind = self._origins(value)
        fitting = []
        for number in (*passed, *origins):
            other = self.rank.value_by_id(self.aliases.get(number, number))
            if other.id != value.id and not (other.undefined or other.unsettled) and other.shape == value.shape:
                fitting.append(other)
        fitting.sort(key=lambda other: other.id in self._used)
        if not behind or not fitting:
            return
        limit = limits_of(value, fitting[0]).rel_l2 * _ROUNDINGS * math.sqrt(len(self.rank.ranks))
        found = None
        for other in fitting[:_MOST_TRIED]:
            try:
                found = closeness(value, other, data=self.read_data)
            except AtenDumpError:
                return
            if found.bitwise or (not found.nonfinite and found.error is not None and found.error <= limit):
                self.aliases[value.id] = other.id
                self._used.add(other.id)
                return
        if not self._is_paired(call):
            return
        collective = next((c for c in behind if is_collective(c.op)), None)
        held = value.assembly.parts[self.rank.lead.rank]
        only = len(origins) == 1 and all(maker.id in self.rank.aside for maker in behind)
        if collective is None or not only or stride_class(held) not in _IN_ORDER:  # it may be a transposed view
            return
        if found is not None and found.error is not None:
            self.faults.append(Fault(value.id, fitting[0].id, call, collective, tuple(reversed(behind)), found, limit))

    def _restored(self, value: AssembledValue) -> int | None:
        """Return what was seen at a place before the layout gave its memory back and filled it again with the same."""
        held = value.assembly.parts[self.rank.lead.rank]
        writer = self._makers.writer(held)
        if writer is None or self.rank.aside.get(writer[0].id, "local op") == "local op":  # such a one is the program's
            return None
        before = next((other for other in self._makers.earlier(held) if not other.undefined), None)
        if before is None:
            return None
        id = self.rank.ids[before.id]
        earlier = self.rank.value_by_id(id)
        if id == value.id or earlier.undefined or earlier.unsettled:
            return None
        return id if closeness(value, earlier, data=self.read_data).bitwise else None

    def _origins(self, value: AssembledValue) -> tuple[list[int], list[int], list[Call]]:
        """Return the values of the program behind a value, and the calls between, the last first.

        Between are also calls of the program without a counterpart, which may move tensors too: what these made comes
        second.
        """
        lead = self.rank.lead
        holders = self.rank.whole.holders[lead.rank]
        waiting = [value.assembly.parts[lead.rank]]
        seen = {waiting[0].id}
        origins: dict[int, None] = {}
        passed: dict[int, None] = {}
        behind: dict[int, Call] = {}
        while waiting and len(behind) < _MOST_CALLS:
            item = waiting.pop(0)
            maker = self._makers.maker(item)
            if maker is None or self._is_paired(maker):
                origins[self._id_of(item)] = None
                continue
            behind[maker.id] = maker
            if any(call.id not in self.rank.aside for call in _with_ops_around(maker)):
                passed[self._id_of(item)] = None
            given = [lead.value_by_id(number) for _, number in maker.input_slots()]
            if is_reduction(maker.op):  # in a buffer, of which others wrote the other parts
                given += islice((before for before in self._makers.earlier(item) if not before.undefined), 1)
            for held in map(holders.of, given):
                if held.id not in seen and not held.undefined:
                    seen.add(held.id)
                    waiting.append(held)
        return list(origins), list(passed), sorted(behind.values(), key=lambda call: -call.id)

    def _id_of(self, part: Value) -> int:
        """Return the id under which goes what the lead holds a part of."""
        id = self.rank.ids[part.id]
        return id if id in self._made_of_parts else self._places.get(_place(part), id)

    def _is_paired(self, call: Call) -> bool:
        """Tell whether a call, or the op on DTensors around it, has a counterpart."""
        return any(found.id in self.paired for found in _with_ops_around(call))


def _with_ops_around(call: Call) -> Iterator[Call]:
    found: Call | None = call
    while found is not None and found.kind == "aten":
        yield found
        found = found.parent
