"""``aten-dump stats``: values and their statistics as a table, CSV or JSON."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import click

from ...dump import Call, RankDump, open_dump
from ...dump.call_filter import Wanted
from ...dump.dataframes.call_columns import ColumnType
from ...errors import AtenDumpError, MissingDataError
from ...export.chosen_calls import require
from ...export.formats.to_parquet import ParquetFile
from ...plain_text import CsvRows
from ...report.over_steps import Row, over_steps_columns, over_steps_table, rows_over_steps
from ...report.terminal_tables import statistics_table
from ...report.value_rows import columns, value_rows, write_csv, write_json
from ...whole_files import refuse_to_replace_part_of, replaced_when_whole
from ..console import echo, line_limit, print_table, say_left_out, with_progress
from ..files import opened as opened_file
from ..in_turn import ReadInTurn
from ..options import dump_argument, filter_options, limit_option, place_options, selected
from ..places import Place


@click.command("stats")
@dump_argument
@place_options
@filter_options
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "json", "parquet"]),
    default="table",
    show_default=True,
    help="A table, or all columns for another program. Schemas of the JSON object: docs/json/stats.schema.json or "
    "docs/json/stats-over-steps.schema.json.",
)
@click.option(
    "--over-steps",
    is_flag=True,
    help="All steps and ranks in one table: how each result changed, or with csv and parquet the numbers of each step.",
)
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="File to write.  [default: stdout]")
@limit_option(200, "rows")
def command(
    dump: Path,
    step: int | None,
    rank: int | None,
    wanted: Wanted,
    form: str,
    over_steps: bool,
    output: Path | None,
    limit: int | None,
) -> None:
    """Print the statistics of one step and rank, a row for each input and output of each call.

    CSV and JSON have more columns than the table: op, module, dtype, shape, stride, device, hash.

    \b
    Examples
      aten-dump stats dump --op layer_norm
      aten-dump stats dump --phase backward --kind api --format csv --output backward.csv
      aten-dump stats dump --over-steps --kind module
      aten-dump stats dump --over-steps --format csv --output steps.csv
      aten-dump stats dump --format json | jq '.rows[] | select(.nan > 0) | .call'
    """  # noqa: D301 - \b keeps click from filling lines
    if form == "table" and output is not None:
        raise click.UsageError("--output needs --format csv or json (or parquet); a table goes to the terminal")
    if over_steps:
        if step is not None:
            raise click.UsageError("--over-steps takes all steps: leave out --step")
        asked = ReadInTurn(open_dump(dump), ranks=None if rank is None else (rank,))
        _over_steps(asked, None if wanted == Wanted() else wanted, (form, output), limit)
        return
    if form == "parquet":
        raise click.UsageError("--format parquet goes with --over-steps; `aten-dump export --to parquet` writes all")
    shown = Place(dump, step, rank, err=form != "table" and output is None)
    opened = shown.rank
    matched = selected(opened, wanted)
    calls = opened.calls if matched is None else matched
    if form == "table":
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


def _over_steps(reading: ReadInTurn, wanted: Wanted | None, where: tuple[str, Path | None], limit: int | None) -> None:
    """Print or write the statistics of results over all steps."""
    if where == ("parquet", None):
        raise click.UsageError("--format parquet needs --output FILE")
    try:
        _show(reading, wanted, where, limit)
    except AtenDumpError:
        reading.say_not_whole()
        raise


def _show(reading: ReadInTurn, wanted: Wanted | None, where: tuple[str, Path | None], limit: int | None) -> None:
    form, output = where
    if not any(one.config.get("statistics") for one in reading.ranks[:1]):
        raise MissingDataError(f'{reading.dump.path} has no statistics; record again with DumpConfig.data="statistic"')
    columns = over_steps_columns(reading.ranks)
    names = list(columns)
    ranks = reading.each(with_progress("reading", reading.ranks))
    rows = rows_over_steps(ranks, wanted, names[names.index("slot") + 1 :])
    if form == "table":
        table, left_out = over_steps_table(rows, names, line_limit(limit))
        reading.say_not_whole()
        print_table(table)
        say_left_out(left_out, "rows")
        return
    if output is None:
        reading.say_not_whole()  # before the first row
    _write(islice(rows, limit or None), columns, (form, output), reading.dump.path)
    reading.say_not_whole()


def _write(rows: Iterable[Row], columns: dict[str, ColumnType], where: tuple[str, Path | None], dump: Path) -> None:
    form, output = where
    names = list(columns)
    if form == "parquet" and output is not None:
        require("pyarrow", "parquet")
        refuse_to_replace_part_of([dump], output)
        with replaced_when_whole(output) as part:
            file = ParquetFile(part, columns)
            for row in rows:
                file.add(row)
            file.close()
        return
    with opened_file(output, [dump]) as text:
        if form == "json":
            write_json((dict(zip(names, row, strict=True)) for row in rows), names, text)
            return
        writer = CsvRows(text)
        writer.write(names)
        for row in rows:
            writer.write(row)
