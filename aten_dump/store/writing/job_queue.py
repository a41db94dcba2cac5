"""What is to be done on the writer's thread, in the order in which it was said."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

Action = Callable[[Any], None]


class JobQueue:
    """Records, emitted by an append alone, and jobs among them: FIFO."""

    def __init__(self, write: Action) -> None:
        """Make an empty queue; `write` is the action of a list of records."""
        self._write = write
        self._pending: list[tuple[Any, ...]] = []
        self.emit = self._pending.append
        self._jobs: deque[tuple[Action, Any]] = deque()
        self._batches: deque[list[tuple[Any, ...]]] = deque()  # the records among the jobs; the first shrinks
        self._lock = threading.Lock()  # makes "drain the list, then queue a job" one act; held for microseconds

    @property
    def waiting_records(self) -> int:
        """Records that were emitted and are not yet written."""
        return len(self._pending) + sum(map(len, self._batches.copy()))

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
        self._pending.clear()

    def pop(self) -> tuple[Action, Any] | None:
        """Take the first job; None when there is none."""
        return self._jobs.popleft() if self._jobs else None

    def done(self, action: Action) -> None:
        """Say that a job taken before is over."""
        if action == self._write:
            self._batches.popleft()

    def _drain(self) -> None:
        pending = self._pending
        count = len(pending)
        if count:  # another thread may append meanwhile: take exactly `count`
            batch = pending[:count]
            del pending[:count]
            self._batches.append(batch)
            self._jobs.append((self._write, batch))
