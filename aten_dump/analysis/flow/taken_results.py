"""What the program took away: results that it was shown, and that no call computes with any more.

Theory of operation
    The program is shown what its outermost calls return, Python-level ones or ops. What one of them made and dropped
    inside (the statistics of a norm) it never had. What memory from outside holds is in `left_memory.py`.
"""

from __future__ import annotations

from ...dump import Call, Value
from .data_flow import DataFlow
from .last_reads import LastReads


class TakenResults:
    """The results of one recording that were taken away."""

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
