"""Measures what is aimed at, and prints one table of both builds.

    python -m benchmarks.targets measure pure.json [--repeats 9] [--groups chain gpt2]      in each build
    python -m benchmarks.targets table pure.json compiled.json

as `make bench-targets` does. D is DebugMode plain, which keeps strings only; L is the limit of that kind of data
(`limits`): one compiled pass over the distinct values, xxh3 of them, copy and write of them. What a target compares is
measured in turn (`in_turn`), and worked out for each round; a cell is the median over rounds, and after ± half the
range between the quartiles.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from .in_turn import Round, Row, measured_apart, read_round
from .measure import half_quartile_range
from .rows import ROWS
from .spawn import Settings, environment, run_row
from .table import header

_LARGE = "ops-100000"
_MEMORY = "peak_bytes_per_op"
Value = Callable[[Round], float]


class Target(NamedTuple):
    """What is aimed at, and how it follows from one round of the rows that it compares."""

    text: str
    pure: float
    compiled: float
    group: str  # the process that its rows are measured in
    rows: tuple[Row, ...]
    value: Value


def _of_structure(workload: str, pure: float, compiled: float) -> Target:
    ours, debug_mode = (workload, "structure"), (workload, "debugmode")
    return Target(
        f"{workload}, structure, x - 1, x D",
        *(pure, compiled, workload, (debug_mode, ours)),
        lambda found: found.above_s(ours) / found.above_s(debug_mode),
    )


def _over_structure(mode: str, pure: float, compiled: float) -> Target:
    ours, structure = ("chain", mode), ("chain", "structure")
    return Target(
        f"chain, {mode}, us/op above structure",
        *(pure, compiled, "chain", (structure, ours)),
        lambda found: found.us_per_op(found.above_s(ours) - found.above_s(structure), ours),
    )


def _of_limit(workload: str, mode: str, pure: float, compiled: float) -> Target:
    ours, structure, limit = ((workload, name) for name in (mode, "structure", ROWS[mode].limit[0]))
    return Target(
        f"{workload}, {mode}, x less structure's, x L",
        *(pure, compiled, workload, (structure, limit, ours)),
        lambda found: (found.above_s(ours) - found.above_s(structure)) / found.above_s(limit),
    )


def _over_limit(workload: str, mode: str, pure: float, compiled: float) -> Target:
    ours, limits = (workload, mode), tuple((workload, name) for name in ROWS[mode].limit)
    return Target(
        f"{workload}, {mode}, on file x, x L's",
        *(pure, compiled, workload, (*limits, ours)),
        lambda found: (
            found.pairs[ours].on_file_s / (found.bare_s(ours) + sum(found.on_file_above_s(limit) for limit in limits))
        ),
    )


def _growth(pure: float, compiled: float) -> Target:
    small, large = ("ops-1000", "structure"), (_LARGE, "structure")
    return Target(
        "an op of 100,000 in a step, structure, x one of 1,000",
        *(pure, compiled, "growth", (small, large)),
        lambda found: found.us_per_op(found.above_s(large), large) / found.us_per_op(found.above_s(small), small),
    )


_LANGUAGE_MODELS = ("gpt2", "llama")
TARGETS = (
    _of_structure("chain", 1.6, 0.9),
    *(_of_structure(workload, 1.7, 0.95) for workload in (*_LANGUAGE_MODELS, "resnet")),
    *(_over_structure(*aimed) for aimed in (("statistic", 5, 3), ("tensor", 7, 5), ("full", 11, 8))),
    *(
        _of_limit(workload, *aimed)
        for aimed in (("statistic-all-12", 3, 1.4), ("hash", 1.5, 1.2))
        for workload in _LANGUAGE_MODELS
    ),
    *(
        _over_limit(workload, *aimed)
        for aimed in (
            ("tensor", 1.4, 1.25),
            ("tensor-tmpfs", 1.4, 1.25),
            ("full", 1.6, 1.35),
            ("full-tmpfs", 1.6, 1.35),
        )
        for workload in _LANGUAGE_MODELS
    ),
    _growth(1.15, 1.15),
)
_MEMORY_TEXT, _MEMORY_MOST = "peak bytes above bare per op of 100,000, structure", 2048
GROUPS = tuple(dict.fromkeys(target.group for target in TARGETS))
_SHORT, _SHORT_ROUNDS = ("chain", "resnet"), 8  # groups whose rounds take a second or two have eight times as many
Found = dict[str, Any]  # what `measure` writes


def measure(groups: Iterable[str], settings: Settings, result: Path) -> None:
    """Measure the rows of all targets of some groups; what was found is written after each group."""
    found: Found = {"environment": environment(settings), "rounds": {}}
    for group in groups:
        print(f"{group} ...", flush=True)
        rows = tuple(dict.fromkeys(row for target in TARGETS if target.group == group for row in target.rows))
        times = _SHORT_ROUNDS if group in _SHORT else 1
        found["rounds"][group] = measured_apart(rows, dataclasses.replace(settings, repeats=settings.repeats * times))
        if group == "growth":
            row = run_row(_LARGE, ROWS["structure"], dataclasses.replace(settings, repeats=1))
            found[_MEMORY] = row["peak_bytes"] / row["ops"] if row.get("peak_bytes") else None
        result.write_text(json.dumps(found, indent=1) + "\n")


def rows(pure: Found, compiled: Found) -> Iterable[str]:
    """Return the table's rows: what was measured, beside what is allowed at most; "-" where it was not."""
    for target in TARGETS:
        cells = (_cell(target, found, most) for found, most in ((pure, target.pure), (compiled, target.compiled)))
        yield f"| {target.text} | {' | '.join(cells)} |"
    cells = (_judged([found[_MEMORY]] if found.get(_MEMORY) else [], _MEMORY_MOST) for found in (pure, compiled))
    yield f"| {_MEMORY_TEXT} | {' | '.join(cells)} |"


def _cell(target: Target, found: Found, most: float) -> str:
    rounds = [read_round(one) for one in found["rounds"].get(target.group, [])]
    return _judged([target.value(one) for one in rounds if set(target.rows) <= set(one.pairs)], most)


def _judged(values: list[float], most: float) -> str:
    if not values:
        return f"- (≤ {most:g})"
    value = statistics.median(values)
    spread = f" ± {half_quartile_range(values):.2g}" if len(values) > 1 else ""
    return f"{value:.4g}{spread} (≤ {most:g}{'' if value <= most else ', missed'})"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.targets", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure", help="measure the build that is imported here")
    measuring.add_argument("result", type=Path)
    measuring.add_argument("--repeats", type=int, default=11, help="rounds (default: %(default)s)")
    measuring.add_argument("--groups", nargs="+", choices=GROUPS, default=GROUPS, help="default: all")
    measuring.add_argument("--device", default="cpu")
    measuring.add_argument("--disk", type=Path, default=Path(tempfile.gettempdir()))
    table = commands.add_parser("table", help="print what both builds have measured")
    table.add_argument("pure", type=Path)
    table.add_argument("compiled", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "measure":
        settings = Settings(arguments.repeats, arguments.device, arguments.disk, 3600.0)
        measure(arguments.groups, settings, arguments.result)
    else:
        read = (json.loads(path.read_text(encoding="utf-8")) for path in (arguments.pure, arguments.compiled))
        print(header(("", "pure", "compiled")))
        print("\n".join(rows(*read)))


if __name__ == "__main__":
    main()
