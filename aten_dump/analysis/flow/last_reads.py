"""Finds out who reads memory as it was at some moment, or as it became later.

Theory of operation
    A program gets what its outermost calls return, whether Python-level calls or ops. It never gets what one of them
    made and dropped inside (the statistics of a norm). Memory from outside is in `left_memory.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from ...dump import Call, Value
from ..rerun.shared_memory import extent
from .data_flow import DataFlow, once_per_flow

Which = Callable[[Call], bool]


class LastReads:
    """The reads of one recording, by memory."""

    def __init__(self, flow: DataFlow) -> None:
        self._flow = flow

    def is_read(self, value: Value, which: Which = lambda call: True) -> bool:
        """Return True if one of some calls reads the memory of a value, at its version or later."""
        if not value.storage:
            return any(which(self._flow.rank.call(call)) for call, _ in _reads_of(self._flow).get((0, value.id), ()))
        found = _reads_of(self._flow).get((value.storage, 0), ())
        calls = (call for call, number in found if number == value.id or self._is_later(number, value))
        return any(which(self._flow.rank.call(call)) for call in calls)

    def _is_later(self, number: int, value: Value) -> bool:
        """Return True if what was read shows elements of a value after they were written."""
        record = self._flow.rank.tables.values[number]
        if record.version < value.version:
            return False
        (low, high), (start, end) = extent(self._flow.rank.value_by_id(number)), extent(value)
        return low < end and start < high


@once_per_flow
def _reads_of(flow: DataFlow) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Return the ids of calls and of the values that they read, by storage; by value of what has none."""
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for call in flow.calls():
        if flow.is_view(call):
            continue
        for _, value in flow.reads(call):
            key = (value.storage, 0) if value.storage else (0, value.id)
            found.setdefault(key, []).append((call.id, value.id))
    return found


class TakenResults:
    """The results of one recording that the program got and no call reads."""

    def __init__(self, flow: DataFlow) -> None:
        self._flow = flow
        self._reads = LastReads(flow)
        self._outermost: dict[int, int] = {}

    def all(self) -> list[Value]:
        """Return them in the order in which they were made."""
        found = {value.id: value for call in self._flow.rank.roots for value in self._of(call)}
        return [found[number] for number in sorted(found)]

    def _of(self, call: Call) -> list[Value]:
        if call.kind == "node" or call.phase != "forward" or self._flow.is_apart(call):
            return []
        return [v for _, v in call.result_values() if not v.undefined and self.is_taken(call, v)]

    def is_taken(self, call: Call, value: Value) -> bool:
        """Return True if a result of an outermost call was made in the step, and no call after it computes with it."""
        return self.is_made(value) and not self._reads.is_read(value, lambda other: self._root(other) != call.id)

    def is_made(self, value: Value) -> bool:
        """Return True if a value is of memory that the step made."""
        return self._flow.maker(value) is not None and not (value.storage and value.from_outside)

    def _root(self, call: Call) -> int:
        """Return the id of the outermost call that a call ran in."""
        found = self._outermost.get(call.id)
        if found is None:
            parent = call.parent
            found = self._outermost[call.id] = call.id if parent is None else self._root(parent)
        return found
