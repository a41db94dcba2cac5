"""One task for each step and rank, here or on any ``concurrent.futures.Executor``: threads, processes, a cluster.

Tasks and results are plain values: paths and numbers, no tensors and nothing that is open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeVar

from ..dump import Dump, RankDump, open_dump
from ..dump.foreign.foreign_rank import ForeignRank, check_files
from ..dump.shown.step_ranks import step_and_ranks
from ..errors import UnfinishedError
from ..store.checking.verification import verify
from .young_garbage import young_garbage_only


class OfRank(Protocol):
    """What a task says of itself."""

    @property
    def step(self) -> int: ...

    @property
    def rank(self) -> int: ...


Task = TypeVar("Task", bound=OfRank)
Result = TypeVar("Result")
_KILLED_OF_DASK: Final = "KilledWorker"  # workers ended over a task, again and again
Progress = Callable[[int, int], None]  # tasks done, tasks in all


def finished(
    function: Callable[[Task], Result], tasks: Sequence[Task], executor: Executor | None = None
) -> Iterator[tuple[Task, Result | None]]:
    """Yield each task with its result, in order; None where the process that worked on it ended before."""
    if executor is None:
        yield from ((task, _alone(function, task)) for task in tasks)
        return
    futures = [_submitted(executor, function, task) for task in tasks]
    try:
        for task, future in zip(tasks, futures, strict=True):
            try:
                yield task, None if future is None else future.result()
            except Exception as error:
                if not isinstance(error, BrokenExecutor) and type(error).__name__ != _KILLED_OF_DASK:
                    raise
                yield task, None
    finally:
        for future in futures:
            if future is not None:
                future.cancel()


def _alone(function: Callable[[Task], Result], task: Task) -> Result:
    """Run a function on a task; nothing of what it read stays in memory."""
    with young_garbage_only():
        return function(task)


def _submitted(executor: Executor, function: Callable[[Task], Result], task: Task) -> Future[Result] | None:
    try:
        return executor.submit(_alone, function, task)
    except BrokenExecutor:  # a worker that ended takes the others with it
        return None


def why_unfinished(places: Iterable[tuple[int, int]]) -> str:
    """Return the sentence about steps and ranks whose worker ended.

    Args:
        places: step and rank of each.
    """
    ranks: dict[int, list[int]] = {}
    for step, rank in places:
        ranks.setdefault(step, []).append(rank)
    named = ", ".join(step_and_ranks(step, found) for step, found in ranks.items())
    return f"a worker process ended (killed, or out of memory) before its work on {named} was done; try fewer --jobs"


def each_rank(
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> list[Result]:
    """Run a function on each task, of one step and rank, and return the results in order; the first error is raised.

    Raises:
        UnfinishedError: workers ended before they were done; it has the results of the others.
    """
    results: list[Result] = []
    lost: list[tuple[int, int]] = []
    for task, result in finished(function, tasks, executor):
        if result is None:
            lost.append((task.step, task.rank))
            continue
        results.append(result)
        if progress is not None:
            progress(len(results), len(tasks))
    if lost:
        raise UnfinishedError(why_unfinished(lost), results)
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
    """Check every byte of one step and rank; `progress` is called with how many of how many bytes are read."""
    problems = check_files(rank) if isinstance(rank, ForeignRank) else verify(rank.directory, progress)
    if not problems and rank.lacks:  # its files are right, and something was lost before: it was recovered
        problems = [rank.lacks]
    return Verified(rank.step, rank.rank, tuple(problems))
