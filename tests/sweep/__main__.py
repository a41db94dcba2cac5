"""The sweep over op_db as a program: python -m tests.sweep [--processes 2] [--limit N] [--ops NAME ...] [--json FILE]."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from tests import devices

from .exclusions import EXCLUDED, PARTLY_WRITTEN, READS_UNDEFINED, RECORDED_WHOLE, UNDETERMINED
from .parts import run_part
from .runner import Report


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


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--part", default="0/1", help="i/n: every n-th op from the i-th on")
    parser.add_argument("--processes", type=int, default=1, help="share all parts between so many processes")
    parser.add_argument("--every", type=int, default=1, help="a sample: one op in so many, and the special ones")
    parser.add_argument("--limit", type=int, help="samples per op and dtype at most")
    parser.add_argument("--ops", nargs="*", help="only these names")
    parser.add_argument("--device", choices=devices.DEVICES, default="cpu", help="where the samples are made and run")
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
        "inner ops not recorded": RECORDED_WHOLE,
        "parts not compared": PARTLY_WRITTEN,
        "given memory that nothing wrote": READS_UNDEFINED,
    }
    for title, table in tables.items():
        for name, reason in table.items():
            print(f"{title}: {name}: {reason}")
    print(f"{len(total.problems)} problems")


if __name__ == "__main__":
    sys.exit(main())
