"""How a command ends: of a dump that is not whole, while threads are at work, when nobody reads what it writes."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

import click

INTERRUPTED: Final = 130  # what a shell says of a program that Ctrl-C has ended; click's own 1 would be "differ"
INTERRUPTED_TEXT: Final = "Interrupted."
NOT_WHOLE: Final = 2  # instead of 0
_NOTED: Final = "aten_dump.not_whole"  # in click's context, which a subcommand shares with `main`


@contextmanager
def ended_by_sigint() -> Iterator[None]:
    """Let Ctrl-C end the process in a block that only imports: torch swallows a KeyboardInterrupt in some of them."""
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


def never_end_well() -> None:
    """Keep the running command from ending with exit code 0: something that it was given is not whole."""
    context = click.get_current_context(silent=True)
    if context is not None:
        context.meta[_NOTED] = True


def exit_code(code: int = 0) -> int:
    """Return the exit code of the running command, which would end with `code`."""
    context = click.get_current_context(silent=True)
    return NOT_WHOLE if code == 0 and context is not None and context.meta.get(_NOTED) else code


def end_without_threads() -> None:
    """End the process here, with the command's exit code, if a daemon thread runs; return if none does.

    The interpreter stops such a thread where it next takes the lock. If C++ code of torch or msgpack called it, that
    aborts the process: "terminate called without an active exception".
    """
    if any(thread.daemon for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code())


def drop_output() -> None:
    """Send what is still to be written to stdout nowhere: or the interpreter complains of a closed pipe at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
