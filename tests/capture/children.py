"""Scripts that run in a process of their own, to be killed."""

from __future__ import annotations

import time
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests import forked


def started(script: str, ready: str, said: Path) -> BaseProcess:
    """Run a script and wait until it has printed the line `ready`."""
    child = forked.start(["-c", script], said)
    deadline = time.monotonic() + 120
    while not said.exists() or ready not in said.read_text().splitlines():
        assert child.exitcode is None and time.monotonic() < deadline, said.read_text()
        time.sleep(0.01)
    return child


def kill(child: BaseProcess) -> None:
    """Kill it as ``kill -9`` does, and wait for its end."""
    child.kill()
    child.join()
