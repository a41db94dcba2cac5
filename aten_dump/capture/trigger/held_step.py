"""A step that is held back.

Theory of operation
    A `HeldStep` takes the records of one step. Calls are kept in the order in which they ended, numbered through the
    steps of the run, until the ring drops them; with them go facts about values that are named by no call any more
    and whose memory has been written since. Small things that a later call may name (texts, ops, stacks, values) stay
    as long as the step does. `write` passes on the calls of a window and what they name; from then on the step's files
    are open (`step_file`), and what belongs to a written call is passed on as it comes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from ...patterns import is_of_library
from ...store import records as r
from ...store.sink import Sink
from .held_bytes import HeldBytes
from .held_call import HeldCall
from .held_values import HeldValues
from .step_file import HeldPacks, StepFile

_TABLES: Final = frozenset((r.TEXT, r.OP, r.FRAME, r.STACK))
_FACTS: Final = frozenset((r.DATA, r.STATISTICS, r.HASH, r.SAME))


class HeldStep:
    """The records of one step."""

    def __init__(
        self, header: r.Header, before: int, held_bytes: HeldBytes, sink: Sink, statistics: tuple[str, ...]
    ) -> None:
        """Begin a step.

        Args:
            header: its header.
            before: calls of the steps before it.
            held_bytes: keeps the bytes.
            sink: is written to.
            statistics: the names of the numbers in Statistics records; empty where there are none.
        """
        self.number = header.step
        self.before = before
        self.count = 0  # calls so far
        self.calls: deque[HeldCall] = deque()
        self.values = HeldValues(held_bytes, statistics)
        self.tables = HeldTables()
        self._file = StepFile(header, self.values, held_bytes, sink)
        self._packs = HeldPacks(self._file)
        self._is_over = False
        self._seconds: dict[str, float] = {}
        self._randoms: dict[int, r.Random] = {}  # by call
        self._saved: dict[int, list[r.Saved]] = {}  # by call
        self._opens: dict[int, r.Open] = {}
        self._gradients: list[tuple[int, r.Gradient]] = []  # with the calls that had ended before
        self._takers: dict[int, Callable[[Any], None]] = {
            r.STORAGE: self.values.add_storage,
            r.VALUE: self.values.add,
            r.OPEN: self._take_open,
            r.RANDOM: self._take_random,
            r.SAVED: self._take_saved,
            r.GRADIENT: self._take_gradient,
            r.PACKED: self._packs.take_packed,
            r.FETCHED: self._packs.take_fetched,
            r.MODE: self._pass_on_or_hold,
            r.OPTIMIZER_GROUPS: self._pass_on_or_hold,
            r.PARAMETERS: self._pass_on_or_hold,
            r.GRAPH: self._pass_on_or_hold,
            r.KERNEL: self._pass_on_or_hold,
            r.NOTE: self._pass_on_or_hold,
            **dict.fromkeys(_TABLES, self._take_table),
            **dict.fromkeys(_FACTS, self._take_fact),
        }

    # -- what the recorder says

    def take(self, record: tuple[Any, ...]) -> None:
        """Take a record that is not a Call."""
        take = self._takers.get(record[0])
        if take is not None:
            take(record)
        elif self._file.is_open:
            self._file.emit(record)

    def add(self, call: r.Call) -> HeldCall:
        """Take a call that has ended."""
        self._opens.pop(call.id, None)
        self.count += 1
        held = HeldCall(self.before + self.count, call)
        self.calls.append(held)
        self.values.use(held.values)
        return held

    def end(self, seconds: dict[str, float], is_dropped: bool = False) -> None:
        """Take it that the step is over; its files are complete, if it has any. `is_dropped`: it is to leave none."""
        self._is_over = True
        self._seconds = seconds
        if self._file.is_open:
            self._file.close(seconds)

    def _pass_on_or_hold(self, record: tuple[Any, ...]) -> None:
        self._file.emit(record) if self._file.is_open else self.tables.hold(record)

    def _take_table(self, record: Any) -> None:
        self.tables.learn(record)
        self._pass_on_or_hold(record)

    def _take_fact(self, record: Any) -> None:
        if self._file.has_value(record.value) and not (record.kind == r.DATA and self._file.is_bare(record.value)):
            self._file.write_fact(record)
        else:
            self.values.add_fact(record)

    def _take_open(self, record: r.Open) -> None:
        self._opens[record.id] = record._replace(args=(), kwargs=None)  # their values may never be written

    def _take_random(self, record: r.Random) -> None:
        self._randoms[record.call] = record

    def _take_saved(self, record: r.Saved) -> None:
        if self._file.has_call(record.call):
            self._file.write_saved(record)
        else:
            self._saved.setdefault(record.call, []).append(record)

    def _take_gradient(self, record: r.Gradient) -> None:
        if self._file.is_open:
            self._file.write_gradient(record)
        else:
            self._gradients.append((self.before + self.count, record))

    # -- forgetting

    def drop_oldest(self) -> None:
        """Forget the oldest call, and what is known of its values where their memory has been written since."""
        call = self.calls.popleft()
        self._randoms.pop(call.record.id, None)
        self._saved.pop(call.record.id, None)
        self._packs.drop(call.record.id)
        self.values.drop(call.values)

    # -- writing

    @property
    def is_open(self) -> bool:
        """True if its files are open."""
        return self._file.is_open

    @property
    def can_be_written(self) -> bool:
        """True if something of it can be written: its files are open, or not begun."""
        return self._file.can_be_written

    def open(self, notes: Iterable[r.Note]) -> None:
        """Begin its files, where they are not, with notes that say why."""
        if not self._file.is_open:
            self._file.open(self.tables.release())
        for note in notes:
            self._file.emit(note)

    def write(self, first: int, last: int, note: r.Note) -> None:
        """Write the held calls of these positions and those around them, with a note that says why."""
        self.open([note])
        kept: deque[HeldCall] = deque()
        for held in self.calls:
            if held.position >= first and (held.position <= last or held.record.id < self._file.last_id):
                self._write_call(held)
            else:
                kept.append(held)
        self.calls = kept
        for position, gradient in self._gradients:
            if position >= first:
                self._file.write_gradient(gradient)
        self._gradients = []
        self._write_opens()
        if self._is_over:
            self._file.close(self._seconds)

    def write_newest(self) -> None:
        """Write the call that was added last."""
        self._write_call(self.calls.pop())
        self._write_opens()

    def is_around_written(self, call: r.Call) -> bool:
        """Return True if a call that has just ended was under way when a written one began."""
        return self._file.is_open and call.id < self._file.last_id

    def _write_call(self, held: HeldCall, with_bytes: bool = True) -> None:
        number = held.record.id
        self._file.write_call(held.record, held.values, self._randoms.pop(number, None), with_bytes)
        for saved in self._saved.pop(number, ()):
            self._file.write_saved(saved)
        self._packs.write(number)

    def _write_opens(self) -> None:
        """Return which written calls' callers are still under way: their Call records come when they end."""
        for record in [record for record in self._opens.values() if record.id < self._file.last_id]:
            self._file.emit(self._opens.pop(record.id))


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


