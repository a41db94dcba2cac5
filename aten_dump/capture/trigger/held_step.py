"""A step that is held back.

Theory of operation
    A `HeldStep` takes the records of one step. Calls are kept in the order in which they ended, numbered through the
    steps of the run, until the ring drops them; with them go facts about values that are named by no call any more
    and whose memory has been written since. Small things that a later call may name (texts, ops, stacks, values) stay
    as long as the step does. `write` passes on the calls of a window and what they name; from then on the step's files
    are open (`StepFile`), and what belongs to a written call is passed on as it comes. Blobs have ids of the ring's
    own (`held_bytes`), translated when they are written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from ...store import records as r
from ...store.records import Call
from ...store.sink import Sink
from ..values.encoded_trees import values_in
from .held_bytes import HeldBytes
from .held_values import HeldValues

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

    def end(self, seconds: dict[str, float]) -> None:
        """Take it that the step is over; its files are complete, if it has any."""
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
        if self._file.has_value(record.value):
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
        """Whether its files are."""
        return self._file.is_open

    @property
    def can_be_written(self) -> bool:
        """Whether something of it can be written: its files are open, or not begun."""
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

    def _write_call(self, held: HeldCall) -> None:
        number = held.record.id
        self._file.write_call(held.record, held.values, self._randoms.pop(number, None))
        for saved in self._saved.pop(number, ()):
            self._file.write_saved(saved)
        self._packs.write(number)

    def _write_opens(self) -> None:
        """Return which written calls' callers are still under way: their Call records come when they end."""
        for record in [record for record in self._opens.values() if record.id < self._file.last_id]:
            self._file.emit(self._opens.pop(record.id))


class HeldTables:
    """The tables and notes of one step, in order, until its files begin."""

    def __init__(self) -> None:
        self._tables: list[tuple[Any, ...]] = []
        self._notes: list[r.Note] = []
        self._ops: dict[int, r.Op] = {}
        self._texts: dict[int, str] = {}

    def learn(self, record: Any) -> None:
        """Take a Text, Op, Frame or Stack record, to be asked about later."""
        if record.kind == r.OP:
            self._ops[record.id] = record
        elif record.kind == r.TEXT:
            self._texts[record.id] = record.text

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

    def has_op(self, op: str) -> bool:
        """Return True if there is an op of this name."""
        return any(one.op == op for one in self._ops.values())


class StepFile:
    """What of one step was passed on to the real sink."""

    def __init__(self, header: r.Header, values: HeldValues, held_bytes: HeldBytes, sink: Sink) -> None:
        self.is_open = False
        self.last_id = 0  # the greatest id of a written call
        self._header = header
        self._held = values
        self._bytes = held_bytes
        self._sink = sink
        self._blobs: dict[int, int] = {}  # id in the ring -> id in the file
        self._values: set[int] = set()
        self._storages: set[int] = set()
        self._calls: set[int] = set()
        self._lost_blobs: set[int] = set()

    @property
    def can_be_written(self) -> bool:
        """Whether more can be written: it is open, or not begun."""
        return self.is_open or not self._calls

    def open(self, records: Iterable[tuple[Any, ...]]) -> None:
        """Begin the files, with these records."""
        self.is_open = True
        self._sink.begin_step(self._header)
        for record in records:
            self._sink.emit(record)

    def close(self, seconds: dict[str, float]) -> None:
        """Complete the files."""
        if self._lost_blobs:
            message = "tensors whose bytes had gone from the ring when calls were written; trigger_bytes bounds it"
            self._sink.emit(r.Note(r.NOTE, "trigger_bytes", message, len(self._lost_blobs)))
        self._sink.end_step(len(self._calls), len(self._values), seconds)
        self.is_open = False

    def has_call(self, number: int) -> bool:
        """Return True if a call is written."""
        return number in self._calls

    def has_value(self, number: int) -> bool:
        """Return True if a value is written."""
        return number in self._values

    def emit(self, record: tuple[Any, ...]) -> None:
        """Write a record as it is."""
        self._sink.emit(record)

    def write_call(self, call: r.Call, values: Iterable[int], random: r.Random | None) -> None:
        """Write a call with the values that it names and the state that it drew from."""
        for value in values:
            self.write_value(value)
        if random is not None:
            self._sink.emit(random._replace(blob=self._write_blob(random.blob)))
        self._sink.emit(call)
        self._calls.add(call.id)
        self.last_id = max(self.last_id, call.id)

    def write_saved(self, saved: r.Saved) -> None:
        """Write what the node of a written call keeps."""
        for value in saved.values:
            self.write_value(value)
        self._sink.emit(saved._replace(values=[value for value in saved.values if value in self._values]))

    def write_gradient(self, gradient: r.Gradient) -> None:
        """Write a parameter's gradient."""
        self.write_value(gradient.value)
        if gradient.value in self._values:
            self._sink.emit(gradient)

    def write_value(self, number: int) -> None:
        """Write a value with its storage, the values that it is made of, and what is known of it."""
        held = self._held.get(number)
        if number in self._values or held is None:
            return
        record = held.record
        self._values.add(number)
        if record.storage and record.storage not in self._storages:
            self._storages.add(record.storage)
            self._sink.emit(self._held.storage_record(record.storage))
        extra = record.extra or {}
        for part in (extra.get("parts") or {}).values():
            self.write_value(part)
        for other in ("local", "memory"):
            if other in extra:
                self.write_value(extra[other])
        self._sink.emit(record)
        for fact in held.facts:
            self.write_fact(fact)

    def write_fact(self, fact: Any) -> None:
        """Write what is known of a written value."""
        if fact.kind == r.SAME:
            self.write_value(fact.other)
        if fact.kind == r.DATA:
            blob = self._write_blob(fact.blob)
            if not blob:
                self._lost_blobs.add(fact.blob)
                return
            fact = fact._replace(blob=blob)
        self._sink.emit(fact)

    def _write_blob(self, number: int) -> int:
        if number not in self._blobs:
            self._blobs[number] = self._bytes.write(number, self._sink)
        return self._blobs[number]


class HeldPacks:
    """What saved-tensor hooks saw, until its call is written: tensors that were packed, and when nodes fetched them."""

    def __init__(self, file: StepFile) -> None:
        self._file = file
        self._by_call: dict[int, list[r.Packed]] = {}
        self._fetched: dict[int, list[r.Fetched]] = {}  # by the id of a Packed that is held
        self._written: set[int] = set()

    def take_packed(self, record: r.Packed) -> None:
        """Hold a record until its call is written; one of no call never is."""
        if self._file.has_call(record.call):
            self._write(record)
        elif record.call:
            self._by_call.setdefault(record.call, []).append(record)
            self._fetched[record.id] = []

    def take_fetched(self, record: r.Fetched) -> None:
        """Pass on a record, or hold it as long as what it tells of."""
        if record.packed in self._written:
            self._file.emit(record)
        elif record.packed in self._fetched:
            self._fetched[record.packed].append(record)

    def write(self, call: int) -> None:
        """Write what a call that is written has saved."""
        for record in self._by_call.pop(call, ()):
            self._write(record)

    def drop(self, call: int) -> None:
        """Forget what a call has saved."""
        for record in self._by_call.pop(call, ()):
            del self._fetched[record.id]

    def _write(self, record: r.Packed) -> None:
        if record.value:
            self._file.write_value(record.value)
        self._file.emit(record)
        self._written.add(record.id)
        for fetched in self._fetched.pop(record.id, ()):
            self._file.emit(fetched)


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
