"""What is gathered and sent to the sink in one go."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod


class Flushable(ABC):
    """Something that the program's threads fill and send, and that the sink's ticks send too.

    Ticks come from the writer's thread, which must never wait: whoever holds the lock may be waiting for the writer.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()

    @abstractmethod
    def _has_any(self) -> bool:
        """Tell whether there is something to send."""

    @abstractmethod
    def _send(self) -> None:
        """Send it; called with the lock held."""

    def flush(self) -> None:
        """Send what was gathered."""
        with self._lock:
            self._send()

    def tick(self) -> None:
        """Send what was gathered unless a thread is at it."""
        if self._has_any() and self._lock.acquire(blocking=False):
            try:
                self._send()
            finally:
                self._lock.release()
