"""Chains of steps: what one worker compares in order, as each step begins with what the one before left.

Theory of operation
    A worker hands over each step as it is done, as a file in a folder of its caller's: if it is killed at a later one,
    the steps before are not lost. A worker that cannot write there (on another machine) hands over at its end alone.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory

from .compare_steps import compare_steps
from .evidence.findings import RankEvidence
from .executors import finished
from .tasks import Task
from .young_garbage import young_garbage_only


@dataclass(frozen=True, slots=True)
class _Chain:
    """The steps of one pair of ranks, in order."""

    tasks: tuple[Task, ...]
    folder: str  # for what is handed over: a file for each step, named by its place

    @property
    def step(self) -> int:
        return self.tasks[0].step

    @property
    def rank(self) -> int:
        return self.tasks[0].rank


def compare_chains(
    chains: Iterable[Sequence[Task]], executor: Executor | None
) -> Iterator[tuple[Task, RankEvidence | None]]:
    """Yield each task with what was found; None where the process that worked on it ended before.

    Args:
        chains: the steps of each pair of ranks, in order.
        executor: runs a task for each chain; None runs them here.
    """
    if executor is None:
        for tasks in chains:
            with young_garbage_only():
                yield from zip(tasks, compare_steps(tasks), strict=True)
        return
    with TemporaryDirectory(prefix="aten_dump_") as folder:
        known = [_Chain(tuple(tasks), os.path.join(folder, str(number))) for number, tasks in enumerate(chains)]
        for chain, evidences in finished(_compare, known, executor):
            yield from zip_longest(chain.tasks, [*_handed_over(chain)] if evidences is None else evidences)


def _compare(chain: _Chain) -> list[RankEvidence]:
    found = []
    for number, evidence in enumerate(compare_steps(chain.tasks)):
        found.append(evidence)
        if number + 1 < len(chain.tasks):
            _hand_over(evidence, Path(chain.folder), number)
    return found


def _hand_over(evidence: RankEvidence, folder: Path, number: int) -> None:
    with suppress(OSError):
        folder.mkdir(exist_ok=True)
        partial = folder / "partial"
        partial.write_bytes(pickle.dumps(evidence, pickle.HIGHEST_PROTOCOL))
        partial.replace(folder / str(number))


def _handed_over(chain: _Chain) -> Iterator[RankEvidence]:
    """Yield what a worker that ended had handed over."""
    for number in range(len(chain.tasks)):
        try:
            evidence: RankEvidence = pickle.loads((Path(chain.folder) / str(number)).read_bytes())
        except FileNotFoundError:
            return
        yield evidence
