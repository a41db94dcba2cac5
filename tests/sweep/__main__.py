"""The sweep over op_db as a program: python -m tests.sweep [--processes 2] [--limit N] [--ops NAME ...] [--json FILE]."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
import warnings
import zlib
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from .exclusions import EXCLUDED, OTHER_FORMULA, PARTLY_WRITTEN, READS_UNDEFINED, SPECIAL, UNDETERMINED
from .runner import Report, full_name, sweep_op


def chosen(every: int, special: bool) -> list[Any]:
    """The entries of op_db in a sample of one in `every`, by a hash that stays; with `special`, those known to be so."""
    from torch.testing._internal.common_methods_invocations import op_db

    return [
        op
        for op in op_db
        if full_name(op) not in EXCLUDED
        and (zlib.crc32(full_name(op).encode()) % every == 0 or (special and op.name in SPECIAL))
    ]


def main() -> int:
    options = _options()
    if options.processes > 1:
        parts = [f"{i}/{8 * options.processes}" for i in range(8 * options.processes)]
        with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
            reports = list(pool.map(partial(run_part, options), parts))
    else:
        reports = [run_part(options, options.part)]
    total = Report(excluded=dict(EXCLUDED))
    for report in reports:
        total.add(report)
    _print(total, options.json)
    return 1 if total.problems else 0


def run_part(options: argparse.Namespace, part: str) -> Report:
    """Sweep over one part of the ops."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    number, parts = map(int, part.split("/"))
    if options.ops:
        ops = [op for op in chosen(1, True) if op.name in options.ops or full_name(op) in options.ops]
    else:
        ops = chosen(options.every, special=True)
    total = Report()
    for op in ops[number::parts]:
        start = time.perf_counter()
        report = sweep_op(op, options.limit, options.data, options.level)
        total.add(report)
        if options.verbose:
            print(
                f"{full_name(op)}: {report.counts['samples']} samples, {time.perf_counter() - start:.2f} s", flush=True
            )
        for problem in report.problems[:3]:
            print(f"PROBLEM {problem[:2000]}", flush=True)
    return total


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--part", default="0/1", help="i/n: every n-th op from the i-th on")
    parser.add_argument("--processes", type=int, default=1, help="share all parts between so many processes")
    parser.add_argument("--every", type=int, default=1, help="a sample: one op in so many, and the special ones")
    parser.add_argument("--limit", type=int, help="samples per op and dtype at most")
    parser.add_argument("--ops", nargs="*", help="only these names")
    parser.add_argument("--data", default="full")
    parser.add_argument("--level", default="mix")
    parser.add_argument("--json", help="write the report to this file")
    parser.add_argument("--verbose", action="store_true")
    return parser.parse_args()


def _print(total: Report, file: str | None) -> None:
    summary = {field.name: getattr(total, field.name) for field in dataclasses.fields(total)}
    if file:
        Path(file).write_text(json.dumps(summary, indent=1))
    for name, counter in summary.items():
        if isinstance(counter, Counter):
            print(f"{name}: {dict(counter.most_common())}")
    tables = {
        "left out": EXCLUDED,
        "bits not compared": UNDETERMINED,
        "bits of any TorchDispatchMode": OTHER_FORMULA,
        "parts not compared": PARTLY_WRITTEN,
        "given memory that nothing wrote": READS_UNDEFINED,
    }
    for title, table in tables.items():
        for name, reason in table.items():
            print(f"{title}: {name}: {reason}")
    print(f"{len(total.problems)} problems")


if __name__ == "__main__":
    sys.exit(main())
