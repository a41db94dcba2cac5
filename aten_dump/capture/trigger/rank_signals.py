"""How the ranks of a run let each other know that a trigger has fired: by files in the folder of the dump.

Theory of operation
    The rank whose trigger fires writes one small file, ``triggers/step7-rank3-….json``. The others look into that
    folder now and then, at the end of a step and from a thread of their own; no rank waits for another, and nothing is
    added to what the program sends.

    Files that a rank finds when it enters may be of an earlier run into the same folder, or of this one, where the rank
    enters late. Ranks share nothing that names the run whatever launched them, but the processes of a run begin before
    any of them can have fired: a signal that is older than this process is of an earlier run, and a younger one is
    heard. In a process that enters once more for the same folder, all that is there is of an earlier run. A rank
    removes its own signals in any case.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ...errors import FormatError, StoreError
from ...store.control.control_files import read_message
from ...store.regular_files import let_go, open_subfolder, replace_inside
from ...store.threads.bell import Bell
from ...store.threads.bounded_thread import BoundedThread

FOLDER: Final = "triggers"
_NAME: Final = re.compile(r"step\d+-rank(\d+)-(\d+)\.json")  # the last is when it was written
_IMPORTED_NS: Final = time.time_ns()
_POLL_SECONDS: Final = 0.5
_entered: Final[set[Path]] = set()  # folders that this process has had signals in before


@dataclass(frozen=True, slots=True)
class Signal:
    """A trigger that has fired."""

    rank: int
    step: int
    position: int  # of the call among the Call records of that step and rank, from 1
    call: int  # its id
    why: str


class RankSignals:
    """The signals of one run, as one rank sees them."""

    def __init__(self, root: Path, rank: int) -> None:
        """Remove what this rank has left in an earlier run.

        Raises:
            StoreError: they cannot be removed.
        """
        self._root = root
        self._folder = root / FOLDER
        self._rank = rank
        self._read: set[str] = set()
        self._lock = threading.Lock()
        try:
            with self._opened() as folder:
                for name in _names(folder):
                    if int(_fields(name)[1]) == rank:
                        os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            pass
        except FormatError as error:
            raise StoreError(str(error)) from error
        except OSError as error:
            raise StoreError(error.errno, f"cannot remove old signals in {self._folder}: {error.strerror}") from error
        since = sys.maxsize if self._folder in _entered else _process_began_ns()
        with contextlib.suppress(OSError), self._opened() as folder:
            self._read.update(name for name in _names(folder) if int(_fields(name)[2]) < since)
        _entered.add(self._folder)

    def write(self, signal: Signal) -> None:
        """Signal the others; whole or not at all (a temporary file, then a rename).

        Raises:
            FormatError: the folder is a link.
            OSError: the file cannot be written.
        """
        path = self._folder / f"step{signal.step}-rank{signal.rank}-{time.time_ns()}.json"
        with self._opened(make=True) as folder:
            replace_inside(folder, path, (json.dumps(dataclasses.asdict(signal)) + "\n").encode())

    def read(self) -> list[Signal]:
        """Return the signals of other ranks that were not returned before; what cannot be read now is tried again.

        What makes no sense is no signal.
        """
        found = []
        with self._lock, contextlib.suppress(OSError, FormatError), self._opened() as folder:
            for name in sorted(_names(folder) - self._read):
                if int(_fields(name)[1]) != self._rank:
                    signal = read_message(Signal, self._folder / name, folder)
                    found += [] if signal is None else [signal]
                self._read.add(name)
        return found

    @contextlib.contextmanager
    def _opened(self, *, make: bool = False) -> Iterator[int]:
        folder = open_subfolder(self._root, FOLDER, make=make)
        try:
            yield folder
        finally:
            let_go(folder)


def _names(folder: int) -> set[str]:
    return {name for name in os.listdir(folder) if _NAME.fullmatch(name)}


def _fields(name: str) -> re.Match[str]:
    match = _NAME.fullmatch(name)
    assert match is not None, "only names of signals are listed"
    return match


def _process_began_ns() -> int:
    """Return when this process began, in nanoseconds since 1970; where no system says, when this module was imported.

    Linux counts ticks since it was booted, to a hundredth of a second: field 22 of `/proc/self/stat`, whose second is
    a name in parentheses that may hold anything.
    """
    try:
        began = int(
            Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19]
        )
        seconds_ago = time.clock_gettime(time.CLOCK_BOOTTIME) - began / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        return _IMPORTED_NS
    return min(_IMPORTED_NS, time.time_ns() - int(seconds_ago * 1e9))


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
