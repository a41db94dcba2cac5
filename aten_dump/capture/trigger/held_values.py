"""The values of a step that is held back, and what is known of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...store import records as r
from .held_bytes import HeldBytes

Stats = Mapping[str, Any]


@dataclass(slots=True)
class HeldValue:
    """A value, and the records that say something of its data."""

    record: r.Value
    facts: list[Any] = field(default_factory=list)  # Data, Statistics, Hash and Same records
    uses: int = 0  # held calls that name it


def digest_of(value: int, digests: Mapping[int, bytes], same: Mapping[int, int]) -> bytes | None:
    """Return the hash of a value, or of the value that is said to have the same one."""
    found = digests.get(value)
    if found is None and value in same:
        seen = {value}
        while found is None and (value := same.get(value, value)) not in seen:
            seen.add(value)
            found = digests.get(value)
    return found


class HeldValues:
    """The values of one step."""

    def __init__(self, held_bytes: HeldBytes, statistics: tuple[str, ...]) -> None:
        """Begin a step.

        Args:
            held_bytes: keeps the bytes that Data records name.
            statistics: the names of the numbers in Statistics records; empty where there are none.
        """
        self._bytes = held_bytes
        self._statistics = statistics
        self._values: dict[int, HeldValue] = {}
        self._storages: dict[int, r.Storage] = {}
        self._newest: dict[int, int] = {}  # storage -> version
        self._digests: dict[int, bytes] = {}
        self._same_hash: dict[int, int] = {}  # value -> the one that has its hash
        self.fact_count = 0  # statistics and hashes so far
        self.has_undefined = False  # one of the values is memory that nothing had written

    def get(self, value: int) -> HeldValue | None:
        """Return what is held of a value."""
        return self._values.get(value)

    def storage_record(self, number: int) -> r.Storage:
        """Return the record of a storage."""
        return self._storages[number]

    # -- what the recorder says

    def add_storage(self, record: r.Storage) -> None:
        """Take a storage."""
        self._storages[record.id] = record

    def add(self, record: r.Value) -> None:
        """Take a value."""
        self._values[record.id] = HeldValue(record)
        self.has_undefined = self.has_undefined or bool(record.flags & r.UNDEFINED)
        if record.storage:
            self._newest[record.storage] = max(record.version, self._newest.get(record.storage, 0))

    def add_fact(self, record: Any) -> None:
        """Take a record that says something of a value's data."""
        self._values[record.value].facts.append(record)
        if record.kind == r.DATA:
            self._bytes.use(record.blob)
            return
        self.fact_count += 1
        if record.kind == r.HASH:
            self._digests[record.value] = bytes(record.digest)
        elif record.kind == r.SAME:
            if record.facts & r.SAME_HASH:
                self._same_hash[record.value] = record.other
            if record.other in self._values:
                self._values[record.other].uses += 1

    def use(self, values: Iterable[int]) -> None:
        """Take it that a call names these values: their bytes count as used now."""
        for number in values:
            value = self._values[number]
            value.uses += 1
            for fact in value.facts:
                if fact.kind == r.DATA:
                    self._bytes.use(fact.blob)

    def drop(self, values: Iterable[int]) -> None:
        """Take it that a call which named these is dropped: forget facts of memory that was written since.

        The records of the values stay: a call that began before may still name them.
        """
        for number in values:
            value = self._values[number]
            value.uses -= 1
            if not value.uses and value.record.version < self._newest.get(value.record.storage, 0):
                others = [fact.other for fact in value.facts if fact.kind == r.SAME and fact.other in self._values]
                value.facts.clear()
                self.drop(others)

    # -- what is known

    def storage(self, value: int) -> int:
        """Return the storage of a value; a negative number of its own where it has none."""
        held = self._values.get(value)
        return (held.record.storage if held is not None else 0) or -value

    def is_undefined(self, value: int) -> bool:
        """Return True if nothing had written the memory of a value, or not all of it."""
        held = self._values.get(value)
        return held is not None and bool(held.record.flags & r.UNDEFINED)

    def stats(self, value: int) -> Stats | None:
        """Return the statistics of a value by name."""
        seen: set[int] = set()
        while value not in seen:
            seen.add(value)
            for fact in self.facts(value):
                if fact.kind == r.STATISTICS:
                    return dict(zip(self._statistics, fact.numbers, strict=False))
            value = self._other(value)
        return None

    def digest(self, value: int) -> bytes | None:
        """Return the hash of a value, or of one that is said to have the same; None as long as there is none."""
        return digest_of(value, self._digests, self._same_hash)

    def flags(self, value: int) -> int:
        """Return the flags of a value, bits of `records.Value.flags`."""
        held = self._values.get(value)
        return 0 if held is None else held.record.flags

    def facts(self, value: int) -> list[Any]:
        """Return the records that say something of a value's data."""
        held = self._values.get(value)
        return [] if held is None else held.facts

    def _other(self, value: int) -> int:
        """Return the value that has the same statistics, as was said; itself where nothing was."""
        others = [fact.other for fact in self.facts(value) if fact.kind == r.SAME and fact.facts & r.SAME_STATISTICS]
        return others[-1] if others else value

    def awaits_stats(self, value: int) -> bool:
        """Return True if the statistics of a value may still come."""
        held = self._values.get(value)
        if held is None or not self._statistics or held.record.flags & (r.UNDEFINED | r.OPAQUE):
            return False
        return self.stats(value) is None
