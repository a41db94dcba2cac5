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
        self.inputs = values_in(record.args)  # value ids of the arguments
        if record.kwargs:
            self.inputs += values_in(record.kwargs.values())
        self.results = values_in((record.outputs,))  # value ids of what it returned and wrote
        if record.written:
            self.results += values_in(record.written[1::2])

    @property
    def values(self) -> list[int]:
        """Return the ids of all values that it names."""
        return self.inputs + self.results
