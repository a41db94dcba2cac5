"""The processes of `workers`, apart from its options: `--help` need not import multiprocessing for them."""

from __future__ import annotations

import signal
from multiprocessing.context import SpawnContext, SpawnProcess


class _Worker(SpawnProcess):
    """A process that Ctrl-C, which a terminal sends to all at once, leaves to the one that started it."""

    def start(self) -> None:
        """Start; the process has SIGINT blocked from its first instruction on, also while it imports torch."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Workers(SpawnContext):
    Process = _Worker
