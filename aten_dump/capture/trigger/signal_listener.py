"""The thread that hears what other ranks signal, also while the program's own thread hangs in a collective."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ...store.threads.bell import Bell
from ...store.threads.bounded_thread import BoundedThread
from .rank_signals import RankSignals, Signal

_POLL_SECONDS: Final = 0.5


class SignalListener:
    """Looks for signals of other ranks now and then, and hands them on."""

    def __init__(self, signals: RankSignals, rank: int, heard: Callable[[list[Signal]], None]) -> None:
        self._signals = signals
        self._heard = heard
        self._closing = False
        self._wake = Bell()
        self._thread = BoundedThread(self._run, f"aten_dump-trigger-{rank}")
        self._thread.start()

    def raise_error(self) -> None:
        """Raise what has ended the thread, if it was an error.

        Raises:
            StoreError: what was heard could not be read or written.
        """
        self._thread.raise_error()

    def close(self) -> None:
        """End the thread.

        Raises:
            StoreError: it writes what was heard, and the disk hangs; or it has ended by an error.
        """
        self._closing = True
        self._wake.ring()
        self._thread.wait(lambda: "what other ranks have asked for is")

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(_POLL_SECONDS)
            found = [] if self._closing else self._signals.read()
            if found:
                self._heard(found)
