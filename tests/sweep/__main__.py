"""The sweep over op_db as a program: python -m tests.sweep [--part 0/2] [--limit N] [--ops NAME ...] [--json FILE]."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
import warnings
import zlib
from collections import Counter
from typing import Any

import torch

from .exclusions import EXCLUDED, SPECIAL
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
    parser = argparse.ArgumentParser()
    parser.add_argument("--part", default="0/1", help="i/n: every n-th op from the i-th on")
    parser.add_argument("--every", type=int, default=1, help="a sample: one op in so many")
    parser.add_argument("--limit", type=int, help="samples per op and dtype at most")
    parser.add_argument("--ops", nargs="*", help="only these names")
    parser.add_argument("--data", default="full")
    parser.add_argument("--level", default="mix")
    parser.add_argument("--json", help="write the report to this file")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    part, parts = map(int, options.part.split("/"))
    ops = chosen(options.every, special=True)[part::parts]
    if options.ops:
        ops = [op for op in chosen(1, True) if op.name in options.ops or full_name(op) in options.ops]
    total = Report(excluded=dict(EXCLUDED))
    for op in ops:
        start = time.perf_counter()
        report = sweep_op(op, options.limit, options.data, options.level)
        total.add(report)
        if options.verbose:
            print(f"{full_name(op)}: {report.counts['samples']} samples, {time.perf_counter() - start:.2f} s", flush=True)
        for problem in report.problems[:3]:
            print(f"PROBLEM {problem[:15000]}", flush=True)
    summary = {field.name: getattr(total, field.name) for field in dataclasses.fields(total)}
    if options.json:
        with open(options.json, "w") as file:
            json.dump(summary, file, indent=1)
    for name, counter in summary.items():
        if isinstance(counter, Counter):
            print(f"{name}: {dict(counter.most_common())}")
    print(f"{len(total.problems)} problems")
    return 1 if total.problems else 0


if __name__ == "__main__":
    sys.exit(main())
