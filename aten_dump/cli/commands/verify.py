"""``aten-dump verify``: check every byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from ...analysis.executors import Verified, verify_all, verify_rank
from ...dump import Dump, open_dump
from ...errors import UnfinishedError
from ..console import byte_progress, count_progress, echo
from ..ending import never_end_well
from ..options import dump_argument
from ..workers import is_shared_out, jobs_option, workers


@click.command("verify")
@dump_argument
@jobs_option
def command(dump: Path, jobs: int) -> None:
    """Read all of DUMP and check every checksum of its indexes and shards.

    Exit code 0 when all is whole, 1 when there are problems, each a line; 2 when DUMP cannot be read at all. A step
    that `recover` has finished is not whole: what the program did after it was cut short is not in it. Of what other
    tools dumped, which has no checksums, it is checked that every file can be read and holds what its table says.

    \b
    Examples
      aten-dump verify dump && echo whole
      aten-dump verify dump --jobs 8
    """  # noqa: D301 - \b keeps click from filling lines
    folders = count = 0
    opened = open_dump(dump)
    for attempt in (opened, *opened.attempts.values()):
        checked, problems = _verify(attempt, jobs, "" if attempt is opened else f"{attempt.path.name} ")
        folders, count = folders + checked, count + problems
    echo(f"{folders} step/rank folders checked, {count} problems")
    if count:
        raise click.exceptions.Exit(1)


def _verify(dump: Dump, jobs: int, where: str) -> tuple[int, int]:
    """Check one attempt; return how many folders were checked, and how many problems there are."""
    folders, count = 0, len(dump.problems)
    for problem in dump.problems:
        echo(problem)
    for found in _side_by_side(dump, jobs) if is_shared_out(jobs) else _one_by_one(dump):
        for problem in found.problems:
            echo(f"{where}step {found.step} rank {found.rank}: {problem}")
        folders += 1
        count += len(found.problems)
    return folders, count


def _one_by_one(dump: Dump) -> Iterator[Verified]:
    for rank in dump.all_ranks():
        with byte_progress(f"step {rank.step} rank {rank.rank}") as update:
            found = verify_rank(rank.anew(), update)  # so that only one index is in memory at a time
        yield found


def _side_by_side(dump: Dump, jobs: int) -> list[Verified]:
    with workers(jobs) as executor, count_progress("verifying") as update:
        try:
            return verify_all(dump, executor, progress=update)
        except UnfinishedError as error:
            echo(str(error), err=True)
            never_end_well()
            return error.done
