"""What is gathered and sent to the sink in one go."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod


class Flushable(ABC):
    """Something that the program's threads fill and send, and that the sink's ticks send too.

    Ticks come from the writer's thread, which must never wait: whoever holds the lock may be waiting for the writer.

    What is filled for each value does without the lock, which costs more than the filling: it sets `_is_filled` first,
    and then looks whether a tick is at work; a tick sets `_is_ticking` first, and then looks whether something is being
    filled. One of both sees the other, as Python's lock orders what they do. (Of the program's threads one fills at a
    time: `OwnCode`.)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_filled = False  # a value is being added, without the lock
        self._is_ticking = False  # a tick is at work, with the lock held

    @abstractmethod
    def _has_any(self) -> bool:
        """Return True if there is something to send."""

    @abstractmethod
    def _send(self) -> None:
        """Send it; called with the lock held."""

    def _wait_for_tick(self) -> None:
        """Wait for the tick that is at work; with `_is_filled` set, none begins after it."""
        with self._lock:
            pass

    def flush(self) -> None:
        """Send what was gathered."""
        with self._lock:
            self._send()

    def tick(self) -> None:
        """Send what was gathered unless a thread is at it."""
        if self._has_any() and self._lock.acquire(blocking=False):
            self._is_ticking = True
            try:
                if not self._is_filled:
                    self._send()
            finally:
                self._is_ticking = False
                self._lock.release()
