"""What capture needs from whoever keeps its records: one small protocol.

``store.writer.Writer`` keeps them in files; ``store.sink.MemorySink`` in lists, for tests of capture.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np
import xxhash

from .records import BLOB, COMMIT, HASH, Blob, Commit, Hash, Header
from .writing.host_bytes import HostBytes

# fill(offset, address, nbytes): copy bytes [offset, offset + nbytes) of the blob to host memory at
# `address`, on the calling thread. It may return a function that the writer calls, on its own thread,
# to wait until the copy is complete (an accelerator's event); None when it is complete already.
# `offset` and `address` are multiples of 64; so is `nbytes`, except in the last piece of a blob.
Fill = Callable[[int, int, int], "Callable[[], None] | None"]
Emit = Callable[[tuple[Any, ...]], None]  # keeps one record
# Returns records. It is called once, on the writer's thread where the sink has one.
Job = Callable[[], "Iterable[tuple[Any, ...]]"]


class Sink(Protocol):
    """Keeper of records and bytes. All methods may be called from several threads.

    Any method may raise StoreError, also for an earlier failure on the writer's own thread.
    """

    def begin_step(self, header: Header) -> None:
        """Start a step; nothing is created on disk before its first record."""

    def emit(self, record: tuple[Any, ...]) -> None:
        """Keep one record. Costs an append; never waits for a file."""

    def wait_for_room(self) -> None:
        """Wait while too many records wait to be written; to be called every thousand calls or so."""

    def store(self, dtype: str, shape: list[int], nbytes: int, fill: Fill, hash_of: int = 0) -> int:
        """Keep `nbytes` bytes and return the blob's id; 0 when the byte budget is spent.

        With `hash_of`, a value whose elements in row-major order are these bytes, its Hash record is kept too, of
        their xxh3, which is taken anyway. Calls `fill` for consecutive pieces before it returns, or reads the bytes
        where they are if it is a `HostBytes`; waits when the queue is full. Zero bytes are allowed: a blob of nbytes 0
        is kept and `fill` is not called.
        """

    def store_bytes(self, dtype: str, shape: list[int], nbytes: int, get: Callable[[], bytes]) -> int:
        """Keep bytes that are in host memory already, and stay as they are until `get` is called, as a `Job` is."""

    def later(self, job: Job, nbytes: int) -> None:
        """Keep the records that `job` returns, which holds `nbytes` bytes of memory until it was called.

        They come behind everything said before. May wait while the jobs hold too much.
        """

    def on_tick(self, tick: Callable[[], None] | None) -> None:
        """Have `tick` called now and then while a step is open: it may send what waits elsewhere, and never waits."""

    def end_step(self, calls: int, values: int, seconds: dict[str, float]) -> None:
        """Complete the step; the files are finished in the background."""

    def close(self) -> None:
        """Wait until everything is on file; let go of files and threads. Idempotent."""


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
        self.emit = self.records.append

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
            self.records.append(Blob(BLOB, number, 0, 0, nbytes, dtype, shape, b""))
            if hash_of:
                self.records.append(Hash(HASH, hash_of, xxhash.xxh3_64_digest(buffer.data)))
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

    def close(self) -> None:
        """Note that the sink was closed."""
        self.closed = True
