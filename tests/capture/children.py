"""Scripts that run in a process of their own, to be killed."""

from __future__ import annotations

import subprocess
import sys


def started(script: str, ready: str) -> subprocess.Popen[str]:
    """Run a script and wait until it has printed the line `ready`."""
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == f"{ready}\n"
    return child


def kill(child: subprocess.Popen[str]) -> None:
    """Kill it as ``kill -9`` does, and wait for its end."""
    child.kill()
    child.communicate()
