"""A Sink that keeps a rank's records and bytes in memory, for tests of capture."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import xxhash

from aten_dump.store.records import BLOB, COMMIT, HASH, Blob, Commit, Hash, Header
from aten_dump.store.sink import Fill, Job, named
from aten_dump.store.writing.host_bytes import HostBytes


class MemorySink:
    """A Sink that keeps everything in lists, in the order a file would have it (no checks, no shards).

    `records` starts each step with its Header and ends it with a Commit; a Blob record stands where its
    bytes were stored, `offset` and `checksum` left empty. Blob ids restart from 1 with each step, so
    `blobs` holds those of the last step.
    """

    def __init__(self, *, max_bytes: int | None = None, piece_bytes: int = 1 << 20) -> None:
        self.records: list[tuple[Any, ...]] = []
        self.blobs: dict[int, bytes] = {}
        self.closed = False
        self._left = max_bytes
        self._piece_bytes = piece_bytes
        self._lock = threading.Lock()

    def emit(self, record: tuple[Any, ...]) -> None:
        """Keep one record."""
        self.records.append(named(record))

    def of(self, kind: int) -> list[Any]:
        """Return the records of one kind, in order."""
        return [record for record in self.records if record[0] == kind]

    def wait_for_room(self) -> None:
        """Return at once: nothing waits."""

    def begin_step(self, header: Header) -> None:
        """Start a step."""
        self.blobs.clear()
        self.records.append(header)

    def store(self, dtype: str, shape: list[int], nbytes: int, fill: Fill, hash_of: int = 0) -> int:
        """Keep the bytes in `blobs`."""
        with self._lock:
            if self._left is not None:
                if nbytes > self._left:
                    self._left = -1
                    return 0
                self._left -= nbytes
            memory = np.empty(nbytes + 64, np.uint8)
            shift = -memory.ctypes.data % 64
            buffer = memory[shift : shift + nbytes]
            for offset in range(0, nbytes, self._piece_bytes):
                ready = fill(offset, buffer.ctypes.data + offset, min(self._piece_bytes, nbytes - offset))
                if ready is not None:
                    ready()
            number = len(self.blobs) + 1
            self.blobs[number] = buffer.tobytes()
            checksum = xxhash.xxh3_64_digest(buffer.data)
            self.records.append(Blob(BLOB, number, 0, 0, nbytes, dtype, shape, checksum))
            if hash_of:
                self.records.append(Hash(HASH, hash_of, checksum))
            return number

    def store_bytes(self, dtype: str, shape: list[int], nbytes: int, get: Callable[[], bytes]) -> int:
        """Keep the bytes in `blobs`."""
        return self.store(dtype, shape, nbytes, HostBytes.of(get()))

    def later(self, job: Job, nbytes: int) -> None:
        """Run the job at once."""
        for record in job():
            self.emit(record)

    def on_tick(self, tick: Callable[[], None] | None) -> None:
        """Do nothing: it has no thread."""

    def end_step(self, calls: int, values: int, seconds: dict[str, float]) -> None:
        """Complete the step."""
        nbytes = sum(map(len, self.blobs.values()))
        self.records.append(Commit(COMMIT, calls, values, len(self.blobs), nbytes, [], dict(seconds)))

    def drop_step(self) -> None:
        """Complete the step."""
        self.end_step(0, 0, {})

    def settle(self, *, wait: bool) -> None:
        """Do nothing: there is no file."""

    def flush(self) -> None:
        """Return at once: there is no file."""

    def close(self) -> None:
        """Note that the sink was closed."""
        self.closed = True
