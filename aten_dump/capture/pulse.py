"""Signs of life of a rank: where its program is, for `aten-dump hang`, also in steps that are not recorded.

Theory of operation
    The writer's thread looks every few seconds at what the program is doing, and replaces a small file. Where calls
    have been recorded since the last look, the program goes on, and nothing more is asked. Else the line is found in
    which the main thread is: a collective that hangs, a data loader, a loop. A process that was killed, is stopped or
    never lets go of Python's lock writes nothing more: its silence says so. When the recording ends, that is written,
    with the error that ended it.

    The frames of the program are let go of at once: while they are held, what a function has returned from would live.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import CodeType, TracebackType
from typing import Final, NamedTuple, TypeAlias

from ..errors import StoreError
from ..store.control.control_files import ControlFiles, Pulse
from ..store.control.processes import process_place, started_ticks
from .naming.interned_tables import OWN_CODE, is_of_program
from .step.step import text_of
from .torch_internals.engine import frame_of_thread

_Line: TypeAlias = tuple[str, int, str]  # file, line, function
_INTERVAL_S: Final = 2.0
_RANKS_PER_S: Final = 256  # whose files are written in a second, of a run of many ranks
_MOST_FRAMES: Final = 256
_MOST_LINES: Final = 2  # of the program
_MOST_TEXT: Final = 2000  # characters of an error


class Doing(NamedTuple):
    """What a session says of its program."""

    state: str
    calls: int  # begun in the step in progress; -1 where none is recorded
    waits: tuple[int, ...]  # calls whose Work is waited for


class PulseWriter:
    """Writes the signs of life of one rank."""

    def __init__(self, root: Path, rank: int, world_size: int, shows_lines: bool) -> None:
        self._files = ControlFiles(root)
        self._rank = rank
        self._shows_lines = shows_lines  # as DumpConfig.stacks says
        self._interval_s = max(_INTERVAL_S, world_size / _RANKS_PER_S)
        self._thread = threading.get_ident()  # the program's main thread
        self._process = os.getpid()
        self._host = process_place()
        self._ticks = started_ticks(self._process)
        self._look: Callable[[], Doing] | None = None
        self._seen: Doing | None = None
        self._due_s = 0.0
        self._error = ""
        self._lines = ("", "")  # of it

    def begin(self, look: Callable[[], Doing]) -> None:
        """Begin, on the program's main thread: `look` says what it does."""
        self._thread = threading.get_ident()
        self._look = look

    def beat(self) -> None:
        """Write a sign of life if one is due, on the writer's thread."""
        now_s = time.monotonic()
        if self._look is None or now_s < self._due_s:
            return
        self._due_s = now_s + self._interval_s
        doing = self._look()
        goes_on = doing.calls >= 0 and self._seen is not None and doing[:2] != self._seen[:2]
        line, inside = ("", "") if goes_on else _lines_of(self._thread)
        self._seen = doing
        self._write(doing, line, inside, closed=False)

    def ended_by(self, error: BaseException) -> None:
        """Keep the error that ends the recording."""
        self._error = text_of(error)[:_MOST_TEXT]
        self._lines = _lines_of_error(error.__traceback__)

    def end(self) -> None:
        """Write that the recording has ended, on the program's main thread."""
        if self._look is not None and os.getpid() == self._process:
            doing, self._look = self._look(), None
            line, inside = self._lines if self._error else (_lines_of(threading.get_ident())[0], "")
            self._write(doing, line, inside, closed=True)

    def _write(self, doing: Doing, line: str, inside: str, *, closed: bool) -> None:
        now, error = time.time_ns(), self._error if closed else ""
        if not self._shows_lines:
            line = inside = ""
        pulse = Pulse(
            self._rank, now, int(self._interval_s * 1e3), self._host, self._process, self._ticks, doing.state,
            line, inside, doing.waits, closed, error,
        )  # fmt: skip
        with contextlib.suppress(StoreError):  # a disk that is full: whoever writes records says so
            self._files.write(pulse)


def _lines_of(thread: int) -> tuple[str, str]:
    """Return the program's line in which a thread is, and the innermost one that this has called, if another."""
    found: list[_Line] = []
    frame = frame_of_thread(thread)
    while frame is not None and len(found) < _MOST_FRAMES:
        found.append(_line(frame.f_code, frame.f_lineno))
        frame = frame.f_back
    del frame
    return _reported(found)


def _lines_of_error(trace: TracebackType | None) -> tuple[str, str]:
    """Return the same two lines of where an error came from."""
    found: list[_Line] = []
    while trace is not None:
        found.append(_line(trace.tb_frame.f_code, trace.tb_lineno))
        trace = trace.tb_next
    return _reported(found[::-1])


def _line(code: CodeType, number: int | None) -> _Line:
    return code.co_filename, number or 0, getattr(code, "co_qualname", code.co_name)


def _reported(lines: list[_Line]) -> tuple[str, str]:
    """Return the innermost lines of the program, and that of all, if another; `lines` has the innermost first."""
    shown = [one for one in lines if not one[0].startswith(OWN_CODE)]
    own = [one for one in shown if is_of_program(one[0])][:_MOST_LINES]
    inside = [] if shown[:1] == own[:1] else shown[:1]
    return _text(own or inside), _text(inside if own else [])


def _text(lines: list[_Line]) -> str:
    return ", from ".join(f"{file}:{line} in {function}" for file, line, function in lines)
