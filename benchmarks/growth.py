"""Growth curves: what an op, a byte and a step cost as their number grows.

Ops and bytes per step are ordinary rows of workloads of that size ("ops-10000", "bytes-1GB"); steps are recorded one
after another in one process by `steps_curve`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .measure import WARM_UP_STEPS, Mode, memory_bytes, timed
from .workloads import Workload, parse_bytes

OPS = ("1000", "10000", "100000")
BYTES = ("10MB", "100MB", "1GB", "4GB")
STEPS = (1, 10, 100, 1000)
OPS_MODES = "structure,statistic,tensor"
BYTES_MODES = "limit-write,limit-write-tmpfs,tensor,tensor-tmpfs"
STEPS_WORKLOAD = "chain"
_BARE_SECONDS = 0.2
_PROGRAM_BYTES = 2 << 30  # torch, the queue and what the step works on besides its own tensors


def steps_curve(workload: Workload, mode: Mode, folder: Path, marks: list[int]) -> list[dict[str, Any]]:
    """Record steps without a pause; at each mark say what a step has cost since the last one, and the memory held.

    Returns:
        per mark: `steps`, `above_s` per step above bare, until on file; `resident_bytes` above that of before.
    """
    bare_s = timed(WARM_UP_STEPS, workload.step).wall_s / WARM_UP_STEPS
    bare_steps = int(_BARE_SECONDS / bare_s) + 1
    bare_s = timed(bare_steps, workload.step).wall_s / bare_steps
    before = memory_bytes("VmRSS")
    curve = []
    done = 0
    with mode.start(workload, folder) as sampler:
        for mark in marks:
            found = sampler(mark - done)
            resident = memory_bytes("VmRSS")
            above = found.on_file_s / (mark - done) - bare_s
            held = None if resident is None or before is None else resident - before
            curve.append({"steps": mark, "above_s": above, "resident_bytes": held})
            done = mark
    return curve


def lacking(workload: str, mode: Mode, free_disk_bytes: int, available_memory_bytes: int | None) -> str | None:
    """Say why this machine cannot hold a point of the curve of bytes; None when it can."""
    kind, _, size = workload.partition("-")
    if kind != "bytes":
        return None
    nbytes = parse_bytes(size)
    needed = nbytes // 2 + _PROGRAM_BYTES + (nbytes if mode.is_tmpfs else 0)
    if available_memory_bytes is not None and available_memory_bytes < needed:
        return f"skipped: needs {needed / 1e9:.1f} GB of memory, {available_memory_bytes / 1e9:.1f} are available"
    if free_disk_bytes < 1.2 * nbytes:
        return f"skipped: needs {1.2 * nbytes / 1e9:.1f} GB of room, {free_disk_bytes / 1e9:.1f} are free"
    return None
