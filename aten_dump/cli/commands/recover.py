"""``aten-dump recover``: finish interrupted dumps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ...dump import open_dump
from ...dump.foreign.foreign_rank import ForeignRank
from ...errors import AtenDumpError, MissingDataError
from ...store.recovery import recover
from ..console import echo, warn, with_progress
from ..formats import format_option, print_record
from ..options import dump_argument


@click.command("recover")
@dump_argument
@format_option("Lines to read, or one object as docs/json/recover.schema.json has it.")
def command(dump: Path, form: str) -> None:
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
    folders: list[dict[str, Any]] = []
    for rank in with_progress("recovering", ranks):
        try:
            if isinstance(rank, ForeignRank):
                raise MissingDataError(f"{rank.where} was recorded by another tool: there is nothing to recover from")
            report = recover(rank.directory)
        except AtenDumpError as error:
            warn(error)
            failed += 1
            folders.append({"path": rank.directory, "changed": False, "committed": False, "message": str(error)})
            continue
        changed += report.changed
        folders.append(
            {
                "path": rank.directory,
                "changed": report.changed,
                "committed": report.changed or report.committed,
                "message": report.message,
            }
        )
        failed += not (report.changed or report.committed)
        if report.changed or not report.committed:
            echo(f"step {rank.step} rank {rank.rank}: {report.message}")
    left = f", {failed} could not be" if failed else ""
    echo(f"{changed} of {len(ranks)} step/rank folders recovered, {len(ranks) - changed - failed} needed nothing{left}")
    if form == "json":
        print_record({"path": opened.path, "folders": folders})
    if failed:
        raise click.exceptions.Exit(2)
