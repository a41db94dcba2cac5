"""``aten-dump show``: the tree of calls, or one call or tensor."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import click

from ...dump import RankDump
from ...dump.call_filter import Wanted
from ...report.details import call_details, value_details
from ...report.records import call_record, tree_record, value_record
from ...report.tree import call_line, tree_lines
from ..completion import complete_name
from ..console import echo, line_limit, print_lines
from ..formats import format_option, print_record
from ..options import dump_argument, filter_options, limit_option, place_options, selected
from ..places import Place


@click.command("show")
@dump_argument
@click.argument("name", required=False, shell_complete=complete_name)
@place_options
@filter_options
@click.option("--depth", type=click.IntRange(min=1), help="Print the tree down to this depth.")
@format_option("show")
@limit_option(200, "lines")
def command(
    dump: Path,
    name: str | None,
    step: int | None,
    rank: int | None,
    wanted: Wanted,
    depth: int | None,
    form: str,
    limit: int | None,
) -> None:
    """Print the tree of calls of one step and rank, or everything about the call or tensor NAME.

    A line has the name of a call, its inputs and outputs, and its duration. f32[8, 128] is a float32 tensor of that
    shape. With filters, the calls around each match are printed too, to show its place.

    \b
    Examples
      aten-dump show dump --depth 2
      aten-dump show dump --op addmm --phase backward
      aten-dump show dump --module 'transformer.h.0.*' --step 3
      aten-dump show dump Aten.addmm.3.forward
      aten-dump show dump Aten.addmm.3.forward.output.0
    """  # noqa: D301 - \b keeps click from filling lines
    shown = Place(dump, step, rank)
    opened = shown.rank
    if name is not None and form == "json":
        _print_record(opened, **_record(opened, name))
        return
    if name is not None:
        print_lines([shown.line, *shown.other_steps(name), *_details(opened, name)], line_limit(limit))
        return
    if not len(opened.calls) and form == "text":
        echo(opened.why_no_calls or f"{opened.where} has no calls")
        return
    echo(shown.line)
    matched = selected(opened, wanted)
    lines = tree_lines(opened, matched, depth)
    if form == "json":
        _print_record(opened, calls=[tree_record(line) for line in islice(lines, limit or None)])
    else:
        print_lines(map(call_line, lines), line_limit(limit))


def _print_record(rank: RankDump, **found: Any) -> None:
    absent = {"calls": None, "call": None, "value": None}
    print_record({"path": rank.directory.parent.parent, "step": rank.step, "rank": rank.rank, **absent, **found})


def _record(rank: RankDump, name: str) -> dict[str, Any]:
    if name in rank or not _may_be_tensor(name):
        return {"call": call_record(rank[name])}
    return {"value": {"name": name, **value_record(rank.value(name), elements=True)}}


def _details(rank: RankDump, name: str) -> list[str]:
    if name in rank or not _may_be_tensor(name):
        return list(call_details(rank[name]))
    return list(value_details(name, rank.value(name)))


def _may_be_tensor(name: str) -> bool:
    return any(f".{group}." in name for group in ("input", "output", "mutated"))
