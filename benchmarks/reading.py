"""Measures what checking costs a reader, and prints it as a Markdown table.

    python -m benchmarks.reading --workload gpt2 --repeats 30     as `make bench-reading` does

A step is recorded; then a value of each blob is read, with `verify=False` and with the checks in turn, A B A B: CPU
time of the one thread, files in the page cache. Where tensors are dropped as they come, the next one takes their
memory; where they are kept, memory is fresh, and page faults are half of reading.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import torch

from aten_dump import DumpConfig, DumpMode, open_dump
from aten_dump.dump.handles import Value

from .table import header
from .workloads import WORKLOADS, workload_named

MOST: Final = 1.1  # what is aimed at: a tenth more than reading without checks
_COLUMNS: Final = ("tensors are", "blobs", "MiB", "verify=False, ms", "checked, ms", "x", f"x, quartiles (≤ {MOST})")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.reading", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workload", choices=WORKLOADS, default="gpt2", help="what is recorded (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=30, help="pairs of walks per row (default: %(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "dump"
        workload = workload_named(arguments.workload)
        with DumpMode(DumpConfig(path=str(path), data="tensor"), model=workload.model) as dump:
            workload.step()
            dump.step()
        values, nbytes = _widest_values(path)
        print(header(_COLUMNS))
        for is_kept in (False, True):
            print(_row(path, values, nbytes, is_kept, arguments.repeats), flush=True)


def _widest_values(path: Path) -> tuple[list[int], int]:
    """Return a value of each blob, that with the most bytes, and the bytes of these blobs."""
    rank = open_dump(path).rank(0, 0)
    widest: dict[int, Value] = {}
    for value in rank.values:
        if value.data is not None and value.nbytes > 0:
            blob = value.data.blob
            widest[blob] = max(widest.get(blob, value), value, key=lambda one: one.nbytes)
    return [value.id for value in widest.values()], sum(rank.tables.blobs[blob].nbytes for blob in widest)


def _row(path: Path, values: list[int], nbytes: int, is_kept: bool, repeats: int) -> str:
    pairs = list(_pairs(path, values, is_kept, repeats))
    low, middle, high = statistics.quantiles([checked / plain for plain, checked in pairs], n=4)
    plain, checked = (statistics.median(column) * 1e3 for column in zip(*pairs, strict=True))
    cells = (
        "kept" if is_kept else "dropped",
        str(len(values)),
        f"{nbytes / 2**20:.0f}",
        f"{plain:.1f}",
        f"{checked:.1f}",
    )
    return f"| {' | '.join(cells)} | {middle:.3f} | {low:.3f} to {high:.3f} |"


def _pairs(path: Path, values: list[int], is_kept: bool, repeats: int) -> Iterator[tuple[float, float]]:
    for number in range(repeats + 1):
        order = (False, True) if number % 2 else (True, False)
        seconds = {verify: _walk(path, values, verify, is_kept) for verify in order}
        if number:  # the first pair warms up
            yield seconds[False], seconds[True]


def _walk(path: Path, values: list[int], verify: bool, is_kept: bool) -> float:
    """Return the CPU time of reading values, each for the first time."""
    rank = open_dump(path, verify=verify).rank(0, 0)
    handles = [rank.value_by_id(value) for value in values]
    kept: list[torch.Tensor | None] = [None] * len(handles)
    begun = time.thread_time()
    for place, handle in enumerate(handles):
        kept[place if is_kept else 0] = handle.tensor()
    return time.thread_time() - begun


if __name__ == "__main__":
    main()
