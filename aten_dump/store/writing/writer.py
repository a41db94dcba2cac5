"""The Sink that keeps a rank's records and bytes in files.

Theory of operation
    The training thread only appends: `emit` is `list.append` itself, `store` copies bytes into arena memory and
    queues pieces. A daemon thread encodes and writes. It takes what is there when half a chunk of bytes
    has come, when somebody waits for room, and every 50 ms otherwise. Records are drained from the list into
    the job queue before each piece, so jobs are in the order in which things were said: FIFO.

    Where the program's own threads take all cores, there is none for this thread to write on, and a copy for it costs
    more than the write: with `at_once`, long blobs in host memory are written from where they are, while the thread
    that stores them waits. (It does not write itself: an interrupt in the midst would leave the files in pieces.)

    Both are bounded. Bytes wait in the arena, whose `reserve` waits for room. Records are not counted one by one, that
    would cost more than the append: whoever emits them calls `wait_for_room` now and then, every thousand calls, say.

    `_store_lock` keeps the pieces of a blob together and steps whole; `_order_lock` makes "drain the list,
    then queue a job" one act, and is held for microseconds. The writer's thread takes only the latter.

    After an error the thread goes on emptying the queue, writing nothing; `store`, `begin_step`, `end_step` and
    `close` raise it. A forked child has neither the thread nor a say: its calls do nothing.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ...errors import FormatError, StoreError
from ..records import NOTE, Header, Note
from ..shards import DTYPE_BITS
from ..sink import Fill, Job
from .arena import LEAST_QUEUE_BYTES, Allocate, Arena
from .existing import prepare_root
from .host_bytes import HostBytes
from .step_files import BlobStart, Piece, StepEnd
from .step_sequence import Steps

INTERVAL_SECONDS: Final = 0.05
# Records that may wait to be written, some 30 MB of host memory and 0.1 s of the writer's thread.
WAITING_RECORDS: Final = 1 << 15
JOB_BYTES: Final = 16 << 20  # of memory that jobs may hold
AT_ONCE_BYTES: Final = 64 << 10
_LOOK_SECONDS: Final = 0.002
_WRITE_SECONDS: Final = 0.05  # between looks whether the thread has failed


class Writer:
    """Writes the dump of one rank below `root`. All methods may be called from several threads."""

    def __init__(
        self,
        root: Path,
        rank: int,
        *,
        queue_bytes: int,
        shard_bytes: int,
        max_bytes: int | None = None,
        overwrite: bool = False,
        world_size: int = 1,
        allocate: Allocate | None = None,
        at_once: bool = False,
    ) -> None:
        """Prepare the folder and start the thread.

        Args:
            root: folder of the dump; created if missing.
            rank: whose files are written.
            queue_bytes: most bytes of host memory that wait for the disk.
            shard_bytes: size at which a new shard is begun; a longer blob gets a shard of its own.
            max_bytes: most bytes of blobs to keep in all steps together; None for no limit.
            overwrite: replace an earlier dump of this rank instead of refusing to start.
            world_size: ranks of the run; rank 0 answers for folders of ranks beyond it.
            allocate: makes the host memory (pinned, say) as a uint8 array of so many bytes.
            at_once: have blobs of AT_ONCE_BYTES and more that are `HostBytes` written before `store` returns.

        Raises:
            StoreError: the folder holds a dump already, or cannot be written.
        """
        for name, value, least in (("queue_bytes", queue_bytes, LEAST_QUEUE_BYTES), ("shard_bytes", shard_bytes, 1)):
            if value < least:
                raise StoreError(f"{name} is {value}; it must be {least} or more")
        self._root = Path(root).absolute()  # the program may change its folder later
        self._rank = rank
        self._max_bytes = max_bytes
        prepare_root(self._root, rank, world_size, overwrite)
        self._pid = os.getpid()
        self._pending: list[tuple[Any, ...]] = []
        self.emit = self._pending.append
        self._jobs: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._batches: deque[list[tuple[Any, ...]]] = deque()  # the records among the jobs; the first shrinks
        self._room_seconds = 0.0
        self._job_bytes = 0  # held by jobs; under _order_lock
        self._tick: Callable[[], None] | None = None
        self._store_lock = threading.RLock()
        self._order_lock = threading.Lock()
        self._signal = threading.Event()
        self._arena = Arena(queue_bytes, self._before_wait, allocate)
        self._at_once = at_once
        self._storing = False
        self._open_step: Header | None = None
        self._blob_id = 0
        self._stored_bytes = 0
        self._skipped = [0, 0]  # blobs and bytes of this step beyond max_bytes
        self._unsignaled = 0
        self._error: StoreError | None = None
        self._reported = False
        self._closed = False
        # The thread's own.
        self._steps = Steps(self._root, rank, shard_bytes, self._arena.release)
        self._job_seconds = 0.0
        self._ticked = 0.0  # when the tick was called last
        self._thread = threading.Thread(target=self._run, name=f"aten_dump-writer-{rank}", daemon=True)
        self._thread.start()

    @property
    def allocated_bytes(self) -> int:
        """Bytes of host memory held for blobs that wait; at most queue_bytes."""
        return self._arena.allocated_bytes

    @property
    def waiting_records(self) -> int:
        """Records that were emitted and are not yet written."""
        return len(self._pending) + sum(map(len, self._batches.copy()))

    def wait_for_room(self) -> None:
        """Wait while more than WAITING_RECORDS records wait; the seconds are counted as `wait`.

        Raises:
            StoreError: an earlier write failed.
        """
        if os.getpid() != self._pid:
            self._pending.clear()
            return
        self._raise_error()
        waiting = self.waiting_records
        if waiting > WAITING_RECORDS // 4:
            self._signal.set()
        if waiting <= WAITING_RECORDS:
            return
        begun = time.perf_counter()
        while self.waiting_records > WAITING_RECORDS // 2 and self._thread.is_alive():
            self._raise_error()
            self._signal.set()
            time.sleep(_LOOK_SECONDS)
        with self._order_lock:
            self._room_seconds += time.perf_counter() - begun

    def begin_step(self, header: Header) -> None:
        """Start a step; its folder is made with its first record or blob."""
        if os.getpid() != self._pid:
            return
        with self._store_lock:
            self._raise_error()
            if self._closed or self._open_step is not None:
                step = self._open_step
                state = "the writer is closed" if step is None else f"call end_step for step {step.step} first"
                raise StoreError(f"cannot begin step {header.step} of rank {self._rank}: {state}")
            self._open_step = header
            self._blob_id = 0
            self._skipped = [0, 0]
            self._queue(self._steps.begin, header)

    def store(self, dtype: str, shape: list[int], nbytes: int, fill: Fill, hash_of: int = 0) -> int:
        """Keep `nbytes` bytes and return the blob's id; 0 when max_bytes is spent. See `Sink.store`.

        Raises:
            FormatError: shape and dtype do not make nbytes.
            StoreError: an earlier write failed.
        """
        return self._store(dtype, shape, nbytes, hash_of, lambda blob: self._store_pieces(blob, fill))

    def store_bytes(self, dtype: str, shape: list[int], nbytes: int, get: Callable[[], bytes]) -> int:
        """Keep the bytes that `get` will return. See `Sink.store_bytes`; raises as `store` does."""

        def put(blob: BlobStart) -> None:
            self._queue(self._steps.piece, Piece(blob, None, 0, nbytes, True, True, None, get))

        return self._store(dtype, shape, nbytes, 0, put)

    def later(self, job: Job, nbytes: int) -> None:
        """Have the writer's thread call `job` and keep its records. Waits while jobs hold JOB_BYTES or more.

        Raises:
            StoreError: an earlier write failed.
        """
        if os.getpid() != self._pid:
            return
        self._raise_error()
        if self._job_bytes > JOB_BYTES and threading.current_thread() is not self._thread:
            begun = time.perf_counter()
            while self._job_bytes > JOB_BYTES // 2 and self._thread.is_alive():
                self._raise_error()
                self._signal.set()
                time.sleep(_LOOK_SECONDS)
            with self._order_lock:
                self._room_seconds += time.perf_counter() - begun
        with self._order_lock:
            self._drain()
            self._job_bytes += nbytes
            self._jobs.append((self._do_job, (job, nbytes)))

    def on_tick(self, tick: Callable[[], None] | None) -> None:
        """Have `tick` called on the writer's thread every 50 ms while a step is open. It may call `store_bytes` and
        `later`, which do not wait there.
        """
        self._tick = tick

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
            self._raise_error()
            if self._open_step is None or self._storing:
                place = "by a fill" if self._storing else "outside of a step"
                raise StoreError(f"store of rank {self._rank} was called {place}")
            if self._max_bytes is not None and (self._skipped[0] or self._stored_bytes + nbytes > self._max_bytes):
                self._stored_bytes = max(self._stored_bytes, self._max_bytes)  # once spent, it stays spent
                self._skipped[0] += 1
                self._skipped[1] += nbytes
                return 0
            self._stored_bytes += nbytes
            self._blob_id += 1
            blob = BlobStart(self._blob_id, dtype, list(shape), nbytes, hash_of)
            self._storing = True
            try:
                put(blob)
            except BaseException:
                self._stored_bytes -= nbytes
                raise
            finally:
                self._storing = False
            return blob.id

    def end_step(self, calls: int, values: int, seconds: dict[str, float]) -> None:
        """Complete the step; does not wait for the files."""
        if os.getpid() != self._pid:
            return
        with self._store_lock:
            self._raise_error()
            if self._open_step is None:
                raise StoreError(f"end_step of rank {self._rank} was called outside of a step")
            self._open_step = None
            seconds = dict(seconds)
            with self._order_lock:
                waited, self._room_seconds = self._room_seconds + self._arena.waited_seconds, 0.0
            seconds["wait"] = seconds.get("wait", 0.0) + waited
            self._arena.waited_seconds = 0.0
            self._queue(self._do_end, StepEnd(calls, values, seconds, self._budget_notes()))
        self._signal.set()

    def close(self) -> None:
        """Write all that was said and let go of the thread and the files. Idempotent.

        Raises:
            StoreError: the thread failed and no call has said so yet.
        """
        if os.getpid() != self._pid:
            return
        with self._store_lock:
            if not self._closed:
                self._closed = True
                self._open_step = None
                self._queue(self._steps.interrupt, self._budget_notes())
        self._signal.set()
        self._thread.join()
        if not self._reported:
            self._raise_error()

    def _budget_notes(self) -> list[Note]:
        blobs, nbytes = self._skipped
        if not blobs:
            return []
        self._skipped = [0, 0]
        message = f"max_bytes={self._max_bytes} was spent: {blobs} blobs of {nbytes} bytes in this step were not kept"
        return [Note(NOTE, "max_bytes", message, blobs)]

    def _store_pieces(self, blob: BlobStart, fill: Fill) -> None:
        if self._at_once and blob.nbytes >= AT_ONCE_BYTES and isinstance(fill, HostBytes):
            self._await_write(blob, fill)
            return
        if blob.nbytes == 0:
            self._queue(self._steps.piece, Piece(blob, None, 0, 0, True, True, None))
        offset = 0
        chunk = None
        try:
            while offset < blob.nbytes:
                chunk, start, nbytes = self._arena.reserve(blob.nbytes - offset)
                ready = fill(offset, chunk.address + start, nbytes)
                is_last = offset + nbytes == blob.nbytes
                piece = Piece(blob, chunk, start, nbytes, offset == 0, is_last, ready)
                chunk = None
                self._queue(self._steps.piece, piece)
                offset += nbytes
                self._unsignaled += nbytes
                if self._unsignaled >= self._arena.chunk_bytes // 2:
                    self._unsignaled = 0
                    self._signal.set()
        finally:
            if chunk is not None:  # the fill raised; the next blob takes the place of pieces already queued
                self._arena.release([chunk])

    def _await_write(self, blob: BlobStart, source: HostBytes) -> None:
        """Have a blob written from where it is. Its memory is let go only when that is over, whatever interrupts."""
        done = threading.Event()
        self._queue(self._do_write, (blob, source, done))
        self._signal.set()
        interrupt: BaseException | None = None
        while True:
            try:
                while not done.wait(_WRITE_SECONDS) and self._error is None and self._thread.is_alive():
                    pass
                break
            except BaseException as error:  # noqa: BLE001 - raised below
                interrupt = error
        if interrupt is not None:
            raise interrupt
        self._raise_error()

    def _raise_error(self) -> None:
        error = self._error
        if error is not None:
            self._reported = True
            raise StoreError(*error.args) from error

    def _before_wait(self) -> None:
        self._raise_error()
        self._signal.set()

    def _queue(self, action: Callable[[Any], None], argument: Any) -> None:
        """Queue a job behind all records emitted before it."""
        with self._order_lock:
            self._drain()
            self._jobs.append((action, argument))

    def _drain(self) -> None:
        pending = self._pending
        count = len(pending)
        if count:  # another thread may append meanwhile: take exactly `count`
            batch = pending[:count]
            del pending[:count]
            self._batches.append(batch)
            self._jobs.append((self._steps.records, batch))

    # From here on: the writer's thread.

    def _run(self) -> None:
        while True:
            self._signal.wait(INTERVAL_SECONDS)
            self._signal.clear()
            if self._tick is not None and time.monotonic() - self._ticked >= INTERVAL_SECONDS:
                self._ticked = time.monotonic()
                self._try(self._do_tick, None)
            with self._order_lock:
                self._drain()
            while self._jobs:
                action, argument = self._jobs.popleft()
                if self._error is None:
                    self._try(action, argument)
                if action == self._steps.records:
                    self._batches.popleft()
                if action == self._steps.interrupt:
                    return
                del argument
            self._try(self._do_flush, None)

    def _try(self, action: Callable[[Any], None], argument: Any) -> None:
        try:
            action(argument)
        except BaseException as error:  # noqa: BLE001 - raised again by the next call on the training thread
            self._error = self._steps.fail(error)
            self._arena.wake_waiting()

    def _do_tick(self, _: None) -> None:
        """Call the tick unless a thread is storing, which may wait for this one."""
        if self._error is None and self._store_lock.acquire(blocking=False):
            try:
                if self._tick is not None and self._open_step is not None and not self._storing:
                    self._tick()
            finally:
                self._store_lock.release()

    def _do_flush(self, _: None) -> None:
        if self._error is None:
            self._steps.flush()

    def _do_job(self, argument: tuple[Job, int]) -> None:
        job, nbytes = argument
        begun = time.perf_counter()
        records = list(job())
        with self._order_lock:
            self._job_bytes -= nbytes
            self._job_seconds += time.perf_counter() - begun
        self._steps.records(records)

    def _do_write(self, argument: tuple[BlobStart, HostBytes, threading.Event]) -> None:
        blob, source, done = argument
        try:
            self._steps.write(blob, source)
        finally:
            done.set()

    def _do_end(self, end: StepEnd) -> None:
        if self._job_seconds:
            end.seconds["later"], self._job_seconds = self._job_seconds, 0.0
        self._steps.end(end)
