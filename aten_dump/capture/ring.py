"""A Sink that holds back what it is given, and passes it on only when something happens.

Theory of operation
    A step is recorded as ever, into memory: the last `trigger_before` calls are kept, and of tensor bytes the
    `trigger_bytes` that were used last. When the trigger fires, those calls and what they name go to the real
    sink, then that call and `trigger_after` more; a step in which nothing happens leaves no file. Only values
    that a written call names are written. Small things that any later call may name (texts, ops, stacks, and
    values of memory that has not been written since) are kept for the step; bytes that had to go are missing in
    the dump, and the reader says so. Blobs have ids of the ring's own, translated when they are written.
"""

from __future__ import annotations

import ctypes
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ..config import DumpConfig
from ..store import records as r
from ..store.sink import Fill, Sink
from .triggers import Stats, inputs_of, make_trigger, results_of

_PIECE_BYTES: Final = 1 << 20
_TABLES: Final = frozenset((r.TEXT, r.OP, r.FRAME, r.STACK))
_OF_VALUES: Final = frozenset((r.DATA, r.STATISTICS, r.HASH, r.SAME))


@dataclass(frozen=True, slots=True)
class _Bytes:
    dtype: str
    shape: list[int]
    memory: Any  # uint8 array


class RingSink:
    """Keeps the last calls of a step in memory until a trigger fires."""

    def __init__(self, sink: Sink, config: DumpConfig) -> None:
        self._sink = sink
        self._config = config
        self._trigger = make_trigger(config)
        self._lock = threading.RLock()
        self._kinds: dict[int, Callable[[Any], None]] = {
            r.STORAGE: self._on_storage,
            r.VALUE: self._on_value,
            r.CALL: self._on_call,
            r.OPEN: self._on_open,
            r.RANDOM: self._on_random,
            r.SAVED: self._on_saved,
            r.GRADIENT: self._on_gradient,
            r.NOTE: self._on_note,
        }
        self._reset(None)

    def _reset(self, header: r.Header | None) -> None:
        self._header = header
        self._tables: list[tuple[Any, ...]] = []
        self._ops: dict[int, r.Op] = {}
        self._storages: dict[int, r.Storage] = {}
        self._newest: dict[int, int] = {}  # storage -> version
        self._values: dict[int, list[Any]] = {}  # value -> its Value record, then what is known of it
        self._uses: dict[int, int] = {}  # value -> calls in the ring that name it
        self._randoms: dict[int, r.Random] = {}
        self._opens: dict[int, r.Open] = {}
        self._saved: dict[int, list[r.Saved]] = {}
        self._notes: list[r.Note] = []
        self._calls: deque[r.Call] = deque()
        self._blobs: OrderedDict[int, _Bytes] = OrderedDict()
        self._blob_bytes = 0
        self._blob_count = 0
        self._written_blobs: dict[int, int] = {}  # id in the ring -> id in the file
        self._written_values: set[int] = set()
        self._written_storages: set[int] = set()
        self._written_calls = 0
        self._last_id = 0  # the greatest id of a written call
        self._left = -1  # calls to write after the trigger; -1 while it has not fired

    @property
    def fired(self) -> bool:
        """True once the trigger has fired in this step."""
        return self._left >= 0

    @property
    def held_bytes(self) -> int:
        """Bytes of tensors that are held back now; at most ``DumpConfig.trigger_bytes``."""
        return self._blob_bytes

    # -- the Sink

    def begin_step(self, header: r.Header) -> None:
        """Start a step; the real sink hears of it when the trigger fires."""
        with self._lock:
            self._reset(header)

    def emit(self, record: Any) -> None:
        """Hold a record back, or pass it on."""
        with self._lock:
            kind = record[0]
            if kind in _TABLES:
                self._on_table(record)
            elif kind in _OF_VALUES:
                self._on_fact(record)
            elif kind in self._kinds:
                self._kinds[kind](record)
            elif self.fired:
                self._sink.emit(record)

    def store(self, dtype: str, shape: list[int], nbytes: int, fill: Fill) -> int:
        """Copy bytes; the ones that were used longest ago go when there are too many."""
        with self._lock:
            self._blob_count += 1
            number = self._blob_count
            if nbytes > self._config.trigger_bytes:
                return number  # it is missing, as one that had to go
            memory = np.empty(nbytes, np.uint8)
            address = memory.ctypes.data
            for offset in range(0, nbytes, _PIECE_BYTES):
                ready = fill(offset, address + offset, min(_PIECE_BYTES, nbytes - offset))
                if ready is not None:
                    ready()
            self._blobs[number] = _Bytes(dtype, list(shape), memory)
            self._blob_bytes += nbytes
            while self._blob_bytes > self._config.trigger_bytes:
                _, oldest = self._blobs.popitem(last=False)
                self._blob_bytes -= oldest.memory.nbytes
            return number

    def end_step(self, calls: int, values: int, seconds: dict[str, float]) -> None:
        """Complete the step if anything of it was written, else forget it."""
        with self._lock:
            if self.fired:
                self._sink.end_step(self._written_calls, len(self._written_values), seconds)
            self._reset(None)

    def close(self) -> None:
        """Close the real sink."""
        self._sink.close()

    # -- records by kind

    def _on_table(self, record: Any) -> None:
        if record[0] == r.OP:
            self._ops[record[1]] = record
        self._sink.emit(record) if self.fired else self._tables.append(record)

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
        if record[0] == r.DATA and record.blob in self._blobs:
            self._blobs.move_to_end(record.blob)

    def _on_open(self, record: r.Open) -> None:
        self._opens[record.id] = record
        if self._left > 0:
            self._sink.emit(record)

    def _on_random(self, record: r.Random) -> None:
        self._randoms[record.call] = record

    def _on_saved(self, record: r.Saved) -> None:
        self._saved.setdefault(record.call, []).append(record)
        if self.fired and record.call <= self._last_id:
            self._write_saved(record)

    def _on_gradient(self, record: r.Gradient) -> None:
        if self.fired and record.value in self._values:
            self._write_value(record.value)
            self._sink.emit(record)

    def _on_note(self, record: r.Note) -> None:
        self._sink.emit(record) if self.fired else self._notes.append(record)

    def _on_call(self, record: r.Call) -> None:
        self._opens.pop(record.id, None)
        if self.fired:
            if self._left > 0 or record.id <= self._last_id:  # those around a written call belong to it
                self._left = max(0, self._left - 1)
                self._write_call(record)
            return
        self._hold(record)
        why = self._trigger(record, self._ops[record.op], self._stats)
        if why is not None:
            self._fire(record, why)

    # -- the ring

    def _hold(self, call: r.Call) -> None:
        self._calls.append(call)
        for value in (*inputs_of(call), *results_of(call)):
            self._uses[value] = self._uses.get(value, 0) + 1
            for fact in self._values.get(value, ())[1:]:
                if fact[0] == r.DATA and fact.blob in self._blobs:
                    self._blobs.move_to_end(fact.blob)
        while len(self._calls) > self._config.trigger_before + 1:
            self._drop(self._calls.popleft())

    def _drop(self, call: r.Call) -> None:
        """Forget a call, and what is known of its values where their memory has been written since."""
        self._randoms.pop(call.id, None)
        self._saved.pop(call.id, None)
        for value in (*inputs_of(call), *results_of(call)):
            self._uses[value] -= 1
            if self._uses[value]:
                continue
            del self._uses[value]
            facts = self._values.get(value)
            if facts and facts[0].version < self._newest.get(facts[0].storage, 0):
                del facts[1:]  # its record stays: a call that began before may still name it

    def _stats(self, value: int) -> Stats | None:
        seen: set[int] = set()
        while value not in seen:
            seen.add(value)
            facts = self._values.get(value, ())
            for fact in facts[1:]:
                if fact[0] == r.STATISTICS:
                    return dict(zip(self._config.statistics, fact.numbers, strict=False))
            others = [f.other for f in facts[1:] if f[0] == r.SAME and f.facts & r.SAME_STATISTICS]
            value = others[-1] if others else value
        return None

    # -- writing

    def _fire(self, call: r.Call, why: str) -> None:
        assert self._header is not None
        self._left = self._config.trigger_after
        self._sink.begin_step(self._header)
        for record in (*self._tables, *self._notes):
            self._sink.emit(record)
        message = (
            f"{why}: call {call.id}; {len(self._calls) - 1} calls before it and {self._left} after it were written"
        )
        self._sink.emit(r.Note(r.NOTE, "trigger", message, 1))
        self._last_id = max(held.id for held in self._calls)
        for record in self._opens.values():
            self._sink.emit(record)
        for held in self._calls:
            self._write_call(held)
        self._tables, self._notes = [], []
        self._calls.clear()

    def _write_call(self, call: r.Call) -> None:
        for value in (*inputs_of(call), *results_of(call)):
            self._write_value(value)
        random = self._randoms.pop(call.id, None)
        if random is not None:
            self._sink.emit(random._replace(blob=self._write_blob(random.blob)))
        self._sink.emit(call)
        self._written_calls += 1
        self._last_id = max(self._last_id, call.id)
        for saved in self._saved.pop(call.id, ()):
            self._write_saved(saved)

    def _write_saved(self, saved: r.Saved) -> None:
        for value in saved.values:
            self._write_value(value)
        self._sink.emit(saved._replace(values=[value for value in saved.values if value in self._written_values]))

    def _write_value(self, value: int) -> None:
        facts = self._values.get(value)
        if value in self._written_values or not facts:
            return
        record: r.Value = facts[0]
        self._written_values.add(value)
        if record.storage and record.storage not in self._written_storages:
            self._written_storages.add(record.storage)
            self._sink.emit(self._storages[record.storage])
        for part in ((record.extra or {}).get("parts") or {}).values():
            self._write_value(part)
        self._sink.emit(record)
        for fact in facts[1:]:
            self._write_fact(fact)

    def _write_fact(self, fact: Any) -> None:
        if fact[0] == r.SAME:
            self._write_value(fact.other)
        if fact[0] == r.DATA:
            blob = self._write_blob(fact.blob)
            if not blob:
                return  # its bytes had to go
            fact = fact._replace(blob=blob)
        self._sink.emit(fact)

    def _write_blob(self, number: int) -> int:
        known = self._written_blobs.get(number)
        found = self._blobs.get(number)
        if known is not None or found is None:
            return known or 0
        source: int = found.memory.ctypes.data

        def fill(offset: int, address: int, nbytes: int) -> None:
            ctypes.memmove(address, source + offset, nbytes)

        blob = self._sink.store(found.dtype, found.shape, found.memory.nbytes, fill)
        self._written_blobs[number] = blob
        return blob
