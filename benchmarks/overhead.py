"""What recording costs: every mode paired with the bare step, in one process, A B A B.

    python benchmarks/overhead.py [--workloads gpt2,chain] [--modes structure,tensor] [--repeats 9]

A mode is measured as (bare step, recorded step) pairs in turn; the table gives the median of the recorded steps over
the median of the bare steps around them, in wall and in CPU time of all threads, so that a machine whose speed drifts
does not matter.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from workloads import WORKLOADS, Workload

from aten_dump import DumpConfig, DumpMode

Timing = tuple[float, float]  # wall and CPU seconds


class _EmptyDispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class _EmptyFunction(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def timed(step: Callable[[], None]) -> Timing:
    wall, cpu = time.perf_counter(), time.process_time()
    step()
    return time.perf_counter() - wall, time.process_time() - cpu


@contextlib.contextmanager
def empty_modes(workload: Workload, folder: Path) -> Iterator[Callable[[], Timing]]:
    def step() -> Timing:
        with _EmptyDispatch(), _EmptyFunction():
            return timed(workload.step)

    yield step


def dumping(**config: Any) -> Callable[..., Any]:
    """Return the mode of one DumpConfig: the recorded step is timed with what ends it."""

    @contextlib.contextmanager
    def mode(workload: Workload, folder: Path) -> Iterator[Callable[[], Timing]]:
        with DumpMode(DumpConfig(path=folder / "dump", **config), model=workload.model) as dump:
            dump.pause()

            def step() -> Timing:
                dump.resume()
                found = timed(lambda: (workload.step(), dump.step()))  # type: ignore[arg-type,return-value]
                dump.pause()
                return found

            yield step

    return mode


@contextlib.contextmanager
def idle(workload: Workload, folder: Path) -> Iterator[Callable[[], Timing]]:
    with DumpMode(DumpConfig(path=folder / "dump", steps=10**9), model=workload.model) as dump:

        def step() -> Timing:
            return timed(lambda: (workload.step(), dump.step()))  # type: ignore[arg-type,return-value]

        yield step


@contextlib.contextmanager
def debug_mode(workload: Workload, folder: Path) -> Iterator[Callable[[], Timing]]:
    from torch.utils._debug_mode import DebugMode

    def step() -> Timing:
        with DebugMode():
            return timed(workload.step)

    yield step


_STATISTICS = ("count", "min", "max", "mean", "l2norm", "nan", "posinf", "neginf")
MODES: dict[str, Callable[..., Any]] = {
    "empty modes": empty_modes,
    "DebugMode": debug_mode,
    "idle step": idle,
    "structure-no-stacks": dumping(data="structure", stacks=False),
    "structure": dumping(data="structure"),
    "hash": dumping(data="hash"),
    "statistic": dumping(
        data="statistic", statistics=("count", "min", "max", "mean", "l2norm", "nan", "posinf", "neginf")
    ),
    "tensor": dumping(data="tensor"),
    "full": dumping(data="full"),
}


def measure(workload: Workload, mode: Callable[..., Any], repeats: int, batch: int) -> tuple[float, float, float, int]:
    """Return wall ratio, CPU ratio, wall seconds above bare per step, and bytes written per step."""
    folder = Path(tempfile.mkdtemp(prefix="overhead-"))
    bare: list[Timing] = []
    with_mode: list[Timing] = []
    try:
        with mode(workload, folder) as step:
            step()
            for _ in range(repeats):
                bare += [timed(workload.step) for _ in range(batch)]
                with_mode += [step() for _ in range(batch)]
        written = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) // (repeats * batch + 1)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    walls = [statistics.median(t[i] for t in ts) for i in (0, 1) for ts in (bare, with_mode)]
    return walls[1] / walls[0], walls[3] / max(walls[2], 1e-9), walls[1] - walls[0], written


def count_ops(workload: Workload) -> int:
    seen = 0

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal seen
            seen += 1
            return func(*args, **(kwargs or {}))

    with Count():
        workload.step()
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default="gpt2,chain")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {os.cpu_count()} CPUs", file=sys.stderr)
    print("| workload | mode | wall x | CPU x | us/op above bare | MB per step |\n|---|---|---|---|---|---|")
    for name in arguments.workloads.split(","):
        torch.manual_seed(0)
        workload = WORKLOADS[name]()
        for _ in range(3):
            workload.step()
        ops = count_ops(workload)
        for label in arguments.modes.split(","):
            batch = 10 if name == "chain" else 1
            ratio, cpu, above, written = measure(workload, MODES[label], arguments.repeats, batch)
            costs = f"{ratio:.2f} | {cpu:.2f} | {above / ops * 1e6:.1f} | {written / 1e6:.2f}"
            print(f"| {name} ({ops} ops) | {label} | {costs} |", flush=True)


if __name__ == "__main__":
    main()