class HeldTables:
    """The tables and notes of one step, in order, until its files begin."""

    def __init__(self) -> None:
        self._tables: list[tuple[Any, ...]] = []
        self._notes: list[r.Note] = []
        self._ops: dict[int, r.Op] = {}
        self._texts: dict[int, str] = {}
        self._places: dict[tuple[int, int], Any] = {}  # frames and stacks, by kind and id

    def learn(self, record: Any) -> None:
        """Take a Text, Op, Frame or Stack record, to be asked about later."""
        if record.kind == r.OP:
            self._ops[record.id] = record
        elif record.kind == r.TEXT:
            self._texts[record.id] = record.text
        else:
            self._places[record.kind, record.id] = record

    def hold(self, record: Any) -> None:
        """Hold a record until the files begin."""
        (self._notes if record.kind == r.NOTE else self._tables).append(record)

    def release(self) -> list[tuple[Any, ...]]:
        """Return what was held, tables first, and hold it no more."""
        held: list[tuple[Any, ...]] = [*self._tables, *self._notes]
        self._tables, self._notes = [], []
        return held

    def op(self, number: int) -> r.Op:
        """Return an op by its id."""
        return self._ops[number]

    def text(self, number: int) -> str:
        """Return an interned text; empty for none."""
        return self._texts.get(number, "")

    def source(self, stack: int) -> str:
        """Return the innermost line that is not torch's, and the user's that it came from; empty for none."""
        lines: list[str] = []
        while stack:
            one = self._places[r.STACK, stack]
            frame = self._places[r.FRAME, one.frame]
            file = self.text(frame.file)
            if frame.user or (not lines and is_of_library(file)):
                lines.append(f"{file}:{frame.line} in {self.text(frame.function)}")
            stack = 0 if frame.user else one.parent
        return ", from ".join(lines)

    def has_op(self, op: str) -> bool:
        """Return True if there is an op of this name."""
        return any(one.op == op for one in self._ops.values())
