"""``aten-dump verify``: check every byte."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import click

from ...analysis.executors import Verified, verify_all, verify_rank
from ...dump import Dump, open_dump
from ...errors import UnfinishedError
from ..console import byte_progress, count_progress, echo, print_lines
from ..ending import never_end_well
from ..formats import format_option, print_record
from ..options import dump_argument
from ..workers import is_shared_out, jobs_option, workers


@click.command("verify")
@dump_argument
@jobs_option
@format_option("verify")
def command(dump: Path, jobs: int, form: str) -> None:
    """Read all of DUMP and check every checksum of its indexes and shards.

    A step that `recover` has finished is incomplete: it lacks what the program did later. Dumps of other tools have no
    checksums: each file must be readable and match its table.

    Exit code 0: all is whole; 1: there are problems, a line each; 2: DUMP cannot be read at all.

    \b
    Examples
      aten-dump verify dump && echo whole
      aten-dump verify dump --jobs 8
    """  # noqa: D301 - \b keeps click from filling lines
    folders, problems = [], []
    opened = open_dump(dump)
    for attempt in (opened, *opened.attempts.values()):
        problems += attempt.problems
        if form == "text":
            print_lines(attempt.problems)
        name = "" if attempt is opened else attempt.path.name
        for found in _side_by_side(attempt, jobs) if is_shared_out(jobs) else _one_by_one(attempt):
            folders.append({"attempt": name, **dataclasses.asdict(found)})
            if form == "text":
                where = f"{name} step" if name else "step"
                print_lines(f"{where} {found.step} rank {found.rank}: {problem}" for problem in found.problems)
    count = len(problems) + sum(len(one["problems"]) for one in folders)
    if form == "json":
        print_record({"path": opened.path, "problems": problems, "folders": folders})
    else:
        echo(f"{len(folders)} step/rank folders checked, {count} problems")
    if count:
        raise click.exceptions.Exit(1)


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
