"""How a command ends while threads of its own are still at work, or when nobody reads what it writes."""

from __future__ import annotations

import os
import sys
import threading


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
