"""One task for each step and rank, here or on any ``concurrent.futures.Executor``: threads, processes, a cluster.

Tasks and results are plain values: paths and numbers, no tensors and nothing that is open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ..dump import Dump, RankDump, open_dump
from ..dump.foreign.foreign_rank import ForeignRank, check_files
from ..store.checking.verification import verify

Task = TypeVar("Task")
Result = TypeVar("Result")
Progress = Callable[[int, int], None]  # tasks done, tasks in all


def each_rank(
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> list[Result]:
    """Run a function on each task and return the results in order; the first error is raised."""
    results: list[Result] = []
    for result in map(function, tasks) if executor is None else executor.map(function, tasks):
        results.append(result)
        if progress is not None:
            progress(len(results), len(tasks))
    return results


@dataclass(frozen=True, slots=True)
class Verified:
    """What was found in the files of one step and rank; `problems` are sentences, none when all is whole."""

    step: int
    rank: int
    problems: tuple[str, ...]


def verify_all(
    path: str | Path | Dump, executor: Executor | None = None, *, progress: Progress | None = None
) -> list[Verified]:
    """Check every byte of a dump, one task for each step and rank."""
    dump = path if isinstance(path, Dump) else open_dump(path)
    ranks = open_dump(dump.path.absolute()).all_ranks()  # a worker may be in another folder
    return each_rank(verify_rank, ranks, executor, progress)


def verify_rank(rank: RankDump, progress: Progress | None = None) -> Verified:
    """Check every byte of one step and rank; `progress` is told how many of how many bytes are read."""
    problems = check_files(rank) if isinstance(rank, ForeignRank) else verify(rank.directory, progress)
    if not problems and rank.lacks:  # its files are right, and something was lost before: it was recovered
        problems = [rank.lacks]
    return Verified(rank.step, rank.rank, tuple(problems))
