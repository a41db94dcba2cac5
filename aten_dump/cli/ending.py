"""How a command ends while threads of its own are still at work, or when nobody reads what it writes."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

INTERRUPTED: Final = 130  # what a shell says of a program that Ctrl-C has ended; click's own 1 would be "differ"
INTERRUPTED_TEXT: Final = "Interrupted."


@contextmanager
def ended_by_sigint() -> Iterator[None]:
    """Have Ctrl-C end the process in a block that only imports: torch swallows a KeyboardInterrupt in some of them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end(number: int, frame: object) -> NoReturn:
    os.write(2, f"{INTERRUPTED_TEXT}\n".encode())
    os._exit(INTERRUPTED)


def end_without_threads() -> None:
    """End the process here, with exit code 0, if a daemon thread runs; return if none does.

    The interpreter stops such a thread where it next takes the lock. If C++ code of torch or msgpack called it, that
    aborts the process: "terminate called without an active exception".
    """
    if any(thread.daemon for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def drop_output() -> None:
    """Send what is still to be written to stdout nowhere: or the interpreter complains of a closed pipe at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
