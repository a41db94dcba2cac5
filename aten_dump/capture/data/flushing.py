"""What waits to be sent to the sink in one go."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod


class Waiting(ABC):
    """Something that the program's threads fill and send, and that the sink's ticks send too.

    Ticks come from the writer's thread, which must never wait: whoever holds the lock may be waiting for the writer.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()

    @abstractmethod
    def _waits(self) -> bool:
        """Tell whether there is something to send."""

    @abstractmethod
    def _send(self) -> None:
        """Send it; called with the lock held."""

    def flush(self) -> None:
        """Send all that waits."""
        with self._lock:
            self._send()

    def tick(self) -> None:
        """Send all that waits unless a thread is at it."""
        if self._waits() and self._lock.acquire(blocking=False):
            try:
                self._send()
            finally:
                self._lock.release()
