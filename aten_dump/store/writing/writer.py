"""The Sink that keeps a rank's records and bytes in files.

Theory of operation
    The training thread touches no file: `emit` packs a record and appends it to a list, `store` copies bytes into
    arena memory and queues pieces. A daemon thread (`WriterThread`) writes, when half a chunk of bytes has come, when
    somebody waits for room, and every 50 ms otherwise.

    Where the program's own threads take all cores, whatever this thread does stops them, and they wait for each other:
    with `at_once`, the thread that stores bytes of the host waits when QUEUED_BYTES of them have come, until they are
    written. (It does not write itself: an interrupt in the midst would leave the files in pieces, and nobody could get
    it out of a disk that hangs.)

    Bytes wait in the arena, whose `reserve` waits for room. `_store_lock` keeps the pieces of a blob together and
    steps whole. A forked child has neither the thread nor a say: its calls do nothing.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from ...errors import FormatError, StoreError
from ..records import Header
from ..shards import DTYPE_BITS
from ..sink import Fill, Job
from .arena import Arena
from .byte_budget import ByteBudget
from .host_bytes import HostBytes
from .settings import WriterSettings
from .step_files import QUEUED_BYTES, BlobStart, Piece, StepEnd
from .step_sequence import Steps
from .writer_thread import WriterThread

LEAST_AWAITED_BYTES: Final = 4 << 20  # at the end of a step
SETTLE_SECONDS: Final = 0.2  # far more than a disk takes that works


class Writer:
    """Writes the dump of one rank below `root`. All methods may be called from several threads."""

    def __init__(self, root: Path, rank: int, settings: WriterSettings) -> None:
        """Prepare the folder and start the thread.

        Args:
            root: folder of the dump; created if missing.
            rank: whose files are written.
            settings: how.

        Raises:
            StoreError: the folder holds a dump already, or cannot be written.
        """
        root = Path(root).absolute()  # the program may change its folder later
        self._rank = rank
        self._pid = os.getpid()
        self._bell = settings.bell() if settings.at_once else None
        self._budget = ByteBudget(settings.max_bytes)
        self._arena = Arena(settings.queue_bytes, self._waiting_for_room, settings.allocate)
        self._steps = Steps(root, rank, settings, self._arena.release)
        name = f"aten_dump-writer-{rank}"
        self._thread = WriterThread(self._steps, name, self._tick_between_blobs, self._arena.wake_waiting)
        self.emit = self._thread.queue.emit
        self._tick: Callable[[], None] | None = None
        self._store_lock = threading.RLock()
        self._storing = False
        self._open_step: Header | None = None
        self._blob_id = 0
        self._unsignaled = 0
        self._closed = False
        self._thread.start()

    @property
    def allocated_bytes(self) -> int:
        """Bytes of host memory held for blobs that wait; at most queue_bytes."""
        return self._arena.allocated_bytes

    @property
    def waiting_records(self) -> int:
        """Records that were emitted and are not yet written."""
        return self._thread.queue.waiting_records

    def wait_for_room(self) -> None:
        """Wait while more than WAITING_RECORDS records wait; the seconds are counted as `wait`.

        Raises:
            StoreError: an earlier write failed.
        """
        if os.getpid() != self._pid:
            self._thread.queue.forget()
            return
        self._thread.wait_for_room()

    def begin_step(self, header: Header) -> None:
        """Start a step; its folder is made with its first record or blob."""
        if os.getpid() != self._pid:
            return
        with self._store_lock:
            self._thread.raise_error()
            if self._closed or self._open_step is not None:
                step = self._open_step
                state = "the writer is closed" if step is None else f"call end_step for step {step.step} first"
                raise StoreError(f"cannot begin step {header.step} of rank {self._rank}: {state}")
            self._open_step = header
            self._blob_id = 0
            self._budget.begin_step()
            self._thread.queue.add(self._steps.begin, header)

    def store(self, dtype: str, shape: list[int], nbytes: int, fill: Fill, hash_of: int = 0) -> int:
        """Keep `nbytes` bytes and return the blob's id; 0 when max_bytes is spent. See `Sink.store`.

        Raises:
            FormatError: shape and dtype do not make nbytes.
            StoreError: an earlier write failed.
        """
        blob = self._store(dtype, shape, nbytes, hash_of, lambda blob: self._store_pieces(blob, fill))
        if blob:
            with self._store_lock:
                self._hand_over(fill)
        return blob

    def store_bytes(self, dtype: str, shape: list[int], nbytes: int, get: Callable[[], bytes]) -> int:
        """Keep the bytes that `get` will return. See `Sink.store_bytes`; raises as `store` does."""

        def put(blob: BlobStart) -> None:
            self._thread.queue.add(self._steps.piece, Piece(blob, None, 0, nbytes, True, True, None, get))

        return self._store(dtype, shape, nbytes, 0, put)

    def later(self, job: Job, nbytes: int) -> None:
        """Let the writer's thread call `job` and keep its records. Waits while jobs hold JOB_BYTES or more.

        Raises:
            StoreError: an earlier write failed.
        """
        if os.getpid() == self._pid:
            self._thread.later(job, nbytes)

    def on_tick(self, tick: Callable[[], None] | None) -> None:
        """Call `tick` on the writer's thread every 50 ms while a step is open. It may call `store_bytes` and
        `later`, which do not wait there.
        """
        self._tick = tick

    def end_step(self, calls: int, values: int, seconds: dict[str, float]) -> None:
        """Complete the step; does not wait for the files."""
        if os.getpid() != self._pid:
            return
        with self._store_lock:
            self._thread.raise_error()
            if self._open_step is None:
                raise StoreError(f"end_step of rank {self._rank} was called outside of a step")
            self._open_step = None
            waited = self._thread.take_waited_seconds() + self._arena.waited_seconds
            self._arena.waited_seconds = 0.0
            seconds = {**seconds, "wait": seconds.get("wait", 0.0) + waited}
            self._thread.end_step(StepEnd(calls, values, seconds, self._budget.take_notes()))
            self._wait_for_bytes(LEAST_AWAITED_BYTES)

    def drop_step(self) -> None:
        """End a step in which nothing was recorded: no files are made for it."""
        if os.getpid() != self._pid:
            return
        with self._store_lock:
            self._open_step = None
            self._thread.queue.add(self._steps.drop, None)

    def settle(self, *, wait: bool) -> None:
        """Start writing what was passed on.

        Args:
            wait: until the records are written, at most SETTLE_SECONDS: a process that ends then loses none. The
                bytes that they name may still be on their way: they are many, and a collective is not to wait for them.

        Raises:
            StoreError: it, or something before it, could not be written.
        """
        if os.getpid() != self._pid:
            return
        if wait:
            self._thread.settle(SETTLE_SECONDS)
        else:
            self._thread.signal()

    def flush(self) -> None:
        """Wait until all that was said is on file; on the disk too, where the settings ask for that.

        Raises:
            StoreError: it, or something before it, could not be written.
        """
        if os.getpid() == self._pid:
            self._thread.flush()

    def close(self) -> None:
        """Write all that was said and let go of the thread and the files. Idempotent.

        Raises:
            StoreError: the thread failed and no call has said so yet.
        """
        if os.getpid() != self._pid:
            return
        with self._store_lock:
            self._closed = True
            self._open_step = None
            self._thread.end(self._budget.take_notes())
        self._thread.wait_for_the_end()

    def _store(self, dtype: str, shape: list[int], nbytes: int, hash_of: int, put: Callable[[BlobStart], None]) -> int:
        if os.getpid() != self._pid:
            return 0
        bits = DTYPE_BITS.get(dtype)
        if bits is None or math.prod(shape) * bits != nbytes * 8:
            raise FormatError(
                f"a blob of dtype {dtype!r} and shape {shape} cannot have {nbytes} bytes; "
                f"dtypes are {', '.join(DTYPE_BITS)}"
            )
        with self._store_lock:
            self._thread.raise_error()
            if self._open_step is None or self._storing:
                place = "by a fill" if self._storing else "outside of a step"
                raise StoreError(f"store of rank {self._rank} was called {place}")
            if not self._budget.take(nbytes):
                return 0
            self._blob_id += 1
            blob = BlobStart(self._blob_id, dtype, list(shape), nbytes, hash_of)
            self._storing = True
            try:
                put(blob)
            except BaseException:
                self._budget.give_back(nbytes)
                raise
            finally:
                self._storing = False
            return blob.id

    def _store_pieces(self, blob: BlobStart, fill: Fill) -> None:
        add = self._thread.queue.add
        if blob.nbytes == 0:
            add(self._steps.piece, Piece(blob, None, 0, 0, True, True, None))
        offset = 0
        chunk = None
        try:
            while offset < blob.nbytes:
                chunk, start, nbytes = self._arena.reserve(blob.nbytes - offset)
                ready = fill(offset, chunk.address + start, nbytes)
                is_first, is_last = offset == 0, offset + nbytes == blob.nbytes
                checksum = fill.checksum if is_first and is_last and isinstance(fill, HostBytes) else b""
                piece = Piece(blob, chunk, start, nbytes, is_first, is_last, ready, None, checksum)
                chunk = None
                add(self._steps.piece, piece)
                offset += nbytes
                self._unsignaled += nbytes
                if not is_last:
                    self._hand_over(fill)
        finally:
            if chunk is not None:  # the fill raised; the next blob takes the place of pieces already queued
                self._arena.release([chunk])

    def _hand_over(self, fill: Fill) -> None:
        """Write bytes if there are enough of them; those that may still be on their way from a device, for which
        nobody is to wait, with the next ones.
        """
        if self._bell is not None and isinstance(fill, HostBytes):
            self._wait_for_bytes(QUEUED_BYTES)
        elif self._unsignaled >= self._arena.chunk_bytes // 2:
            self._unsignaled = 0
            self._thread.signal()

    def _wait_for_bytes(self, least: int) -> None:
        """With `at_once`, wait until all bytes that were queued are written, if they are so many. They are copies: an
        interrupt does no harm.
        """
        if self._bell is not None and self._unsignaled >= least:
            self._unsignaled = 0
            self._thread.flush(self._bell)

    @contextlib.contextmanager
    def _waiting_for_room(self) -> Iterator[Callable[[], None]]:
        with self._thread.waiting() as look:

            def look_and_wake() -> None:
                look()
                self._thread.signal()

            yield look_and_wake

    def _tick_between_blobs(self) -> None:
        """Call the tick, on the writer's thread, unless a thread is storing, which may wait for this one."""
        if self._store_lock.acquire(blocking=False):
            try:
                if self._tick is not None and self._open_step is not None and not self._storing:
                    self._tick()
            finally:
                self._store_lock.release()
