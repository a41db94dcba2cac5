"""Measures what `check` costs over recording the step, and prints it as a Markdown table.

    python -m benchmarks.checking --repeats 3     as `make bench-check` does

Two steps are recorded with their bytes, then checked by the default rules. Both are processor time of this process,
in turn; the median is taken.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch

from aten_dump import DumpConfig, DumpMode, check, open_dump

from .table import header
from .workloads import WORKLOADS, workload_named

_COLUMNS = ("workload (calls in two steps)", "recording, s", "check, s", "x", "findings")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.checking", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workloads", default="gpt2,llama", help=f"of {', '.join(WORKLOADS)} (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="rounds per row (default: %(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(header(_COLUMNS))
    for name in arguments.workloads.split(","):
        print(_row(name, arguments.repeats), flush=True)


def _row(name: str, repeats: int) -> str:
    workload = workload_named(name)
    recorded, checked, calls, findings = [], [], 0, 0
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "dump"
            begun = time.process_time()
            with DumpMode(DumpConfig(path=path, data="tensor"), model=workload.model) as dump:
                for _ in range(2):
                    workload.step()
                    dump.step()
            recorded.append(time.process_time() - begun)
            begun = time.process_time()
            found = check(path)
            checked.append(time.process_time() - begun)
            calls, findings = sum(len(rank.calls) for rank in open_dump(path).all_ranks()), len(found.findings)
    recording, checking = statistics.median(recorded), statistics.median(checked)
    return f"| {name} ({calls}) | {recording:.2f} | {checking:.2f} | {checking / recording:.2f} | {findings} |"


if __name__ == "__main__":
    main()
