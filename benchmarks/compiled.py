"""What recording compiled code costs, and what sampled fingerprints do: CPU time of steps, in turn.

    python -m benchmarks.compiled --repeats 15

Each row is a process of its own. It runs a bare step and a recorded one in turn, of two copies of a model of which the
recorded one was compiled under the `DumpMode`, and prints the median of their ratios. CPU time is the process's own.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
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


def _cpu_seconds(step: Callable[[], None]) -> float:
    start = time.process_time()
    step()
    return time.process_time() - start


def measure(row: str, repeats: int) -> None:
    """Print the cost of one row."""
    from aten_dump import DumpConfig, DumpMode

    torch.manual_seed(0)
    torch.set_num_threads(1)
    is_compiled = row.startswith("compiled")
    bare, ours = gpt2(), gpt2()
    if is_compiled:
        bare.model.compile()
    for _ in range(2):
        bare.step()
    with (
        tempfile.TemporaryDirectory() as folder,
        DumpMode(DumpConfig(path=f"{folder}/dump", **ROWS[row]), model=ours.model) as dump,
    ):
        if is_compiled:
            ours.model.compile()

        def recorded() -> None:
            dump.resume()
            ours.step()
            dump.step()
            dump.pause()

        for _ in range(2):
            recorded()
        pairs = [(_cpu_seconds(bare.step), _cpu_seconds(recorded)) for _ in range(repeats)]
    ratios = sorted(one / other for other, one in pairs)
    spread = (ratios[-1 - repeats // 4] - ratios[repeats // 4]) / 2
    base = statistics.median(other for other, _ in pairs)
    print(f"| {row} | {base * 1e3:.0f} | {statistics.median(ratios):.2f} ±{spread:.2f} |", flush=True)


def main() -> None:
    """Print a row for each setting."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--repeats", type=int, default=15, help="pairs of steps (default: %(default)s)")
    parser.add_argument("--row", choices=ROWS, help="only this one, in this process")
    given = parser.parse_args()
    if given.row:
        measure(given.row, given.repeats)
        return
    print("| recorded | ms bare | CPU x |\n|---|---|---|")
    for row in ROWS:
        subprocess.run(
            [sys.executable, "-m", "benchmarks.compiled", "--row", row, "--repeats", str(given.repeats)], check=True
        )


if __name__ == "__main__":
    main()
