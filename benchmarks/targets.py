"""Holds what was measured against what is aimed at, and prints one table.

    python -m benchmarks.targets build/targets/pure.json build/targets/compiled.json     as `make bench-targets` does

D is DebugMode plain, which keeps strings only; L is the limit of that kind of data (`limits`): one compiled pass over
the distinct values, xxh3 of them, copy and write of them; that of the compiled file for both, as the pass is compiled.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from .rows import ROWS
from .table import header, limit_of

Run = dict[tuple[str, str], dict[str, Any]]  # what was measured, by workload and mode
Limits = Run


class Target(NamedTuple):
    """What is aimed at, and how it follows from what was measured."""

    text: str
    pure: float
    compiled: float
    value: Callable[[Run, Limits], float]


def _us_per_op(run: Run, workload: str, mode: str) -> float:
    found = run[workload, mode]
    return float(found["above_s"] / found["ops"] * 1e6)


def _above(run: Run, workload: str, mode: str) -> float:
    """Return the wall ratio less 1: each pair of batches has a bare one, so a machine whose speed drifts moves both."""
    return float(run[workload, mode]["wall_ratio"] - 1)


def _bare_us_per_op(run: Run, workload: str) -> float:
    rows = [found for (where, _), found in run.items() if where == workload and "error" not in found]
    return statistics.median(found["bare_s"] / found["ops"] * 1e6 for found in rows)


def _of_structure(workload: str) -> Callable[[Run, Limits], float]:
    return lambda run, _: _above(run, workload, "structure") / _above(run, workload, "debugmode")


def _over_structure(mode: str) -> Callable[[Run, Limits], float]:
    def value(run: Run, _: Limits) -> float:
        return (_above(run, "chain", mode) - _above(run, "chain", "structure")) * _bare_us_per_op(run, "chain")

    return value


def _of_limit(workload: str, mode: str) -> Callable[[Run, Limits], float]:
    limit = ROWS[mode].limit[0]

    def value(run: Run, limits: Limits) -> float:
        return (_above(run, workload, mode) - _above(run, workload, "structure")) / _above(limits, workload, limit)

    return value


def _over_limit(workload: str, mode: str) -> Callable[[Run, Limits], float]:
    def value(run: Run, limits: Limits) -> float:
        by_mode = {name: found for (where, name), found in limits.items() if where == workload}
        limit = limit_of(ROWS[mode], by_mode)
        if limit is None:
            raise KeyError(ROWS[mode].limit)
        return float(run[workload, mode]["on_file_ratio"] / limit)

    return value


def _growth(run: Run, _: Limits) -> float:
    return _us_per_op(run, "ops-100000", "structure") / _us_per_op(run, "ops-1000", "structure")


def _memory(run: Run, _: Limits) -> float:
    found = run["ops-100000", "structure"]
    return float(found["peak_bytes"] / found["ops"])


TARGETS = (
    Target("chain, structure, x - 1, x D", 1.6, 0.9, _of_structure("chain")),
    *(
        Target(f"{workload}, structure, x - 1, x D", 1.7, 0.95, _of_structure(workload))
        for workload in ("gpt2", "llama", "resnet")
    ),
    *(
        Target(f"chain, {mode}, us/op above structure", pure, compiled, _over_structure(mode))
        for mode, pure, compiled in (("statistic", 5, 3), ("tensor", 7, 5), ("full", 11, 8))
    ),
    *(
        Target(f"{workload}, {mode}, x less structure's, x L", pure, compiled, _of_limit(workload, mode))
        for mode, pure, compiled in (("statistic-all-12", 3, 1.4), ("hash", 1.5, 1.2))
        for workload in ("gpt2", "llama")
    ),
    *(
        Target(f"{workload}, {mode}, on file x, x L's", pure, compiled, _over_limit(workload, mode))
        for mode, pure, compiled in (
            *(("tensor", 1.4, 1.25), ("tensor-tmpfs", 1.4, 1.25)),
            *(("full", 1.6, 1.35), ("full-tmpfs", 1.6, 1.35)),
        )
        for workload in ("gpt2", "llama")
    ),
    Target("an op of 100,000 in a step, structure, x one of 1,000", 1.15, 1.15, _growth),
    Target("peak bytes above bare per op of 100,000, structure", 2048, 2048, _memory),
)


def rows(pure: Run, compiled: Run) -> Iterable[str]:
    """Return the table's rows: what was measured, beside what is allowed at most; "-" where it was not."""
    for target in TARGETS:
        cells = [_cell(target, run, compiled, most) for run, most in ((pure, target.pure), (compiled, target.compiled))]
        yield f"| {target.text} | {' | '.join(cells)} |"


def _cell(target: Target, run: Run, limits: Limits, most: float) -> str:
    try:
        value = target.value(run, limits)
    except KeyError:  # a row that was not measured, or has an error in place of numbers
        return f"- (≤ {most:g})"
    return f"{value:.4g} (≤ {most:g}{'' if value <= most else ', missed'})"


def read(path: Path) -> Run:
    """Return the rows that `python -m benchmarks --json` has written."""
    return {(row["workload"], row["mode"]): row for row in json.loads(path.read_text(encoding="utf-8"))["rows"]}


def main() -> None:
    pure, compiled = (read(Path(argument)) for argument in sys.argv[1:])
    print(header(("", "pure", "compiled")))
    print("\n".join(rows(pure, compiled)))


if __name__ == "__main__":
    main()
