"""A call that has ended, as a ring holds it, and which values it names."""

from __future__ import annotations

from ...store.records import Call
from ..values.encoded_trees import values_in


class HeldCall:
    """A call that has ended, with its position among all calls of the run."""

    __slots__ = ("inputs", "position", "record", "results")

    def __init__(self, position: int, record: Call) -> None:
        self.position = position
        self.record = record
        # Tuples of numbers, which the garbage collector leaves alone: thousands of calls are held.
        self.inputs = (*values_in(record.args), *values_in((record.kwargs or {}).values()))  # ids, of the arguments
        # Of what it returned and wrote.
        self.results = (*values_in((record.outputs,)), *values_in((record.written or ())[1::2]))

    @property
    def values(self) -> tuple[int, ...]:
        """Return the ids of all values that it names."""
        return self.inputs + self.results
