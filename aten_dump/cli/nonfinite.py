"""``aten-dump nonfinite``: where NaN and Inf came from."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from ..analysis.nonfinite import NEAR, NonFinite, find_nonfinite
from ..dump import RankDump, open_dump
from ..report.nonfinite import answer_lines, events_table, near_lines
from .console import is_terminal, line_limit, print_lines, print_table, say_left_out, with_progress
from .options import dump_argument, limit_option, place_options

_NEAR_SHOWN: Final = 5


@click.command("nonfinite")
@dump_argument
@place_options
@click.option("--all", "show_all", is_flag=True, help="Show the calls that only passed non-finite values on, too.")
@click.option(
    "--near",
    type=click.FloatRange(0, 1, min_open=True),
    default=NEAR,
    show_default=True,
    help="Share of a dtype's greatest number beyond which a value is near overflow.",
)
@limit_option(30, "rows of a table")
def command(dump: Path, step: int | None, rank: int | None, show_all: bool, near: float, limit: int | None) -> None:
    """Print what made NaN and Inf in DUMP: producers in execution order, and masks put there on purpose.

    All steps and ranks are searched, or those of --step and --rank. Statistics are enough. Exit code 0: nothing
    made a NaN or Inf but masks; 1: something did.

    \b
    Examples
      aten-dump nonfinite dump
      aten-dump nonfinite dump --step 5 --rank 0 --all
    """  # noqa: D301 - \b keeps click from filling lines
    most = line_limit(limit, default=30)
    bad = 0
    for place in with_progress("searching", _places(dump, step, rank)):
        # Opened anew, so that only one index is in memory at a time.
        found = find_nonfinite(RankDump(place.directory, place.step, place.rank), near)
        bad += found.first is not None
        _print(found, most, show_all)
    if bad:
        raise click.exceptions.Exit(1)


def _places(path: Path, step: int | None, rank: int | None) -> list[RankDump]:
    dump = open_dump(path)
    if step is not None:
        dump.step(step)  # says what there is, where this one is not
    if step is not None and rank is not None:
        return [dump.rank(step, rank)]
    return [p for p in dump.all_ranks() if step in (None, p.step) and rank in (None, p.rank)]


def _print(found: NonFinite, limit: int | None, show_all: bool) -> None:
    print_lines(answer_lines(found))
    print_lines(near_lines(found, _NEAR_SHOWN if limit is not None else None))
    table, left_out = events_table(found, limit, propagators=show_all, is_terminal=is_terminal())
    if table.row_count:
        click.echo()
        print_table(table)
        say_left_out(left_out, "rows")
        click.echo()
