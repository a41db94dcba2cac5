"""Several rows in turn, in this process: what is held against each other is of the same seconds.

    python -m benchmarks.in_turn SPEC RESULT     both JSON (see `measured_apart`)

Theory of operation
    Rows of the table of costs are minutes apart, and a machine that others share changes its speed in between: a
    ratio of two such rows, or a difference, says how fast the machine was as much as what they cost. So a round runs
    a batch of each row, and before each a bare one, A B A C A D; what is aimed at is worked out of each round for
    itself, and of those the median is taken. Our own modes are entered anew for each batch, with a first step that is
    not counted, so that nothing of them is mounted while others are timed; limits hold what they read all the time.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .measure import WARM_UP_STEPS, Sampler, batch_steps, count_ops, discard, timed
from .rows import ROWS
from .spawn import Settings, new_folder
from .workloads import Workload, workload_named

Row = tuple[str, str]  # workload and mode
_BATCH_SECONDS = 0.3  # many short rounds rather than few long ones: the machine changes its speed within seconds


class Pair(NamedTuple):
    """A batch and the bare one before it, in seconds per step."""

    bare_s: float
    wall_s: float
    on_file_s: float
    ops: int  # aten ops of the bare step


class Round:
    """A batch of each row, in turn."""

    def __init__(self, pairs: Mapping[Row, Pair]) -> None:
        self.pairs = pairs

    def bare_s(self, row: Row) -> float:
        """Return the seconds of a bare step of the workload: the median over the round's batches of it."""
        return statistics.median(pair.bare_s for (workload, _), pair in self.pairs.items() if workload == row[0])

    def above_s(self, row: Row) -> float:
        """Return the seconds that the mode adds to a step, until the program goes on."""
        return self.pairs[row].wall_s - self.bare_s(row)

    def on_file_above_s(self, row: Row) -> float:
        """Return the seconds that the mode adds to a step, until all that it makes is on file."""
        return self.pairs[row].on_file_s - self.bare_s(row)

    def us_per_op(self, seconds: float, row: Row) -> float:
        """Return seconds of a step as microseconds per aten op of the bare one."""
        return seconds / self.pairs[row].ops * 1e6


def measured_apart(rows: Sequence[Row], settings: Settings) -> list[Any]:
    """Measure rows in turn, in a process of their own; as many rounds as `settings.repeats` says.

    Returns:
        for each round what `read_round` takes.

    Raises:
        RuntimeError: the process failed.
    """
    with tempfile.TemporaryDirectory() as answers:
        result = Path(answers) / "result.json"
        spec = {
            "rows": rows,
            "disk": str(settings.disk),
            "rounds": settings.repeats,
            "device": settings.device,
        }
        command = [sys.executable, "-m", "benchmarks.in_turn", json.dumps(spec), str(result)]
        ended = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=settings.timeout_s, check=False)
        if ended.returncode:
            raise RuntimeError(f"{rows} failed with exit code {ended.returncode}: {ended.stderr.strip()}")
        found: list[Any] = json.loads(result.read_text())
        return found


def read_round(pairs: list[Any]) -> Round:
    """Return a round that `measured_apart` gave, or a file holds."""
    return Round({(workload, mode): Pair(*pair) for (workload, mode), pair in pairs})


def measure_in_turn(rows: Sequence[Row], disk: Path, rounds: int) -> Iterator[Round]:
    """Measure rows in turn, here."""
    workloads = {name: workload_named(name) for name, _ in rows}
    ops = {name: count_ops(workload) for name, workload in workloads.items()}
    with contextlib.ExitStack() as limits:
        held = {
            row: limits.enter_context(ROWS[row[1]].start(workloads[row[0]], new_folder(ROWS[row[1]], disk)))
            for row in rows
            if ROWS[row[1]].group == "limits"
        }
        batches = dict.fromkeys(rows, 0)
        for number in range(rounds + 1):  # the first says how long batches are, and is not counted
            found: dict[Row, Pair] = {}
            for row in rows:
                workload, mode = workloads[row[0]], ROWS[row[1]]
                with contextlib.ExitStack() as entered:
                    sampler = held.get(row) or entered.enter_context(mode.start(workload, new_folder(mode, disk)))
                    discard(sampler(1))
                    if not number:
                        first = discard(sampler(1))
                        bare_s = timed(WARM_UP_STEPS, workload.step).wall_s / WARM_UP_STEPS
                        batches[row] = batch_steps(bare_s, first.wall_s, most_s=_BATCH_SECONDS)
                    found[row] = _pair(workload, sampler, batches[row], ops[row[0]])
            if number:
                yield Round(found)


def _pair(workload: Workload, sampler: Sampler, batch: int, ops: int) -> Pair:
    bare = timed(batch, workload.step)
    found = sampler(batch)
    discard(found)
    return Pair(bare.wall_s / batch, found.wall_s / batch, found.on_file_s / batch, ops)


def main() -> None:
    spec: dict[str, Any] = json.loads(sys.argv[1])
    torch.manual_seed(0)
    with torch.device(spec["device"]):
        found = list(measure_in_turn([(row[0], row[1]) for row in spec["rows"]], Path(spec["disk"]), spec["rounds"]))
    Path(sys.argv[2]).write_text(json.dumps([list(one.pairs.items()) for one in found]))


if __name__ == "__main__":
    main()
