"""Which process wrote a sign of life, and whether it lives, as far as this machine can say."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import Final, Literal

from .control_files import Pulse

_STOPPED: Final = frozenset("tT")
_ENDED: Final = frozenset("ZX")


def process_place() -> str:
    """Return where a process id holds: the machine, since it was started, and the container."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    return " ".join(parts)


def started_ticks(pid: int) -> int:
    """Return when a process was started, in ticks of the system; 0 where it does not say."""
    fields = _fields_of(pid)
    return int(fields[19]) if len(fields) > 19 and fields[19].isdigit() else 0


def process_state(pulse: Pulse) -> Literal["alive", "stopped", "gone", "unknown"]:
    """Return what became of the process that gave a sign of life; unknown where it ran on another machine."""
    if not pulse.pid_ticks or pulse.host != process_place():
        return "unknown"
    fields = _fields_of(pulse.pid)
    if not fields or fields[0] in _ENDED or started_ticks(pulse.pid) != pulse.pid_ticks:
        return "gone"
    return "stopped" if fields[0] in _STOPPED else "alive"


def _fields_of(pid: int) -> list[str]:
    """Return the fields of /proc/<pid>/stat from the state on; none where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
