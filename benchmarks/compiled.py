"""What recording compiled code costs, and what sampled fingerprints do: CPU time of steps, in turn.

    python -m benchmarks.compiled --repeats 15

Each row is a process of its own. It runs a bare step and a recorded one in turn, of two copies of a model of which the
recorded one was compiled under the `DumpMode`, and prints the median of their ratios. Sampled fingerprints are held
against a step that is recorded without them. CPU time is the process's own.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .workloads import gpt2

ROWS: dict[str, dict[str, Any]] = {
    "compiled, structure": {"compile": "kernels", "data": "structure"},
    "compiled, structure, no stacks": {"compile": "kernels", "data": "structure", "stacks": False},
    "compiled, opaque, structure": {"compile": "opaque", "data": "structure"},
    "compiled, tensor": {"compile": "kernels", "data": "tensor"},
    "eager, structure": {"data": "structure"},
    "eager, structure, sampled fingerprints": {"data": "structure", "dedup": "sample"},
}
BASES = {"eager, structure, sampled fingerprints": "eager, structure"}


def _cpu_seconds(step: Callable[[], None]) -> float:
    start = time.process_time()
    step()
    return time.process_time() - start


def _bare(row: str) -> Callable[[], float]:
    torch.manual_seed(0)
    bare = gpt2()
    if row.startswith("compiled"):
        bare.model.compile(
            options={"debug": False}
        )  # an option that it has anyway: code of other options is not shared
    return lambda: _cpu_seconds(bare.step)


def _recorded(folder: str, row: str) -> Callable[[], float]:
    """Return what runs a recorded step of a model of its own, in a dump of its own: only one can be open at a time."""
    from aten_dump import DumpConfig, DumpMode

    torch.manual_seed(0)
    ours, numbers = gpt2(), itertools.count()

    def run() -> float:
        config = DumpConfig(path=f"{folder}/{row}/{next(numbers)}", **ROWS[row])
        with DumpMode(config, model=ours.model) as dump:

            def step() -> None:
                ours.step()
                dump.step()

            return _cpu_seconds(step)

    return run


def _recorded_on(dump: Any, ours: Any) -> Callable[[], float]:
    def step() -> None:
        dump.resume()
        ours.step()
        dump.step()
        dump.pause()

    return lambda: _cpu_seconds(step)


def measure(row: str, repeats: int) -> None:
    """Print the cost of one row: above a bare step, or above the row that it names as its base."""
    from aten_dump import DumpConfig, DumpMode, open_dump

    torch.set_num_threads(1)
    base = BASES.get(row)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        if base is None:
            other = _bare(row)
            other(), other()
            torch.manual_seed(0)
            ours = gpt2()
            dump = stack.enter_context(DumpMode(DumpConfig(path=f"{folder}/{row}", **ROWS[row]), model=ours.model))
            if row.startswith("compiled"):
                ours.model.compile()  # under the dump, as it records no kernel that was compiled before
            dump.pause()
            recorded = _recorded_on(dump, ours)
        else:
            other, recorded = _recorded(folder, base), _recorded(folder, row)
        for _ in range(2):
            other(), recorded()
        pairs = [(other(), recorded()) for _ in range(repeats)]
        last = max(Path(folder, row).rglob("index.msgpack"), key=lambda path: path.stat().st_mtime).parent
        size = sum(path.stat().st_size for path in last.iterdir())
        calls = open_dump(last.parents[1]).step(int(last.parent.name.removeprefix("step"))).rank(0).calls
        kernels = sum(call.kernel is not None for call in calls)
    if ROWS[row].get("compile") == "kernels" and not kernels:
        raise SystemExit(f"{row}: no kernel was recorded, so this is not what was to be measured")
    ratios = sorted(one / two for two, one in pairs)
    spread = (ratios[-1 - repeats // 4] - ratios[repeats // 4]) / 2
    median = statistics.median(two for two, _ in pairs)
    text = f"| {row} | {base or 'bare'} | {median * 1e3:.0f} | {statistics.median(ratios):.2f} ±{spread:.2f} |"
    print(f"{text} {kernels} | {size / 1e6:.2f} |", flush=True)


def main() -> None:
    """Print a row for each setting."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--repeats", type=int, default=15, help="pairs of steps (default: %(default)s)")
    parser.add_argument("--row", choices=ROWS, help="only this one, in this process")
    given = parser.parse_args()
    if given.row:
        measure(given.row, given.repeats)
        return
    print("| recorded | above | its ms | CPU x | kernels | MB a step |\n|---|---|---|---|---|---|")
    for row in ROWS:
        subprocess.run(
            [sys.executable, "-m", "benchmarks.compiled", "--row", row, "--repeats", str(given.repeats)], check=True
        )


if __name__ == "__main__":
    main()
