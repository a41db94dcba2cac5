"""What a ring holds back of a step.

Theory of operation
    A `HeldStep` takes the records of one step. Calls are kept in the order in which they ended, numbered through the
    steps of the run, until the ring drops them; with them go facts about values that are named by no call any more
    and whose memory has been written since. Small things that a later call may name (texts, ops, stacks, values) stay
    as long as the step does. `write` passes on the calls of a window and what they name; from then on the step's files
    are open, and what belongs to a written call is passed on as it comes. Blobs have ids of the ring's own
    (`held_bytes.py`), translated when they are written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from ...store import records as r
from ...store.sink import Sink
from .conditions import Stats
from .held_bytes import HeldBytes
from .held_call import HeldCall

_TABLES: Final = frozenset((r.TEXT, r.OP, r.FRAME, r.STACK))
_FACTS: Final = frozenset((r.DATA, r.STATISTICS, r.HASH, r.SAME))


class HeldStep:
    """The records of one step."""

    def __init__(self, header: r.Header, before: int, held: HeldBytes, sink: Sink, statistics: tuple[str, ...]) -> None:
        """Begin a step.

        Args:
            header: its header.
            before: calls of the steps before it.
            held: keeps the bytes.
            sink: is written to.
            statistics: the names of the numbers in Statistics records; empty where there are none.
        """
        self.number = header.step
        self.before = before
        self.count = 0  # calls so far
        self.facts = 0  # statistics and hashes so far
        self.calls: deque[HeldCall] = deque()
        self.is_open = False  # its files are
        self.is_over = False
        self._header = header
        self._held = held
        self._sink = sink
        self._statistics = statistics
        self._tables: list[tuple[Any, ...]] = []
        self._ops: dict[int, r.Op] = {}
        self._texts: dict[int, str] = {}
        self._storages: dict[int, r.Storage] = {}
        self._newest: dict[int, int] = {}  # storage -> version
        self._values: dict[int, list[Any]] = {}  # value -> its Value record, then what is known of it
        self._uses: dict[int, int] = {}  # value -> held calls that name it
        self._randoms: dict[int, r.Random] = {}
        self._opens: dict[int, r.Open] = {}
        self._saved: dict[int, list[r.Saved]] = {}
        self._gradients: list[tuple[int, r.Gradient]] = []  # with the calls that had ended before
        self._notes: list[r.Note] = []
        self._seconds: dict[str, float] = {}
        self._written_blobs: dict[int, int] = {}  # id in the ring -> id in the file
        self._written_values: set[int] = set()
        self._written_storages: set[int] = set()
        self._written_calls: set[int] = set()
        self._last_id = 0  # the greatest id of a written call
        self._lost_blobs: set[int] = set()
        self._kinds: dict[int, Callable[[Any], None]] = {
            r.STORAGE: self._on_storage,
            r.VALUE: self._on_value,
            r.OPEN: self._on_open,
            r.RANDOM: self._on_random,
            r.SAVED: self._on_saved,
            r.GRADIENT: self._on_gradient,
            r.NOTE: self.note,
            **dict.fromkeys(_TABLES, self._on_table),
            **dict.fromkeys(_FACTS, self._on_fact),
        }

    # -- what the recorder says

    def keep(self, record: tuple[Any, ...]) -> None:
        """Take a record that is not a Call."""
        take = self._kinds.get(record[0])
        if take is not None:
            take(record)
        elif self.is_open:
            self._sink.emit(record)

    def add(self, call: r.Call) -> HeldCall:
        """Take a call that has ended."""
        self._opens.pop(call.id, None)
        self.count += 1
        held = HeldCall(self.before + self.count, call)
        self.calls.append(held)
        uses, values = self._uses, self._values
        for value in held.inputs + held.results:
            uses[value] = uses.get(value, 0) + 1
            facts = values.get(value, ())
            if len(facts) > 1:
                for fact in facts:
                    if fact[0] == r.DATA:
                        self._held.use(fact.blob)
        return held

    def note(self, note: r.Note) -> None:
        """Take a note."""
        self._sink.emit(note) if self.is_open else self._notes.append(note)

    def end(self, seconds: dict[str, float]) -> None:
        """Take it that the step is over; its files are complete, if it has any."""
        self.is_over = True
        self._seconds = seconds
        self._close()

    def _on_table(self, record: Any) -> None:
        if record[0] == r.OP:
            self._ops[record[1]] = record
        elif record[0] == r.TEXT:
            self._texts[record[1]] = record[2]
        self._sink.emit(record) if self.is_open else self._tables.append(record)

    def _on_storage(self, record: r.Storage) -> None:
        self._storages[record.id] = record

    def _on_value(self, record: r.Value) -> None:
        self._values[record.id] = [record]
        if record.storage:
            self._newest[record.storage] = max(record.version, self._newest.get(record.storage, 0))

    def _on_fact(self, record: Any) -> None:
        value: int = record[1]
        if value in self._written_values:
            self._write_fact(record)
            return
        self._values.setdefault(value, []).append(record)
        if record[0] == r.DATA:
            self._held.use(record.blob)
        else:
            self.facts += 1

    def _on_open(self, record: r.Open) -> None:
        self._opens[record.id] = record

    def _on_random(self, record: r.Random) -> None:
        self._randoms[record.call] = record

    def _on_saved(self, record: r.Saved) -> None:
        if record.call in self._written_calls:
            self._write_saved(record)
        else:
            self._saved.setdefault(record.call, []).append(record)

    def _on_gradient(self, record: r.Gradient) -> None:
        if self.is_open:
            self._write_gradient(record)
        else:
            self._gradients.append((self.before + self.count, record))

    # -- what is known

    def op(self, call: r.Call) -> r.Op:
        """Return what a call calls."""
        return self._ops[call.op]

    def text(self, number: int) -> str:
        """Return an interned text; empty for none."""
        return self._texts.get(number, "")

    def has_called(self, op: str) -> bool:
        """Tell whether a call of this op has ended."""
        return any(one.op == op for one in self._ops.values())

    def storage(self, value: int) -> int:
        """Return the storage of a value; a negative number of its own where it has none."""
        facts = self._values.get(value)
        return (facts[0].storage if facts else 0) or -value

    def stats(self, value: int) -> Stats | None:
        """Return the statistics of a value by name."""
        seen: set[int] = set()
        while value not in seen:
            seen.add(value)
            facts = self._values.get(value, ())
            for fact in facts[1:]:
                if fact[0] == r.STATISTICS:
                    return dict(zip(self._statistics, fact.numbers, strict=False))
            others = [f.other for f in facts[1:] if f[0] == r.SAME and f.facts & r.SAME_STATISTICS]
            value = others[-1] if others else value
        return None

    def awaits_stats(self, value: int) -> bool:
        """Tell whether the statistics of a value may still come."""
        facts = self._values.get(value)
        if not facts or not self._statistics or facts[0].flags & (r.UNDEFINED | r.OPAQUE):
            return False
        return self.stats(value) is None

    # -- forgetting

    def drop_oldest(self) -> None:
        """Forget the oldest call, and what is known of its values where their memory has been written since."""
        call = self.calls.popleft()
        self._randoms.pop(call.record.id, None)
        self._saved.pop(call.record.id, None)
        for value in call.inputs + call.results:
            uses = self._uses[value] - 1
            if uses:
                self._uses[value] = uses
                continue
            del self._uses[value]
            facts = self._values.get(value)
            if facts and len(facts) > 1 and facts[0].version < self._newest.get(facts[0].storage, 0):
                del facts[1:]  # its record stays: a call that began before may still name it

    # -- writing

    @property
    def can_write(self) -> bool:
        """Whether something of it can be written: its files are open, or not begun."""
        return self.is_open or not self._written_calls

    def open(self, notes: Iterable[r.Note]) -> None:
        """Begin its files, where they are not, with notes that say why."""
        if not self.is_open:
            self.is_open = True
            self._sink.begin_step(self._header)
            for record in (*self._tables, *self._notes):
                self._sink.emit(record)
            self._tables, self._notes = [], []
        for note in notes:
            self._sink.emit(note)

    def write(self, first: int, last: int, note: r.Note) -> None:
        """Write the held calls of these positions and those around them, with a note that says why."""
        self.open([note])
        kept: deque[HeldCall] = deque()
        for held in self.calls:
            if held.position >= first and (held.position <= last or held.record.id < self._last_id):
                self._write_call(held)
            else:
                kept.append(held)
        self.calls = kept
        for position, gradient in self._gradients:
            if position >= first:
                self._write_gradient(gradient)
        self._gradients = []
        self._write_opens()
        if self.is_over:
            self._close()

    def write_newest(self) -> None:
        """Write the call that was added last."""
        self._write_call(self.calls.pop())
        self._write_opens()

    def is_around_written(self, call: r.Call) -> bool:
        """Tell whether a call that has just ended was under way when a written one began."""
        return self.is_open and call.id < self._last_id

    def _write_opens(self) -> None:
        """Tell which written calls' callers are still under way: their Call records come when they end."""
        for record in [record for record in self._opens.values() if record.id < self._last_id]:
            self._sink.emit(self._opens.pop(record.id))

    def _close(self) -> None:
        if not self.is_open:
            return
        if self._lost_blobs:
            message = "tensors whose bytes had gone from the ring when calls were written; trigger_bytes bounds it"
            self._sink.emit(r.Note(r.NOTE, "trigger_bytes", message, len(self._lost_blobs)))
        self._sink.end_step(len(self._written_calls), len(self._written_values), self._seconds)
        self.is_open = False

    def _write_call(self, held: HeldCall) -> None:
        call = held.record
        for value in held.inputs + held.results:
            self._write_value(value)
        random = self._randoms.pop(call.id, None)
        if random is not None:
            self._sink.emit(random._replace(blob=self._write_blob(random.blob)))
        self._sink.emit(call)
        self._written_calls.add(call.id)
        self._last_id = max(self._last_id, call.id)
        for saved in self._saved.pop(call.id, ()):
            self._write_saved(saved)

    def _write_saved(self, saved: r.Saved) -> None:
        for value in saved.values:
            self._write_value(value)
        self._sink.emit(saved._replace(values=[value for value in saved.values if value in self._written_values]))

    def _write_gradient(self, gradient: r.Gradient) -> None:
        self._write_value(gradient.value)
        if gradient.value in self._written_values:
            self._sink.emit(gradient)

    def _write_value(self, value: int) -> None:
        facts = self._values.get(value)
        if value in self._written_values or not facts:
            return
        record: r.Value = facts[0]
        self._written_values.add(value)
        if record.storage and record.storage not in self._written_storages:
            self._written_storages.add(record.storage)
            self._sink.emit(self._storages[record.storage])
        extra = record.extra or {}
        for part in (extra.get("parts") or {}).values():
            self._write_value(part)
        if "local" in extra:
            self._write_value(extra["local"])
        self._sink.emit(record)
        for fact in facts[1:]:
            self._write_fact(fact)

    def _write_fact(self, fact: Any) -> None:
        if fact[0] == r.SAME:
            self._write_value(fact.other)
        if fact[0] == r.DATA:
            blob = self._write_blob(fact.blob)
            if not blob:
                self._lost_blobs.add(fact.blob)
                return
            fact = fact._replace(blob=blob)
        self._sink.emit(fact)

    def _write_blob(self, number: int) -> int:
        if number not in self._written_blobs:
            self._written_blobs[number] = self._held.write(number, self._sink)
        return self._written_blobs[number]
