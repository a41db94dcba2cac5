"""A dump that never touches a file: the reader over the records and bytes of a sink in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack

from aten_dump.dump.index.tables import Tables
from aten_dump.dump.rank import RankDump
from aten_dump.store.index_reader import GoodPart, IndexData, index_of
from aten_dump.store.records import Blob, Header
from tests.store.memory_sink import MemorySink


class StepSink(MemorySink):
    """Keeps each step apart."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[list[tuple[Any, ...]], dict[int, bytes]]] = []

    def begin_step(self, header: Header) -> None:
        self.records, self.blobs = [header], {}
        self.emit = self.records.append  # type: ignore[method-assign]
        self.steps.append((self.records, self.blobs))

    def rank(self, step: int) -> RankDump:
        """What was recorded in a step."""
        return MemoryRank(*self.steps[step])


class _MemorySource:
    def __init__(self, records: list[tuple[Any, ...]], blobs: dict[int, bytes]) -> None:
        self._records = records
        self._blobs = blobs

    def tables(self, where: str) -> Tables:
        return Tables(index_data(self._records), where)

    def read(self, tables: Tables, blob: Blob, start: int, stop: int) -> bytearray:
        return bytearray(self._blobs[blob.id][start:stop])

    def lost_blobs(self, tables: Tables) -> frozenset[int]:
        return frozenset()


class MemoryRank(RankDump):
    """What one step left in memory."""

    def __init__(self, records: list[tuple[Any, ...]], blobs: dict[int, bytes]) -> None:
        super().__init__(Path("memory"), 0, 0)
        self.source = _MemorySource(records, blobs)  # type: ignore[assignment]


def index_data(records: list[tuple[Any, ...]]) -> IndexData:
    """The records as a file would give them back."""
    data = b"".join(map(msgpack.packb, records))
    return index_of(Path("memory"), data, GoodPart(len(data), 0, None))
