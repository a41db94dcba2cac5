"""Scripts that run in a process of their own, to be killed."""

from __future__ import annotations

import time
from multiprocessing.process import BaseProcess
from pathlib import Path

from aten_dump import AtenDumpError, open_dump
from tests import forked
from tests.capture.bits import calls


def started(script: str, ready: str, said: Path) -> BaseProcess:
    """Run a script and wait until it has printed the line `ready`."""
    child = forked.start(["-c", script], said)
    deadline = time.monotonic() + 120
    while not said.exists() or ready not in said.read_text().splitlines():
        assert child.exitcode is None and time.monotonic() < deadline, said.read_text()
        time.sleep(0.01)
    return child


def wait_until_written(dump: Path, op: str, count: int) -> None:
    """Wait until so many calls of an op in the first step are on file with bytes and statistics of their first input.

    On a free machine that is within half a second. What is not there after twenty the test finds missing.
    """
    deadline = time.monotonic() + 20
    while not _are_written(dump, op, count) and time.monotonic() < deadline:
        time.sleep(0.1)


def _are_written(dump: Path, op: str, count: int) -> bool:
    try:
        inputs = [call.inputs[0][0] for call in calls(open_dump(dump).step(0).rank(0), kind="aten", op=op)]
    except AtenDumpError:
        return False  # it is just being begun
    return len(inputs) == count and all(value.has_data and value.stats for value in inputs)


def kill(child: BaseProcess) -> None:
    """Kill it as ``kill -9`` does, and wait for its end."""
    child.kill()
    child.join()
