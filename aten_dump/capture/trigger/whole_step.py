"""A step that is held back and written whole in the end: bytes of the calls in windows, of all others none."""

from __future__ import annotations

from ...store import records as r
from ...store.sink import Sink
from .held_bytes import HeldBytes
from .held_step import HeldStep


class WholeStep(HeldStep):
    """The records of one step, all of whose calls are written: those that the ring forgets without bytes."""

    def __init__(
        self, header: r.Header, before: int, held_bytes: HeldBytes, sink: Sink, statistics: tuple[str, ...]
    ) -> None:
        super().__init__(header, before, held_bytes, sink, statistics)
        self._file.leave_bytes()

    def end(self, seconds: dict[str, float], is_dropped: bool = False) -> None:
        if self.calls or not is_dropped:
            self._write_bare(len(self.calls))
        super().end(seconds, is_dropped)

    def drop_oldest(self) -> None:
        self._write_bare(1)

    def write(self, first: int, last: int, note: r.Note) -> None:
        self._write_bare(sum(held.position < first for held in self.calls))
        super().write(first, last, note)

    def is_around_written(self, call: r.Call) -> bool:
        return False

    def _write_bare(self, count: int) -> None:
        """Write the oldest calls without bytes."""
        self.open(())
        for _ in range(count):
            held = self.calls.popleft()
            self._write_call(held, with_bytes=False)
            self.values.drop(held.values)
        self._write_opens()
