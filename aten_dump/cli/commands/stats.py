"""``aten-dump stats``: values and their statistics as a table, CSV or JSON."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import click

from ...dump import Call, RankDump
from ...report.terminal_tables import statistics_table
from ...report.value_rows import columns, value_rows, write_csv, write_json
from ..console import echo, line_limit, print_table, say_left_out
from ..files import opened as opened_file
from ..options import dump_argument, filter_options, limit_option, place_options, selected
from ..places import Place


@click.command("stats")
@dump_argument
@place_options
@filter_options
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "json"]),
    default="table",
    show_default=True,
    help="A table to look at, or all columns for another program.",
)
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="File to write.  [default: stdout]")
@limit_option(200, "rows")
def command(
    dump: Path,
    step: int | None,
    rank: int | None,
    op: str | None,
    kind: str | None,
    phase: str | None,
    mode: str | None,
    module: str | None,
    scope: str | None,
    call_name: str | None,
    form: str,
    output: Path | None,
    limit: int | None,
) -> None:
    """Print the statistics of the values of one step and rank, a row for each call and input or output.

    CSV and JSON have more columns than the table: op, module, dtype, shape, stride, device, hash.

    \b
    Examples
      aten-dump stats dump --op layer_norm
      aten-dump stats dump --phase backward --kind api --format csv --output backward.csv
      aten-dump stats dump --format json | jq '.[] | select(.nan > 0) | .call'
    """  # noqa: D301 - \b keeps click from filling lines
    shown = Place(dump, step, rank, err=form != "table" and output is None)
    opened = shown.rank
    matched = selected(
        opened,
        {"op": op, "kind": kind, "phase": phase, "mode": mode, "module": module, "scope": scope, "name": call_name},
    )
    calls = opened.calls if matched is None else matched
    if form == "table":
        if output is not None:
            raise click.UsageError("--output needs --format csv or json; a table goes to the terminal")
        echo(shown.line)
        _print_table(opened, calls, line_limit(limit))
        return
    rows = islice(value_rows(calls), limit or None)
    with opened_file(output, [dump]) as file:
        {"csv": write_csv, "json": write_json}[form](rows, columns([opened]), file)


def _print_table(rank: RankDump, calls: Iterable[Call], limit: int | None) -> None:
    names = list(rank.config.get("statistics", ()))
    table, left_out = statistics_table(calls, names, limit)
    print_table(table)
    say_left_out(left_out, "rows")
