"""Signals that come while the recorder's own code runs are held until it is done.

Theory of operation
    Python calls the handler of a signal on the main thread, between any two instructions, and that of Ctrl-C raises
    KeyboardInterrupt there: in the midst of a step's end as well, with half of torch's hooks taken away. So while a
    DumpMode is entered, ours stands before each handler of the program's. It looks where the main thread is. In the
    program, or in torch as the program called it, the program's handler is called at once. In our code the signal is
    kept; `deliver`, at the end of what the program called us for, calls the handler. An op is delayed by microseconds,
    the end of a step or of the recording until what was recorded is on file.

    Functions of the recorder that run the program's code are marked by `runs_program`: what runs inside them is the
    program's. Nothing is asked on the path of an op but whether `held` is empty.

    A signal that comes again after PATIENCE_SECONDS is not held: whoever presses Ctrl-C twice gets out of a wait for
    a disk that hangs. That holds too where the first one came while the program's code ran: its KeyboardInterrupt has
    then left the block, whose end waits. The writer's thread is not waited for again (`bounded_thread`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Final, TypeVar

PATIENCE_SECONDS: Final = 1.0

Handler = Callable[[int, "FrameType | None"], Any]
_Function = TypeVar("_Function", bound=Callable[..., Any])

held: Final[dict[int, tuple[Handler, float]]] = {}  # the handler and the time of each signal that is kept

_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_OURS: Final = tuple(os.path.join(_PACKAGE, room, "") for room in ("capture", "store"))
_OF_ANYBODY: Final = contextlib.__file__  # runs our context managers and the program's
_program_runs_in: Final[set[CodeType]] = set()


def runs_program(function: _Function) -> _Function:
    """Mark a function of the recorder that runs the program's code."""
    _program_runs_in.add(function.__code__)
    return function


def deliver() -> None:
    """Call the handlers of the signals that were held, which may raise; on the main thread alone."""
    while held and threading.current_thread() is threading.main_thread():
        number = next(iter(held))
        handler, _ = held.pop(number)
        handler(number, sys._getframe(1))


class HeldSignals:
    """Holds signals back while installed."""

    def __init__(self, is_busy: Callable[[], bool]) -> None:
        """Begin; `is_busy` returns True if the main thread is in our code, where its frames do not (compiled code)."""
        self._is_busy = is_busy
        self._holds = False
        self._handlers: dict[int, Handler] = {}  # the program's; kept, as it may put ours back at any time
        self._passed: dict[int, float] = {}  # when a signal was last handled at once

    def install(self) -> None:
        """Stand before the program's handlers; does nothing on another thread than the main one."""
        if threading.current_thread() is not threading.main_thread():
            return
        self._holds = True
        for number in sorted(signal.valid_signals()):
            handler = signal.getsignal(number)
            if callable(handler) and handler != self._arrived:
                self._handlers[number] = handler
                signal.signal(number, self._arrived)

    def remove(self) -> None:
        """Leave the handlers to the program, but those that it has replaced since; `deliver` what was held then."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number, handler in sorted(self._handlers.items(), reverse=True):  # SIGINT, the one that raises, last
            if signal.getsignal(number) == self._arrived:
                signal.signal(number, handler)
        self._holds = False

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        handler = self._handlers[number]
        now = time.monotonic()
        if number in held:
            if now - held[number][1] < PATIENCE_SECONDS:
                return
            del held[number]
        elif self._holds and not self._came_before(number, now) and (self._is_busy() or _is_ours(frame)):
            held[number] = handler, now
            return
        self._passed[number] = now
        handler(number, frame)

    def _came_before(self, number: int, now: float) -> bool:
        """True if the program is on its way out by a KeyboardInterrupt, of which this is not the same key press."""
        is_leaving = isinstance(sys.exc_info()[1], KeyboardInterrupt)
        return is_leaving and now - self._passed.get(number, now) >= PATIENCE_SECONDS


def _is_ours(frame: FrameType | None) -> bool:
    """Return True if the code that runs in a frame runs for us, not for the program."""
    is_innermost = True
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(_OURS):
            return is_innermost or code not in _program_runs_in
        is_innermost = is_innermost and code.co_filename == _OF_ANYBODY
        frame = frame.f_back
    return False
