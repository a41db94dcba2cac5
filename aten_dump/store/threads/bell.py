"""How threads wake each other, so that an interrupt (Ctrl-C) at any instruction leaves nothing locked.

Theory of operation
    `threading.Condition`, and `Event` and `Thread.join`, which stand on it, are Python code: KeyboardInterrupt can land
    in them after a lock was taken and before anybody is bound to give it back, and the other thread waits for ever.
    `queue.SimpleQueue` is one C call each way. All waits have an end: whoever waits looks at what it waits for, the
    bell only says when.
"""

from __future__ import annotations

from queue import Empty, SimpleQueue


class Bell:
    """Wakes a thread that waits. Rung while nobody waits, it wakes the next one at once."""

    __slots__ = ("_rings",)

    def __init__(self) -> None:
        self._rings: SimpleQueue[None] = SimpleQueue()

    def ring(self) -> None:
        """Wake who waits."""
        if self._rings.empty():
            self._rings.put(None)

    def wait(self, seconds: float) -> None:
        """Return when it is rung, or after so many seconds."""
        try:
            self._rings.get(timeout=seconds)
        except Empty:
            return
