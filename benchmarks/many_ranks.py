"""Measures commands on a job of many ranks of which one is wrong, and whether that one is named, as a Markdown table.

    python -m benchmarks.many_ranks FOLDER 64                     honest orders of summation, all faults, all commands
    python -m benchmarks.many_ranks FOLDER 1024 --faults 5-9,20 --orders none --commands none

The job is simulated in this process (`tests.analysis.meetings.many_ranks`). FOLDER keeps the honest run for the next
time; dumps with a fault are removed. Each measurement is a forked process: its processor time, its greatest memory,
and how many files it opened and folders it listed for each rank of each dump.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pickle
import shutil
import sys
from collections.abc import Callable, Container, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from aten_dump import compare
from aten_dump.cli.main import main as command_line
from aten_dump.config import Selection
from tests.analysis.meetings.many_ranks import FAULTS, ORDERS, is_named, record, record_beside

from .table import header

_COLUMNS: Final = ("ranks", "what", "processor time, s", "memory, MiB", "files and folders a rank", "found")
# {bad} and {honest} are dumps.
_COMMANDS: Final = {
    "compare": ("compare", "{bad}", "{honest}"),
    "nonfinite": ("nonfinite", "{bad}"),
    "replay": ("replay", "--all", "{bad}"),
    "check": ("check", "{honest}"),
    "ls": ("ls", "{honest}"),
    "hang": ("hang", "{honest}"),
    "verify": ("verify", "{honest}"),
}
_LOOK_UPS: Final = frozenset({"open", "os.listdir", "os.scandir"})


class Cost(NamedTuple):
    """What a function took in a process of its own."""

    seconds: float
    memory_bytes: int
    look_ups: int


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.many_ranks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, help="to record in")
    parser.add_argument("ranks", type=int)
    parser.add_argument("--faults", default="all", help=f"numbers from 0 to {len(FAULTS) - 1} as 0,5-9, all or none")
    parser.add_argument("--orders", default="all", help=f"of summation: {','.join(ORDERS)}, all or none")
    parser.add_argument("--commands", default="all", help=f"{','.join(_COMMANDS)}, all or none")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    job = _Job(arguments.folder, arguments.ranks)
    print(header(_COLUMNS), flush=True)
    for order in _chosen(arguments.orders, ORDERS):
        job.order(order)
    job.faults(number for number in range(len(FAULTS)) if number in _numbers(arguments.faults))
    for command in _chosen(arguments.commands, tuple(_COMMANDS)):
        job.command(command)


def _chosen(text: str, names: tuple[str, ...]) -> tuple[str, ...]:
    return names if text == "all" else tuple(name for name in names if name in text.split(","))


def _numbers(text: str) -> Container[int]:
    if text in ("all", "none"):
        return range(len(FAULTS) if text == "all" else 0)
    return Selection.parse("--faults", text.replace(",", "|"), owner="")


class _Job:
    """An honest run, and what is compared with it."""

    def __init__(self, folder: Path, ranks: int) -> None:
        self._folder, self._ranks = folder, ranks
        self._honest = folder / f"honest-{ranks}"
        if not self._honest.exists():
            record(folder / "part", ranks)
            (folder / "part").rename(self._honest)

    def order(self, order: str) -> None:
        with self._removed("order") as other:
            record(other, self._ranks, order=order)
            found, cost = _measured(partial(_accused, other, self._honest))
        self._print(f"compare, sums added up {order}", cost, found)

    def faults(self, numbers: Iterator[int]) -> None:
        named = total = 0
        for number in numbers:
            fault, bad = FAULTS[number], self._bad(number)
            with self._removed("bad") as other:
                record_beside(self._honest, other, self._ranks, fault, bad)
                why, cost = _measured(partial(is_named, other, self._honest, fault, bad))
            total, named = total + 1, named + (not why)
            self._print(f"compare, fault {number}: {fault.name}, rank {bad}", cost, why or "named")
        if total:
            print(f"\n{named} of {total} named with their rank, and nobody else accused\n", flush=True)

    def command(self, name: str) -> None:
        number = 10 if name == "nonfinite" else 0
        with self._removed("bad") as other:
            if "{bad}" in _COMMANDS[name]:
                record_beside(self._honest, other, self._ranks, FAULTS[number], self._bad(number))
            places = {"bad": str(other), "honest": str(self._honest)}
            line = [part.format(**places) for part in _COMMANDS[name]]
            found, cost = _measured(partial(_exit_code, line))
        self._print(" ".join(_COMMANDS[name]), cost, f"exit code {found}")

    def _bad(self, number: int) -> int:
        return (number * 37 + self._ranks // 2 + 1) % self._ranks

    @contextlib.contextmanager
    def _removed(self, name: str) -> Iterator[Path]:
        folder = self._folder / name
        shutil.rmtree(folder, ignore_errors=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _print(self, what: str, cost: Cost, found: str) -> None:
        numbers = f"{cost.seconds:.1f} | {cost.memory_bytes >> 20} | {cost.look_ups / self._ranks:.1f}"
        print(f"| {self._ranks} | {what} | {numbers} | {found} |", flush=True)


def _accused(other: Path, honest: Path) -> str:
    found = compare(other, honest)
    return f"{found.verdict}, {sum(1 for one in found.ranks if one.findings)} accused"


def _exit_code(line: list[str]) -> int:
    """Run a command whose output nobody reads."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    try:
        command_line(line, standalone_mode=True)
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def _measured(function: Callable[[], Any]) -> tuple[Any, Cost]:
    """Run a function in a process of its own, so that its memory is not that of what ran before."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        looked = [0]
        sys.addaudithook(lambda event, given: looked.__setitem__(0, looked[0] + (event in _LOOK_UPS)))
        with os.fdopen(writing, "wb") as out:
            found = function()
            pickle.dump((found, looked[0]), out)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as given:
        answer = given.read()
    _, status, used = os.wait4(child, 0)
    if status:
        raise RuntimeError(f"the process that was measured ended with status {status}")
    found, looked_up = pickle.loads(answer)
    return found, Cost(used.ru_utime + used.ru_stime, used.ru_maxrss << 10, looked_up)


if __name__ == "__main__":
    main()
