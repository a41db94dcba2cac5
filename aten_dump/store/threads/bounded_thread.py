"""A daemon thread for whose end nobody waits for ever."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable
from typing import Final

from ...errors import StoreError
from .bell import Bell

TELL_SECONDS: Final = 10.0  # of waiting, after which the user is told
STILL_SECONDS: Final = 600.0  # without progress: the disk is not slow, it hangs
_LOOK_SECONDS: Final = 0.05
_LAST_SECONDS: Final = 0.001  # between looks when all is done and only the thread has to go


class BoundedThread:
    """Runs a function on a thread."""

    def __init__(self, run: Callable[[], None], name: str) -> None:
        self._run = run
        self.bell = Bell()  # wakes who waits
        self._is_over = False
        self._thread = threading.Thread(target=self._run_and_tell, name=name, daemon=True)
        self.progress = 0  # counted up by what runs

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the thread still runs."""
        return self._thread.is_alive()

    @property
    def is_current(self) -> bool:
        """Whether this is asked on the thread."""
        return threading.current_thread() is self._thread

    def wait(self, left: Callable[[], str], until: Callable[[], bool] | None = None) -> None:
        """Wait until the thread has ended.

        Args:
            left: says what is left to do.
            until: tells that there is no need to wait longer, though it has not.

        Raises:
            StoreError: it made no progress for STILL_SECONDS.
        """
        begun = changed = time.monotonic()
        progress, told = self.progress, False
        while self._thread.is_alive() and not (until is not None and until()):
            self.bell.wait(_LAST_SECONDS if self._is_over else _LOOK_SECONDS)
            now = time.monotonic()
            if self.progress != progress:
                progress, changed = self.progress, now
            if now - begun > TELL_SECONDS and not told:
                told = True
                warnings.warn(f"aten_dump waits for the disk, {left()} left; Ctrl-C, twice, ends that", stacklevel=3)
            if now - changed > STILL_SECONDS:
                raise StoreError(
                    f"nothing was written for {STILL_SECONDS:.0f} s, {left()} left: the disk hangs; what was written "
                    "before can be read (`aten-dump recover` completes it)"
                )

    def _run_and_tell(self) -> None:
        try:
            self._run()
        finally:
            self._is_over = True
            self.bell.ring()
