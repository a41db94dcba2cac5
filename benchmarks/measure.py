"""One mode against the bare step, in this process.

Theory of operation
    `measure` runs bare and recorded batches of steps in turn, A B A B, and keeps the median over pairs of their ratio
    and of their difference: a machine whose speed drifts moves both halves of a pair. A batch is timed twice: until the
    program goes on (`wall`), and until all that it wrote is on file (`on file`); CPU time, of all threads, is taken
    over the latter. The next bare batch begins only then, so a writer's thread never slows it down. What a batch wrote
    is measured and deleted outside of the timed part.

    Memory is the peak of the resident set, VmHWM, which writing 5 to /proc/self/clear_refs sets back to its present
    size: once over bare steps before the mode is entered, and once over the first recorded batch. Each mode runs in a
    process of its own (`child.py`), so that neither peak holds memory that another mode left in the allocator.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .workloads import Workload

WARM_UP_STEPS = 3
_BARE_BATCH_SECONDS = 0.03  # so that a recorder which writes every 50 ms does so often in a batch
_MODE_BATCH_SECONDS = 1.0


class Sample(NamedTuple):
    """A batch of steps, timed. `written` are the files or directories that it made, complete."""

    wall_s: float
    cpu_s: float
    on_file_s: float
    written: tuple[Path, ...] = ()


Sampler = Callable[[int], Sample]  # runs so many steps with the mode on


@dataclass(frozen=True, slots=True)
class Mode:
    """A row of the table. `start` enters the mode and gives what runs steps in it."""

    name: str
    group: str  # "ours", "peers", "msprobe" or "limits"
    start: Callable[[Workload, Path], AbstractContextManager[Sampler]]
    is_tmpfs: bool = False
    is_paired: bool = True  # False: entering it slows the bare step down too, so that all bare batches come first
    is_fine: bool = False  # so close to bare that it needs longer batches and more of them
    limit: tuple[str, ...] = ()  # the rows that are the physical limit of what this one does


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one mode costs on one workload; sizes are per step."""

    ops: int
    repeats: int
    batch: int
    bare_s: float
    wall_ratio: float
    wall_spread: float  # half the range between the quartiles of the pairs' ratios
    on_file_ratio: float
    cpu_ratio: float
    above_s: float  # wall seconds per step above bare
    on_file_above_s: float
    written_bytes: int
    files: int
    peak_bytes: int | None  # resident above bare; None where the system does not tell


def timed(steps: int, one: Callable[[], object], finish: Callable[[], tuple[Path, ...]] = tuple) -> Sample:
    """Run `one` so many times, then `finish`, which waits for the files and names them."""
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        one()
    if _has_accelerator():
        torch.accelerator.synchronize()
    seconds = time.perf_counter() - wall
    written = finish()
    return Sample(seconds, time.process_time() - cpu, time.perf_counter() - wall, written)


@functools.cache
def _has_accelerator() -> bool:
    return torch.accelerator.is_available()


def count_ops(workload: Workload) -> int:
    """Count the aten ops of a step."""
    seen = 0

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal seen
            seen += 1
            return func(*args, **(kwargs or {}))

    with Count():  # type: ignore[no-untyped-call]
        workload.step()
    return seen


