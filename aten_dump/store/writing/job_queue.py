"""What is to be done on the writer's thread, in the order in which it was said."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from .packed_records import PackedRecords

Action = Callable[[Any], None]


class JobQueue:
    """Records, packed when they are emitted, and jobs among them: FIFO."""

    def __init__(self, write: Action, taken: Callable[[], int] = lambda: 0) -> None:
        """Make an empty queue.

        Args:
            write: the action of a list of packed records.
            taken: returns how many of those are still not in a file.
        """
        self._write = write
        self._not_in_file = taken
        self._pending = PackedRecords()
        self.emit = self._pending.add
        self._jobs: deque[tuple[Action, Any]] = deque()
        self._lock = threading.Lock()  # makes "drain the list, then queue a job" one act; held for microseconds
        self._queued = 0  # records that were ever put among the jobs
        self._taken = 0  # those of them that `pop` has returned
        self._writing: list[bytes] = []  # those that were returned last

    @property
    def waiting_records(self) -> int:
        """Records that were emitted and are not yet written."""
        with self._lock:
            waiting = len(self._pending.waiting) + self._queued - self._taken + len(self._writing)
        return waiting + self._not_in_file()

    def add(self, action: Action, argument: Any) -> None:
        """Queue a job behind all records emitted before it."""
        with self._lock:
            self._drain()
            self._jobs.append((action, argument))

    def drain(self) -> None:
        """Queue the records emitted so far."""
        with self._lock:
            self._drain()

    def forget(self) -> None:
        """Drop the records emitted so far."""
        self._pending.take()

    def pop(self) -> tuple[Action, Any] | None:
        """Take the first job; None when there is none."""
        if not self._jobs:
            return None
        job = self._jobs.popleft()
        if job[0] == self._write:
            self._writing = job[1]
            self._taken += len(job[1])
        return job

    def done(self) -> None:
        """Mark the job taken last as done."""
        self._writing = []

    def _drain(self) -> None:
        batch = self._pending.take()
        if batch:
            self._jobs.append((self._write, batch))
            self._queued += len(batch)
