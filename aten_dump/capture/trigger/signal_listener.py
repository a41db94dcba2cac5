"""The thread that hears what other ranks signal, also while the program's own thread hangs in a collective."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from .rank_signals import RankSignals, Signal

_POLL_SECONDS: Final = 0.5


class SignalListener:
    """Looks for signals of other ranks now and then, and hands them on."""

    def __init__(self, signals: RankSignals, rank: int, heard: Callable[[list[Signal]], None]) -> None:
        self._signals = signals
        self._heard = heard
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"aten_dump-trigger-{rank}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(_POLL_SECONDS):
            found = self._signals.read()
            if found:
                self._heard(found)
