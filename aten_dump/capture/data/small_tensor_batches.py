"""Small values, handled many at a time.

Theory of operation
    What a small tensor costs is not its bytes but the calls that handle it. So the training thread copies its bytes
    and no more. When enough have come, the copies of one dtype go to the sink together: as one blob, in which each
    value has its place, and as a job that computes their statistics and hashes with a few calls for all of them, on
    the writer's thread where the sink has one. What waits here is sent when a thousand values or 256 KB have come, when
    the step ends, and, for programs that hang, with the sink's ticks.
"""

from __future__ import annotations

from itertools import repeat
from typing import Any, Final

import torch

from ...config import DumpConfig
from ...store.records import DATA, HASH, STATISTICS, Data, Hash, Statistics
from ...store.sink import Sink
from .flushing import Waiting
from .hashes import HASHES
from .statistics import many_small_tensors as segments
from .tensor_bytes import blob_dtype

SMALL_BYTES: Final = 16 << 10
BATCH_VALUES: Final = 1024
BATCH_BYTES: Final = 256 << 10  # what numpy makes of it stays in cache
# What the copy of a value is for.
STORED: Final = 1
FACTS: Final = 2


class Facts:
    """Which facts are computed of values: the names of statistics, and the hash's algorithm."""

    __slots__ = ("hash", "statistics")

    def __init__(self, config: DumpConfig) -> None:
        self.statistics = config.statistics if config.wants_statistics else None
        self.hash = HASHES[config.hash] if config.wants_hash else None


class Batch:
    """Copies of values of one dtype, end to end."""

    __slots__ = ("_dtype", "_facts", "_joined", "blob", "nbytes", "parts", "places", "values")

    def __init__(self, dtype: torch.dtype, facts: Facts | None) -> None:
        self._dtype = dtype
        self._facts = facts
        self._joined: bytes | None = None
        # Filled by `Batches` until it is sent.
        self.values: list[int] = []
        self.parts: list[bytes] = []  # the bytes of each value
        self.places: list[tuple[int, int]] = []  # of the values to be stored: id, first byte
        self.nbytes = 0
        self.blob: int | None = None  # None until it is sent; 0: the bytes are not kept

    def joined(self) -> bytes:
        """Return all bytes."""
        if self._joined is None:
            self._joined = b"".join(self.parts)
        return self._joined

    def send(self, sink: Sink, stored: bool) -> None:
        """Hand it all to the sink. Takes no more values from then on."""
        if stored:
            name, unit = blob_dtype(self._dtype, self.nbytes)
            self.blob = sink.store_bytes(name, [self.nbytes // unit], self.nbytes, self.joined)
        sink.later(self._records, self.nbytes)

    def _records(self) -> list[tuple[Any, ...]]:
        records: list[tuple[Any, ...]] = []
        if self.blob:
            blob = self.blob
            records += [Data(DATA, value, blob, start, 0) for value, start in self.places]
        facts = self._facts
        if facts is not None and facts.statistics is not None:
            rows = segments.compute(self.joined(), self._dtype, list(map(len, self.parts)), facts.statistics)
            records += map(Statistics._make, zip(repeat(STATISTICS), self.values, rows))
        if facts is not None and facts.hash is not None:
            records += map(Hash._make, zip(repeat(HASH), self.values, map(facts.hash, self.parts)))
        self._joined = None
        self.parts, self.values, self.places = [], [], []
        return records


class Batches(Waiting):
    """The batches of one step that were not sent yet."""

    def __init__(self, sink: Sink, facts: Facts | None, most_values: int, most_bytes: int) -> None:
        super().__init__()
        self._sink = sink
        self._facts = facts
        self._most_values = most_values
        self._most_bytes = most_bytes
        self._open: tuple[dict[torch.dtype, Batch], ...] = ({}, {}, {})
        self._values = 0
        self._bytes = 0

    def add(self, dtype: torch.dtype, use: int, value: int, data: bytes) -> tuple[Batch, int]:
        """Take the bytes of a value, to be stored, or for their facts, or both. Returns where they are."""
        with self._lock:
            of_use = self._open[use - 1]
            batch = of_use.get(dtype)
            if batch is None:
                batch = of_use[dtype] = Batch(dtype, self._facts if use & FACTS else None)
            start = batch.nbytes
            batch.nbytes = start + len(data)
            batch.values.append(value)
            batch.parts.append(data)
            if use & STORED:
                batch.places.append((value, start))
            self._values += 1
            self._bytes += len(data)
            if self._values >= self._most_values or self._bytes >= self._most_bytes:
                self._send()
            return batch, start

    def place(self, value: int, batch: Batch, start: int) -> int:
        """Say where in a batch the bytes of a value are; returns the blob, if that is known already, else -1."""
        with self._lock:
            if batch.blob is not None:
                return batch.blob
            batch.places.append((value, start))
            return -1

    def _waits(self) -> bool:
        return self._values > 0

    def _send(self) -> None:
        taken, self._open = self._open, ({}, {}, {})
        self._values = self._bytes = 0
        for use, batches in enumerate(taken, 1):
            for batch in batches.values():
                batch.send(self._sink, bool(use & STORED))