def measure(
    workload: Workload, mode: Mode, folder: Path, repeats: int, look: Callable[[tuple[Path, ...]], None]
) -> Measurement:
    """Measure a mode.

    Args:
        workload: its step is the bare one.
        mode: what to run it in.
        folder: an empty directory to write to.
        repeats: pairs of batches.
        look: called with what each batch wrote, before it is deleted.
    """
    for _ in range(WARM_UP_STEPS):
        workload.step()
    ops = count_ops(workload)
    bare_s = timed(WARM_UP_STEPS, workload.step).wall_s / WARM_UP_STEPS
    gc.collect()
    bare_peak = _peak_of(lambda: timed(WARM_UP_STEPS, workload.step))
    repeats, least_s = (repeats * 3, 5 * _BARE_BATCH_SECONDS) if mode.is_fine else (repeats, _BARE_BATCH_SECONDS)
    most = 10**6 if mode.is_paired else batch_steps(bare_s, 0.0, least_s)
    early = [] if mode.is_paired else [timed(most, workload.step) for _ in range(repeats)]
    pairs: list[tuple[Sample, Sample]] = []
    with mode.start(workload, folder) as sampler:
        discard(sampler(1))
        second = discard(sampler(1))
        batch = min(most, batch_steps(bare_s, second.wall_s, least_s))
        reset_peak()
        peak = None
        for number in range(repeats):
            bare = timed(batch, workload.step) if mode.is_paired else _scaled(early[number], batch / most)
            found = sampler(batch)
            pairs.append((bare, found))
            peak = peak_bytes() if peak is None else peak  # to look at an index takes more memory than to record it
            nbytes, files = _sizes(found.written)
            look(found.written)
            discard(found)
    sizes = (nbytes // batch, -(-files // batch))
    return _summary(pairs, ops, batch, sizes, None if peak is None or bare_peak is None else peak - bare_peak)


def batch_steps(
    bare_s: float, mode_s: float, least_s: float = _BARE_BATCH_SECONDS, most_s: float = _MODE_BATCH_SECONDS
) -> int:
    """Return how many steps a batch has: long enough for the clock, and not too long in the mode."""
    return max(1, min(int(least_s / bare_s) + 1, int(most_s / max(mode_s, 1e-6))))


def _scaled(sample: Sample, factor: float) -> Sample:
    return Sample(sample.wall_s * factor, sample.cpu_s * factor, sample.on_file_s * factor)


def _summary(
    pairs: list[tuple[Sample, Sample]], ops: int, batch: int, sizes: tuple[int, int], peak: int | None
) -> Measurement:
    walls = [found.wall_s / bare.wall_s for bare, found in pairs]
    median = statistics.median
    return Measurement(
        ops=ops,
        repeats=len(pairs),
        batch=batch,
        bare_s=median(bare.wall_s for bare, _ in pairs) / batch,
        wall_ratio=median(walls),
        wall_spread=half_quartile_range(walls),
        on_file_ratio=median(found.on_file_s / bare.wall_s for bare, found in pairs),
        cpu_ratio=median(found.cpu_s / max(bare.cpu_s, 1e-9) for bare, found in pairs),
        above_s=median(found.wall_s - bare.wall_s for bare, found in pairs) / batch,
        on_file_above_s=median(found.on_file_s - bare.wall_s for bare, found in pairs) / batch,
        written_bytes=sizes[0],
        files=sizes[1],
        peak_bytes=peak,
    )


def half_quartile_range(values: list[float]) -> float:
    """Return half the range between the quartiles; 0 for a single value."""
    first, _, third = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return (third - first) / 2


def _sizes(written: tuple[Path, ...]) -> tuple[int, int]:
    """Return bytes and number of files."""
    files = [f for path in written for f in (path.rglob("*") if path.is_dir() else (path,)) if f.is_file()]
    return sum(f.stat().st_size for f in files), len(files)


def empty(path: Path) -> None:
    """Give back the room that a file, or a folder, takes.

    The names stay: for a minute, ext4 looks through all inodes that were deleted whenever it makes a file, and a
    program that keeps what it records does not pay for that.
    """
    for file in path.rglob("*") if path.is_dir() else (path,):
        with contextlib.suppress(FileNotFoundError):  # a recorder takes its lock away when it has written all
            if file.is_file():
                os.truncate(file, 0)


def discard(sample: Sample) -> Sample:
    """Give back the room that what a batch wrote takes."""
    for path in sample.written:
        empty(path)
    return sample


def _peak_of(run: Callable[[], object]) -> int | None:
    reset_peak()
    run()
    return peak_bytes()


def reset_peak() -> None:
    """Set the peak of the resident set back to its present size, where the system can."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def peak_bytes() -> int | None:
    """Return the peak of the resident set since `reset_peak`."""
    return memory_bytes("VmHWM")


def memory_bytes(field: str) -> int | None:
    """Return a field of /proc/self/status such as VmRSS; None where there is no such file."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":")), None)
