"""Who computes with what memory holds at some moment, or with what became of it later."""

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
        """Return True if one of some calls reads the memory of a value, as the value says it is or as it was later."""
        if not value.storage:
            return any(which(self._flow.rank.call(call)) for call, _ in _reads_of(self._flow).get((0, value.id), ()))
        found = _reads_of(self._flow).get((value.storage, 0), ())
        calls = (call for call, number in found if number == value.id or self._is_later(number, value))
        return any(which(self._flow.rank.call(call)) for call in calls)

    def _is_later(self, number: int, value: Value) -> bool:
        """Return True if what was read touches elements of a value, when they had been written."""
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
