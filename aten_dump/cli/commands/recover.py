"""``aten-dump recover``: finish interrupted dumps."""

from __future__ import annotations

from pathlib import Path

import click

from ...dump import open_dump
from ...dump.foreign.foreign_rank import ForeignRank
from ...errors import AtenDumpError, MissingDataError
from ...store.recovery import recover
from ..console import echo, warn, with_progress
from ..options import dump_argument


@click.command("recover")
@dump_argument
def command(dump: Path) -> None:
    """Finish every interrupted step and rank of DUMP: drop the torn tail, complete shards, commit.

    Nothing that was written whole is lost; complete steps are left as they are. It can be run again.
    Exit code 2 when a step and rank could not be recovered; the others are all the same. What was recovered stays
    known as interrupted or damaged: nobody knows what it lost.

    \b
    Examples
      aten-dump recover dump
    """  # noqa: D301 - \b keeps click from filling lines
    opened = open_dump(dump)
    ranks = [rank for attempt in (opened, *opened.attempts.values()) for rank in attempt.all_ranks()]
    changed, failed = 0, 0
    for rank in with_progress("recovering", ranks):
        try:
            if isinstance(rank, ForeignRank):
                raise MissingDataError(f"{rank.where} was recorded by another tool: there is nothing to recover from")
            report = recover(rank.directory)
        except AtenDumpError as error:
            warn(error)
            failed += 1
            continue
        changed += report.changed
        failed += not (report.changed or report.committed)
        if report.changed or not report.committed:
            echo(f"step {rank.step} rank {rank.rank}: {report.message}")
    left = f", {failed} could not be" if failed else ""
    echo(f"{changed} of {len(ranks)} step/rank folders recovered, {len(ranks) - changed - failed} needed nothing{left}")
    if failed:
        raise click.exceptions.Exit(2)
