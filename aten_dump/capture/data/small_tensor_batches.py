"""Small values, handled many at a time.

Theory of operation
    What a small tensor costs is not its bytes but the calls that handle it. So the training thread copies its bytes
    and no more. When enough have come, the copies of one dtype go to the sink together: as one blob, in which each
    value has its place, and as a job that computes their statistics and hashes with a few calls for all of them, on
    the writer's thread where the sink has one. (Not where they are few bytes: each of these calls lets go of Python's
    lock, which threads that both run Python hand over at a higher price than that of the call.) What waits here is sent
    when a thousand values or 256 KB have come, when the step ends, and, for programs that hang, with the sink's ticks.
"""

from __future__ import annotations

import contextlib
from itertools import repeat
from typing import Any, Final

import torch

from ...store.records import DATA, HASH, STATISTICS
from ...store.sink import Sink
from ...store.writing.checksums import HASHES
from ..memory.dtypes import ITEM_BYTES
from ..torch_internals.quiet import quiet
from .blob_dtypes import blob_dtype
from .flushing import Flushable
from .statistics.one_pass import of_parts
from .statistics.one_tensor import compute
from .wanted_data import WantedData

SMALL_BYTES: Final = 16 << 10
BATCH_VALUES: Final = 1024
AT_ONCE_BYTES: Final = 64 << 10
BATCH_BYTES: Final = 256 << 10


class Batch:
    """Copies of values of one dtype, end to end."""

    __slots__ = (
        "_computed",
        "_dtype",
        "_facts",
        "_is_stored",
        "_joined",
        "blob",
        "nbytes",
        "parts",
        "places",
        "values",
    )

    def __init__(self, dtype: torch.dtype, is_stored: bool, facts: WantedData | None) -> None:
        self._dtype = dtype
        self._is_stored = is_stored
        self._facts = facts  # which statistics, which hash; None: neither
        self._joined: bytes | None = None
        self._computed: list[tuple[Any, ...]] | None = None
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

    def send(self, sink: Sink) -> None:
        """Hand it all to the sink. Takes no more values from then on."""
        if self._is_stored:
            name, unit = blob_dtype(self._dtype, self.nbytes)
            self.blob = sink.store_bytes(name, [self.nbytes // unit], self.nbytes, self.joined)
        if self.nbytes <= AT_ONCE_BYTES and self._facts is not None:
            with contextlib.suppress(Exception):  # the job will raise it again, where it does not meet the program
                self._computed = self._compute()
        sink.later(self._records, self.nbytes)

    def _records(self) -> list[tuple[Any, ...]]:
        records: list[tuple[Any, ...]] = []
        if self.blob:
            blob = self.blob
            records += [(DATA, value, blob, start, 0) for value, start in self.places]
        records += self._compute() if self._computed is None else self._computed
        self._joined = self._computed = None
        self.parts, self.values, self.places = [], [], []
        return records

    def _compute(self) -> list[tuple[Any, ...]]:
        """Return the records of statistics and hashes."""
        facts = self._facts
        records: list[tuple[Any, ...]] = []
        if facts is not None and facts.statistics:
            rows = of_parts(self.parts, self._dtype, facts.statistics)
            if rows is None:
                rows = self._statistics_by_torch(facts.statistics)
            records += zip(repeat(STATISTICS), self.values, rows, strict=False)
        if facts is not None and facts.hash:
            records += zip(repeat(HASH), self.values, map(HASHES[facts.hash], self.parts), strict=False)
        return records

    def _statistics_by_torch(self, names: tuple[str, ...]) -> list[list[Any]]:
        item_bytes = ITEM_BYTES[self._dtype]
        with quiet():
            together = torch.frombuffer(bytearray(self.joined()), dtype=self._dtype)
            return [compute(one, names) for one in together.split([len(part) // item_bytes for part in self.parts])]


class Batches(Flushable):
    """The batches of one step that were not sent yet."""

    def __init__(self, sink: Sink, wanted: WantedData, most_values: int, most_bytes: int) -> None:
        super().__init__()
        self._sink = sink
        self._wanted = wanted
        self._most_values = most_values
        self._most_bytes = most_bytes
        self._stored: dict[torch.dtype, Batch] = {}  # without facts: another value has the same
        self._described: dict[torch.dtype, Batch] = {}  # facts alone: the bytes are stored elsewhere, or not wanted
        self._both: dict[torch.dtype, Batch] = {}
        self._values = 0
        self._bytes = 0

    def add(self, dtype: torch.dtype, stored: bool, facts: bool, value: int, data: bytes) -> tuple[Batch, int]:
        """Take the bytes of a value, to be stored, or for their facts, or both. Returns where they are."""
        self._is_filled = True
        try:
            if self._is_ticking:
                self._wait_for_tick()
            alike = self._described if not stored else self._both if facts else self._stored
            batch = alike.get(dtype)
            if batch is None:
                batch = alike[dtype] = Batch(dtype, stored, self._wanted if facts else None)
            start, nbytes = batch.nbytes, len(data)
            batch.nbytes = start + nbytes
            batch.values.append(value)
            batch.parts.append(data)
            if stored:
                batch.places.append((value, start))
            self._values += 1
            self._bytes += nbytes
            if self._values >= self._most_values or self._bytes >= self._most_bytes:
                self._send()
            return batch, start
        finally:
            self._is_filled = False

    def place(self, value: int, batch: Batch, start: int) -> int:
        """Record where in a batch the bytes of a value are; return the blob if it is known already, else -1."""
        with self._lock:
            if batch.blob is not None:
                return batch.blob
            batch.places.append((value, start))
            return -1

    def _has_any(self) -> bool:
        return self._values > 0

    def _send(self) -> None:
        batches = (*self._stored.values(), *self._described.values(), *self._both.values())
        self._stored, self._described, self._both = {}, {}, {}
        self._values = self._bytes = 0
        for batch in batches:
            batch.send(self._sink)
