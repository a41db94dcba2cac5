"""The files of a step some of whose calls are written: what a call names goes there before it, and once.

Blobs have ids of the ring's own (`held_bytes`), translated when they are written.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from ...store import records as r
from ...store.sink import Sink
from .held_bytes import HeldBytes
from .held_values import HeldValues

_SMALL_FACTS: Final = (r.STATISTICS, r.HASH, r.SAME)
_FACTS: Final = (r.DATA, *_SMALL_FACTS)


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
        self._keeps_bytes = True  # of whatever is written
        self._bare: set[int] = set()  # values that were written without their bytes
        self._lost_blobs: set[int] = set()

    @property
    def can_be_written(self) -> bool:
        """True if more can be written: it is open, or not begun."""
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

    def leave_bytes(self) -> None:
        """Write bytes only of the values that `write_call` is to write with them."""
        self._keeps_bytes = False

    def is_bare(self, number: int) -> bool:
        """Return True if a value is written without its bytes, which a later call may still want."""
        return number in self._bare

    def write_call(self, call: r.Call, values: Iterable[int], random: r.Random | None, with_bytes: bool = True) -> None:
        """Write a call with the values that it names and the state that it drew from."""
        for value in values:
            self.write_value(value, with_bytes)
        if random is not None:
            self._sink.emit(random._replace(blob=self._write_blob(random.blob) if with_bytes else 0))
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

    def write_value(self, number: int, with_bytes: bool = False) -> None:
        """Write a value with its storage, the values that it is made of, and what is known of it."""
        with_bytes = with_bytes or self._keeps_bytes
        held = self._held.get(number)
        if held is None:
            return
        if number in self._values:
            if with_bytes and number in self._bare:
                self._bare.discard(number)
                self._write_facts(held.facts, (r.DATA,))
            return
        record = held.record
        self._values.add(number)
        if record.storage and record.storage not in self._storages:
            self._storages.add(record.storage)
            self._sink.emit(self._held.storage_record(record.storage))
        extra = record.extra or {}
        for part in (extra.get("parts") or {}).values():
            self.write_value(part, with_bytes)
        for other in ("local", "memory"):
            if other in extra:
                self.write_value(extra[other], with_bytes)
        self._sink.emit(record)
        if not with_bytes:
            self._bare.add(number)
        self._write_facts(held.facts, _FACTS if with_bytes else _SMALL_FACTS)

    def _write_facts(self, facts: Iterable[Any], kinds: tuple[int, ...]) -> None:
        for fact in facts:
            if fact.kind in kinds:
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
        """Pass on a record, or hold it as long as what it is about."""
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
