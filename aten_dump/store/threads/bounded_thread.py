"""A daemon thread for whose end nobody waits for ever, and whose errors are reported.

Theory of operation
    Whoever waits for the thread does so in a `waiting` block and calls `look` in between: it raises where the thread
    has ended by an error, and where it has made no progress for too long: the disk hangs. Nobody waits twice for a disk
    that hangs: after the first such error `look` raises at once until there is progress.

    An interrupt (Ctrl-C) that leaves a wait says that the user wants to go. All later waits, those of what closes the
    files too, then go on only while there is progress: INTERRUPTED_SECONDS without are enough.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Final

from ...errors import StoreError
from .bell import Bell

TELL_SECONDS: Final = 10.0  # of waiting, after which the user is warned
STILL_SECONDS: Final = 600.0  # without progress: the disk is not slow, it hangs
INTERRUPTED_SECONDS: Final = 2.0  # the same, for a user who has interrupted a wait before
_LOOK_SECONDS: Final = 0.05
_LAST_SECONDS: Final = 0.001  # between looks when all is done and only the thread has to go


class BoundedThread:
    """Runs a function on a thread."""

    def __init__(self, run: Callable[[], None], name: str) -> None:
        self._run = run
        self.bell = Bell()  # wakes who waits
        self._is_over = False
        self._error: BaseException | None = None  # that has ended it
        self._thread = threading.Thread(target=self._run_and_report, name=name, daemon=True)
        self.progress = 0  # counted up by what runs
        self.still_since: tuple[int, float] | None = None  # where somebody has waited in vain: the progress, since when
        self.is_interrupted = False  # somebody has left a wait by an interrupt

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """True if the thread still runs."""
        return self._thread.is_alive()

    @property
    def is_current(self) -> bool:
        """True if this is asked on the thread."""
        return threading.current_thread() is self._thread

    def raise_error(self) -> None:
        """Raise what has ended the thread, if it was an error.

        Raises:
            StoreError: it was.
        """
        error = self._error
        if isinstance(error, StoreError):
            raise StoreError(*error.args) from error
        if error is not None:
            raise StoreError(f"the thread {self._thread.name!r} has ended: {error!r}") from error

    def waiting(self, left: Callable[[], str]) -> Waiting:
        """Return a block in which to wait for the thread; `left` says what is left to do."""
        return Waiting(self, left)

    def wait(self, left: Callable[[], str]) -> None:
        """Wait until the thread has ended; `left` says what is left to do.

        Raises:
            StoreError: it made no progress for STILL_SECONDS, or an error has ended it.
        """
        with self.waiting(left) as look:
            while self.is_alive:
                look()
                self.bell.wait(_LAST_SECONDS if self._is_over else _LOOK_SECONDS)
        self.raise_error()

    def _run_and_report(self) -> None:
        try:
            self._run()
        except BaseException as error:  # noqa: BLE001 - raised by `raise_error` to whoever asks or waits
            self._error = error
        finally:
            self._is_over = True
            self.bell.ring()


class Waiting:
    """A block in which somebody waits for a thread, and calls what the block gives now and then."""

    def __init__(self, thread: BoundedThread, left: Callable[[], str]) -> None:
        self._thread = thread
        self._left = left
        self._begun = self._changed = time.monotonic()
        self._progress = thread.progress
        if thread.still_since is not None and thread.still_since[0] == self._progress:
            self._changed = thread.still_since[1]
        self._reported = False

    def __enter__(self) -> Callable[[], None]:
        return self._look

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and not issubclass(kind, Exception):
            self._thread.is_interrupted = True

    def _look(self) -> None:
        """Warn after TELL_SECONDS that somebody waits.

        Raises:
            StoreError: the thread has ended by an error, or made no progress for too long.
        """
        thread, now = self._thread, time.monotonic()
        thread.raise_error()
        if thread.progress != self._progress:
            self._progress, self._changed = thread.progress, now
        if now - self._begun > TELL_SECONDS and not self._reported:
            self._reported = True
            warnings.warn(f"aten_dump waits for the disk, {self._left()} left; Ctrl-C, twice, ends that", stacklevel=4)
        still = now - self._changed
        if still > (INTERRUPTED_SECONDS if thread.is_interrupted else STILL_SECONDS):
            thread.still_since = self._progress, self._changed
            raise StoreError(
                f"nothing was written for {still:.0f} s, {self._left()} left: the disk hangs; what was written before "
                "can be read (`aten-dump recover` completes it)"
            )
