"""The thread that writes, and what waits for it.

Theory of operation
    It takes what is there when it is signaled, as at the end of a step that is not short, and every 50 ms otherwise.
    Records that wait and the memory of jobs are bounded. Records are not counted one by one, that would cost too much:
    whoever emits them calls `wait_for_room` now and then, every thousand calls, say.

    After an error the thread goes on emptying the queue, writing nothing; `raise_error` raises it, and whatever else
    has ended the thread.

    Nobody waits for the thread for ever (`waiting`, `bounded_thread`), and no wait can be cut in two by an interrupt
    (`bell`).
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from ...errors import StoreError
from ..records import Note
from ..sink import Job
from ..threads.bell import Bell
from ..threads.bounded_thread import BoundedThread
from .job_queue import Action, JobQueue
from .packed_records import IS_COMPILED, new_packer, packed
from .step_files import StepEnd
from .step_sequence import Steps

INTERVAL_SECONDS: Final = 0.05
# Records that may wait to be written, some 4 MB of host memory.
WAITING_RECORDS: Final = 1 << 15
JOB_BYTES: Final = 16 << 20  # of memory that jobs may hold
_LOOK_SECONDS: Final = 0.002


class WriterThread:
    """Does what is queued, on a daemon thread of its own.

    It has more than fifteen methods, one for each thing that may be queued.
    """

    def __init__(self, steps: Steps, name: str, tick: Callable[[], None], on_error: Callable[[], None]) -> None:
        """Start the thread.

        Args:
            steps: where records and bytes go.
            name: of the thread.
            tick: called every 50 ms.
            on_error: called once when the thread has failed: whoever waits for it must look.
        """
        self._steps = steps
        self._on_error = on_error
        self.queue = JobQueue(steps.records, lambda: steps.waiting_records)
        self._signal = Bell()
        self._tick = tick
        self._ticked = 0.0  # when the tick was called last, or a step ended, of which it would find nothing
        self._ended = 0.0  # when the last step did, for those that end them
        self._error: StoreError | None = None
        self._reported = False
        self._is_ending = False
        self._lock = threading.Lock()  # of the three below
        self._waited_seconds = 0.0
        self._job_bytes = 0  # held by jobs
        self._job_seconds = 0.0
        self._thread = BoundedThread(self._run, name)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def signal(self) -> None:
        """Let the thread write now what was passed on so far."""
        self.queue.add(self._steps.flush, False)
        self._signal.ring()

    def raise_error(self) -> None:
        """Raise what made the thread fail, if it did."""
        error = self._error
        try:
            if error is not None:
                raise StoreError(*error.args) from error
            self._thread.raise_error()
        except StoreError:
            self._reported = True
            raise

    @contextlib.contextmanager
    def waiting(self) -> Iterator[Callable[[], None]]:
        """Give what whoever waits for the thread is to call in between: see `BoundedThread.waiting`."""
        with self._thread.waiting(self._left) as look:

            def look_for_errors() -> None:
                self.raise_error()
                look()

            yield look_for_errors

    def wait_for_room(self) -> None:
        """Wait while more than WAITING_RECORDS records wait."""
        self.raise_error()
        waiting = self.queue.waiting_records
        if waiting > WAITING_RECORDS // 4:
            self._signal.ring()
        if waiting > WAITING_RECORDS:
            self._wait(lambda: self.queue.waiting_records > WAITING_RECORDS // 2)

    def later(self, job: Job, nbytes: int) -> None:
        """Call `job` there, and keep its records. Waits while jobs hold JOB_BYTES or more, but on the thread itself."""
        self.raise_error()
        if self._job_bytes > JOB_BYTES and not self._thread.is_current:
            self._wait(lambda: self._job_bytes > JOB_BYTES // 2)
        with self._lock:
            self._job_bytes += nbytes
        self.queue.add(self._do_job, (job, nbytes))

    def end_step(self, end: StepEnd) -> None:
        """Queue the end of a step. Of steps that are shorter than INTERVAL_SECONDS several are written at once: to be
        woken for each, the thread would stop the program each time.
        """
        self.queue.add(self._do_end, end)
        now = time.monotonic()
        if now - self._ended >= INTERVAL_SECONDS:
            self._signal.ring()
        self._ended = now

    def flush(self, bell: Bell | None = None) -> None:
        """Wait until all that was queued is on file; with `bell`, which is then waited with, only until it is written.
        The seconds of that are counted.

        Raises:
            StoreError: it could not be written; or the disk hangs.
        """
        begun = time.perf_counter()
        self._wait_until_done(lambda: self._steps.flush(bell is None), self._thread.bell if bell is None else bell)
        if bell is not None:
            self._count_waited(begun)

    def settle(self, most_seconds: float) -> None:
        """Wait until the records that were queued are written, be the bytes that they name or not; at most so long.

        Raises:
            StoreError: they, or something before them, could not be written; or the disk hangs.
        """
        begun = time.perf_counter()
        self._wait_until_done(self._steps.flush_records, Bell(), most_seconds)
        self._count_waited(begun)

    def _wait_until_done(self, action: Callable[[], None], bell: Bell, most_seconds: float = math.inf) -> None:
        self.raise_error()
        begun = time.perf_counter()
        done: list[bool] = []
        self.queue.add(self._do_report, (action, done, bell))
        self._signal.ring()
        with self.waiting() as look:
            while not done and self._thread.is_alive and time.perf_counter() - begun < most_seconds:
                look()
                bell.wait(INTERVAL_SECONDS)
        self.raise_error()

    def _count_waited(self, begun: float) -> None:
        with self._lock:
            self._waited_seconds += time.perf_counter() - begun

    def end(self, notes: list[Note]) -> None:
        """Let the thread end behind what is queued; `notes` are of a step that never ended. Idempotent."""
        if not self._is_ending:
            self.queue.add(self._steps.interrupt, notes)
            self._is_ending = True  # after it: an interrupt in between makes two ends, never none
        self._signal.ring()

    def wait_for_the_end(self) -> None:
        """Wait until all is done.

        Raises:
            StoreError: the thread failed, and no call has said so yet; or the disk hangs.
        """
        was_reported = self._reported
        try:
            self._thread.wait(self._left)
            self.raise_error()
        except StoreError:
            if not was_reported:
                raise
        except BaseException:
            warnings.warn(
                f"aten_dump no longer waits for the disk, {self._left()} left: what is not written when the process "
                "ends is lost",
                stacklevel=4,
            )
            raise

    def take_waited_seconds(self) -> float:
        """Return for how long others waited for the thread since the last call."""
        with self._lock:
            waited, self._waited_seconds = self._waited_seconds, 0.0
        return waited

    def _left(self) -> str:
        return f"{self.queue.waiting_records} records and their bytes are"

    def _wait(self, is_full: Callable[[], bool]) -> None:
        begun = time.perf_counter()
        with self.waiting() as look:
            while is_full() and self._thread.is_alive:
                look()
                self._signal.ring()
                time.sleep(_LOOK_SECONDS)
        self._count_waited(begun)

    # From here on: the thread's own.

    def _run(self) -> None:
        while True:
            self._signal.wait(INTERVAL_SECONDS)
            woken = time.monotonic()
            if self._work():
                return
            if self._ticked >= woken:
                continue  # a step has ended: what there is of the next one may wait until the thread wakes up again
            if time.monotonic() - self._ticked >= INTERVAL_SECONDS:
                self._ticked = time.monotonic()
                self._try(lambda _: self._tick(), None)
                if self._work():
                    return
            self._try(self._steps.flush_in_time, None)

    def _work(self) -> bool:
        """Do what is queued; True when it is the end of all."""
        flushed, interrupt = time.monotonic(), self._steps.interrupt
        self.queue.drain()
        while (job := self.queue.pop()) is not None:
            action, argument = job
            self._try(action, argument)
            self.queue.done()
            self._thread.progress += 1
            if action == interrupt:
                return True
            del argument, job
            if time.monotonic() - flushed >= INTERVAL_SECONDS:
                self._try(self._steps.flush, False)
                flushed = time.monotonic()
        return False

    def _try(self, action: Action, argument: Any) -> None:
        if self._error is not None:
            return
        try:
            action(argument)
        except BaseException as error:  # noqa: BLE001 - raised again by the next call on the training thread
            failed = self._steps.error_of(error)
            self._steps.abandon()
            self._error = failed
            self._on_error()

    def _do_report(self, argument: tuple[Callable[[], None], list[bool], Bell]) -> None:
        action, done, bell = argument
        action()
        done.append(True)
        bell.ring()

    def _do_job(self, argument: tuple[Job, int]) -> None:
        job, nbytes = argument
        begun = time.perf_counter()
        records = packed_together(job())
        with self._lock:
            self._job_bytes -= nbytes
            self._job_seconds += time.perf_counter() - begun
        self._steps.records(records)

    def _do_end(self, end: StepEnd) -> None:
        if self._job_seconds:
            end.seconds["later"], self._job_seconds = self._job_seconds, 0.0
        self._steps.end(end)
        self._ticked = time.monotonic()


def packed_together(records: Iterable[tuple[Any, ...]]) -> list[bytes]:
    """Pack the records of a job, without a call of Python's for each; compiled, such calls cost less than msgpack's."""
    if IS_COMPILED:
        return packed(records)
    batch = list(records)
    try:
        return list(map(new_packer(), batch))
    except (TypeError, ValueError, OverflowError):
        return packed(batch)
