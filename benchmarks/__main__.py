"""Measures what recording costs and prints it as Markdown tables.

    python -m benchmarks                                        everything, as `make bench` does
    python -m benchmarks --workloads gpt2,chain --modes ours --tables costs
    python -m benchmarks --tables growth --curves bytes --repeats 3 --json found.json

Three tables: `costs` (each mode against the bare step), `index` (what an index costs and what the step says of
itself; from the same runs), and `growth`, a curve each over ops, bytes and steps. Each row runs in a process of
its own; rows are printed as they come.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import growth, table
from .measure import Mode
from .rows import GROUPS, ROWS, rows_named
from .spawn import Settings, environment, run_row
from .workloads import WORKLOADS

TABLES = ("costs", "growth")
CURVES = ("ops", "bytes", "steps")
Results = list[dict[str, Any]]


def main() -> None:
    arguments = _parse()
    settings = Settings(arguments.repeats, arguments.device, arguments.disk, arguments.timeout)
    about = {"date": datetime.date.today().isoformat(), **environment(settings)}
    print(_sentence(about), flush=True)
    found: Results = []
    try:
        if "costs" in arguments.tables:
            found += _costs(arguments.workloads, arguments.modes, settings)
        if "growth" in arguments.tables:
            for curve in arguments.curves:
                found += _curve(curve, settings)
    finally:
        if arguments.json:
            arguments.json.write_text(json.dumps({"environment": about, "rows": found}, indent=1) + "\n")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, allowed in (("workloads", tuple(WORKLOADS)), ("tables", TABLES), ("curves", CURVES)):
        choice = ",".join(allowed)
        parser.add_argument(f"--{name}", type=_listed(allowed), default=choice, help=f"some of {choice}; default all")
    modes = f"groups {', '.join(GROUPS)}, or modes: {', '.join(ROWS)}"
    parser.add_argument("--modes", type=_modes, default=",".join(GROUPS), help=modes)
    parser.add_argument("--repeats", type=int, default=9, help="pairs of batches per row (default: %(default)s)")
    parser.add_argument("--device", default="cpu", help="where the workloads run (default: %(default)s)")
    parser.add_argument("--disk", type=Path, default=Path(tempfile.gettempdir()), help="write here (%(default)s)")
    parser.add_argument("--timeout", type=float, default=900, help="most seconds for a row (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="also write all numbers to this file")
    return parser.parse_args()


def _listed(allowed: tuple[str, ...]) -> Callable[[str], list[str]]:
    """Return what reads a list with commas of the allowed names."""

    def parse(text: str) -> list[str]:
        names = text.split(",")
        unknown = [name for name in names if name not in allowed]
        if unknown:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; allowed: {', '.join(allowed)}")
        return names

    return parse


def _modes(text: str) -> list[Mode]:
    try:
        return rows_named(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _sentence(about: dict[str, Any]) -> str:
    memory = f"{(about['memory_bytes'] or 0) / 2**30:.0f} GiB"
    return (
        f"{about['date']}, torch {about['torch']}, Python {about['python']}, {about['processor']}, "
        f"{about['cpus']} CPUs, {about['threads']} threads, {memory}, disk {about['disk']}, device {about['device']}, "
        f"medians of {about['repeats']} pairs.\n"
    )


def _costs(workloads: list[str], modes: list[Mode], settings: Settings) -> Results:
    print(table.header(table.COSTS), flush=True)
    results: Results = []
    index_rows = []
    for workload in workloads:
        by_mode: dict[str, dict[str, Any]] = {}
        for mode in modes:
            found = by_mode[mode.name] = _run(workload, mode, settings, results)
            print(table.costs_row(workload, mode, found, by_mode), flush=True)
            index_rows.append(table.index_row(workload, mode, found))
    if any(index_rows):
        print("\n" + table.header(table.INDEX))
        print("\n".join(row for row in index_rows if row), flush=True)
    return results


def _curve(curve: str, settings: Settings) -> Results:
    results: Results = []
    if curve == "steps":
        print("\n" + table.header(table.STEPS), flush=True)
        for mode in rows_named(growth.OPS_MODES):
            found = _run(growth.STEPS_WORKLOAD, mode, settings, results, growth.STEPS)
            print("\n".join(table.steps_rows(mode, found)), flush=True)
        return results
    sizes, modes, columns, row = {
        "ops": (growth.OPS, growth.OPS_MODES, table.OPS, table.ops_row),
        "bytes": (growth.BYTES, growth.BYTES_MODES, table.BYTES, table.bytes_row),
    }[curve]
    print("\n" + table.header(columns), flush=True)
    for mode in rows_named(modes):
        for size in sizes:
            workload = f"{curve}-{size}"
            print(row(workload, mode, _run(workload, mode, settings, results)), flush=True)
    return results


def _run(
    workload: str, mode: Mode, settings: Settings, results: Results, marks: tuple[int, ...] = ()
) -> dict[str, Any]:
    print(f"{workload}, {mode.name} ...", file=sys.stderr, flush=True)
    found = run_row(workload, mode, settings, marks)
    results.append({"workload": workload, "mode": mode.name, **found})
    return found


if __name__ == "__main__":
    main()
