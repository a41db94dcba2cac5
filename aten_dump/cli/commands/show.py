"""``aten-dump show``: the tree of calls, or one call or tensor."""

from __future__ import annotations

from pathlib import Path

import click

from ...dump import RankDump
from ...report.details import call_details, value_details
from ...report.tree import call_line, tree_lines
from ..completion import complete_name
from ..console import echo, line_limit, print_lines
from ..options import dump_argument, filter_options, limit_option, place_options, selected
from ..places import Place


@click.command("show")
@dump_argument
@click.argument("name", required=False, shell_complete=complete_name)
@place_options
@filter_options
@click.option("--depth", type=click.IntRange(min=1), help="Leave out calls deeper in the tree than this.")
@limit_option(200, "lines")
def command(
    dump: Path,
    name: str | None,
    step: int | None,
    rank: int | None,
    op: str | None,
    kind: str | None,
    phase: str | None,
    mode: str | None,
    module: str | None,
    scope: str | None,
    call_name: str | None,
    depth: int | None,
    limit: int | None,
) -> None:
    """Print the tree of calls of one step and rank, or all about the call or tensor NAME.

    A line has the call's name, its inputs and outputs, and how long it took; f32[8, 128] is a float32
    tensor of that shape. With filters, the calls around a match are printed too, so that it has its place.

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
    if name is not None:
        print_lines([shown.line, *shown.other_steps(name), *_details(opened, name)], line_limit(limit))
        return
    if not len(opened.calls):
        echo(opened.why_no_calls or f"{opened.where} has no calls")
        return
    echo(shown.line)
    matched = selected(
        opened,
        {"op": op, "kind": kind, "phase": phase, "mode": mode, "module": module, "scope": scope, "name": call_name},
    )
    print_lines((call_line(line) for line in tree_lines(opened, matched, depth)), line_limit(limit))


def _details(rank: RankDump, name: str) -> list[str]:
    if name in rank or not _may_be_tensor(name):
        return list(call_details(rank[name]))
    return list(value_details(name, rank.value(name)))


def _may_be_tensor(name: str) -> bool:
    return any(f".{group}." in name for group in ("input", "output", "mutated"))
