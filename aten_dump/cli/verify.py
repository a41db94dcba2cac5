"""``aten-dump verify``: check every byte."""

from __future__ import annotations

from pathlib import Path

import click

from ..dump import open_dump
from ..store import recovery
from .console import byte_progress
from .options import dump_argument


@click.command("verify")
@dump_argument
def command(dump: Path) -> None:
    """Read all of DUMP and check every checksum of its indexes and shards.

    Exit code 0 when all is whole, 1 when there are problems, each a line; 2 when DUMP cannot be read at all.

    \b
    Examples
      aten-dump verify dump && echo whole
    """  # noqa: D301 - \b keeps click from filling lines
    ranks = open_dump(dump).all_ranks()
    problems: list[str] = []
    for rank in ranks:
        with byte_progress(f"step {rank.step} rank {rank.rank}") as update:
            found = recovery.verify(rank.directory, update)
        for problem in found:
            click.echo(f"step {rank.step} rank {rank.rank}: {problem}")
        problems += found
    click.echo(f"{len(ranks)} step/rank folders checked, {len(problems)} problems")
    if problems:
        raise click.exceptions.Exit(1)
