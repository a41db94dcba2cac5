"""Measures what checking costs a reader, and prints it as a Markdown table.

    python -m benchmarks.reading --workload gpt2 --repeats 30     as `make bench-reading` does

A step is recorded; then it is read with `verify=False` and with the checks in turn, A B A B: CPU time of the one
thread, files in the page cache. First as tools read: every call's tensors, as often as calls take or return them.
Then nothing but bytes: a value of each blob. Where tensors are dropped as they come, the next one takes their memory;
where they are kept, memory is fresh, and page faults are half of reading.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import torch

from aten_dump import DumpConfig, DumpMode, open_dump
from aten_dump.dump import RankDump, Value

from .table import header
from .workloads import WORKLOADS, workload_named

MOST: Final = 1.1  # what is aimed at: a tenth more than reading without checks
Walk = Callable[[RankDump], float]  # reads a recording, and returns the CPU time in seconds
_COLUMNS: Final = ("what is read", "blobs", "MiB", "verify=False, ms", "checked, ms", "x", f"x, quartiles (≤ {MOST})")


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
        walks: dict[str, Walk] = {
            "tensors of every call": _walk_of_calls,
            "each blob, dropped": partial(_walk_of_values, values, is_kept=False),
            "each blob, kept": partial(_walk_of_values, values, is_kept=True),
        }
        for name, walk in walks.items():
            cells = name, str(len(values)), f"{nbytes / 2**20:.0f}"
            print(_row(cells, list(_pairs(path, walk, arguments.repeats))), flush=True)


def _widest_values(path: Path) -> tuple[list[int], int]:
    """Return a value of each blob, that with the most bytes, and the bytes of these blobs."""
    rank = open_dump(path).rank(0, 0)
    widest: dict[int, Value] = {}
    for value in rank.values:
        if value.data is not None and value.nbytes > 0:
            blob = value.data.blob
            widest[blob] = max(widest.get(blob, value), value, key=lambda one: one.nbytes)
    return [value.id for value in widest.values()], sum(rank.tables.blobs[blob].nbytes for blob in widest)


def _row(cells: Sequence[str], pairs: Sequence[tuple[float, float]]) -> str:
    low, middle, high = statistics.quantiles([checked / plain for plain, checked in pairs], n=4)
    plain, checked = (statistics.median(column) * 1e3 for column in zip(*pairs, strict=True))
    return f"| {' | '.join((*cells, f'{plain:.1f}', f'{checked:.1f}'))} | {middle:.3f} | {low:.3f} to {high:.3f} |"


def _pairs(path: Path, walk: Walk, repeats: int) -> Iterator[tuple[float, float]]:
    for number in range(repeats + 1):
        order = (False, True) if number % 2 else (True, False)
        seconds = {verify: walk(open_dump(path, verify=verify).rank(0, 0)) for verify in order}
        if number:  # the first pair warms up
            yield seconds[False], seconds[True]


def _walk_of_calls(rank: RankDump) -> float:
    """Return the CPU time of reading what each call was given and returned."""
    begun = time.thread_time()
    for call in rank.calls:
        for _, value in (*call.input_values(), *call.result_values()):
            if value.has_data:
                value.tensor()
    return time.thread_time() - begun


def _walk_of_values(values: Sequence[int], rank: RankDump, *, is_kept: bool) -> float:
    """Return the CPU time of reading values, each for the first time."""
    handles = [rank.value_by_id(value) for value in values]
    kept: list[torch.Tensor | None] = [None] * len(handles)
    begun = time.thread_time()
    for place, handle in enumerate(handles):
        kept[place if is_kept else 0] = handle.tensor()
    return time.thread_time() - begun


if __name__ == "__main__":
    main()
