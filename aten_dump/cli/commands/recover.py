"""``aten-dump recover``: finish interrupted dumps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ...dump import RankDump, open_dump
from ...dump.foreign.foreign_rank import ForeignRank
from ...errors import AtenDumpError, ConfigError, MissingDataError
from ...store.objects.url_path import UrlPath, place_of
from ...store.recovery import recover
from ...store.spool.joining import Joined, join_spool
from ...store.spool.places import spools_here, unfinished_uploads
from ..console import echo, warn, with_progress
from ..formats import format_option, print_record
from ..options import dump_argument


@click.command("recover")
@dump_argument
@format_option("recover")
@click.option(
    "--spool",
    type=click.Path(path_type=Path, file_okay=False),
    help="The DumpConfig.spool of a run that recorded to a URL.",
)
def command(dump: Path, form: str, spool: Path | None) -> None:
    """Finish every interrupted step and rank of DUMP: drop the torn tail, complete shards, commit.

    Whatever was written whole is kept. Complete steps are not changed, and the command can be run again. A recovered
    step stays marked as interrupted or damaged, as nobody knows what it lost.

    If DUMP is a URL, files of its run in the spool on this machine are completed, uploaded and then removed.

    Exit code 0: all recovered; 2: a step and rank could not be recovered (all others were).

    \b
    Examples
      aten-dump recover dump
      aten-dump recover s3://bucket/run
    """  # noqa: D301 - \b keeps click from filling lines
    place = place_of(dump)
    if isinstance(place, UrlPath):
        _join(place, spool, form)
        return
    if spool is not None:
        raise ConfigError(f"--spool is for a URL, and {dump} is a local path")
    opened = open_dump(dump)
    ranks = [rank for attempt in (opened, *opened.attempts.values()) for rank in attempt.all_ranks()]
    folders = [_recovered(rank) for rank in with_progress("recovering", ranks)]
    changed, failed = sum(one["changed"] for one in folders), sum(not one["committed"] for one in folders)
    left = f", {failed} could not be" if failed else ""
    echo(f"{changed} of {len(ranks)} step/rank folders recovered, {len(ranks) - changed - failed} needed nothing{left}")
    if form == "json":
        print_record({"path": opened.path, "folders": folders})
    if failed:
        raise click.exceptions.Exit(2)


def _recovered(rank: RankDump) -> dict[str, Any]:
    """Recover a step and rank, and return what came of it."""
    try:
        if isinstance(rank, ForeignRank):
            raise MissingDataError(f"{rank.where} was recorded by another tool: there is nothing to recover from")
        report = recover(rank.directory)
    except AtenDumpError as error:
        warn(error)
        return {"path": rank.directory, "changed": False, "committed": False, "message": str(error)}
    committed = report.changed or report.committed
    if report.changed or not report.committed:
        echo(f"step {rank.step} rank {rank.rank}: {report.message}")
    return {"path": rank.directory, "changed": report.changed, "committed": committed, "message": report.message}


def _record(one: Joined) -> dict[str, Any]:
    """Return what came of a folder of the spool."""
    message = str(one.error) if one.error is not None else "" if one.report is None else one.report.message
    changed = one.report is not None and one.report.changed
    return {
        "path": f"step_{one.step}/rank_{one.rank}",
        "changed": changed,
        "committed": one.error is None,
        "message": message,
    }


def _join(place: UrlPath, spool: Path | None, form: str) -> None:
    """Upload what runs have left on this machine."""
    place.forget()
    joined = [one for folder in spools_here(place, spool) for one in join_spool(folder, place)]
    for one in joined:
        if one.error is not None:
            warn(one.error)
        elif one.report is not None and one.report.changed:
            echo(f"step {one.step} rank {one.rank}: {one.report.message}")
    failed = sum(one.error is not None for one in joined)
    left = f", {failed} could not be" if failed else ""
    if joined:
        echo(f"{len(joined) - failed} of {len(joined)} step/rank folders of the spool uploaded{left}")
    else:
        echo(f"nothing of {place} is left on this machine")
    if form == "json":
        print_record({"path": str(place), "folders": [_record(one) for one in joined]})
    elsewhere = unfinished_uploads(place)
    for text in elsewhere:
        echo(text, err=True)
    if failed or elsewhere:
        raise click.exceptions.Exit(2)
