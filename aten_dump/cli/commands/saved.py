"""``aten-dump saved``: what forward keeps alive for backward."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ...dump import RankDump
from ...dump.foreign.foreign_rank import ForeignRank
from ...dump.saved_for_backward import SavedForBackward
from ...errors import MissingDataError
from ...report.terminal_tables import offload_by_module, saved_by_call, saved_by_module
from ...report.units import format_bytes
from ..console import echo, line_limit, print_table
from ..formats import format_option, print_record
from ..options import dump_argument, limit_option, place_options
from ..places import Place

_UNRECORDED = "what autograd keeps is not known: another tool recorded this, which does not say"
_UNTOLD = "Backward ran: either its nodes saved no tensor, or this torch does not say (docs/limitations.md)"


@click.command("saved")
@dump_argument
@place_options
@click.option(
    "--depth", type=click.IntRange(min=1), help="Cut module paths to this many names and sum up inner modules."
)
@click.option(
    "--offload",
    is_flag=True,
    help="Estimate offloading to host memory or disk: bytes that are freed and bytes that are moved.",
)
@format_option("saved")
@limit_option(30, "rows of a table")
def command(
    dump: Path, step: int | None, rank: int | None, depth: int | None, offload: bool, form: str, limit: int | None
) -> None:
    """Print the memory that forward calls keep alive for backward, by call and by module.

    A sum counts each storage once, however many views and calls keep it. A storage that two calls (or modules) keep
    counts in the rows of both.

    \b
    Examples
      aten-dump saved dump
      aten-dump saved dump --depth 3 --limit 10
      aten-dump saved dump --offload --depth 2
    """  # noqa: D301 - \b keeps click from filling lines
    shown = Place(dump, step, rank)
    recorded = shown.rank
    if isinstance(recorded, ForeignRank):
        raise MissingDataError(f"{recorded.where}: {_UNRECORDED}")
    saved = recorded.saved_for_backward()
    if form == "json":
        print_record(_record(recorded, saved, depth))
        return
    most = line_limit(limit, default=30)
    echo(shown.line)
    total, outside = saved.nbytes, saved.outside_nbytes
    echo(f"{format_bytes(total)} kept for backward by {len(saved)} autograd nodes ({total} bytes)")
    echo(f"{format_bytes(outside)} of it are parameters, buffers and inputs, which exist anyway ({outside} bytes)")
    if not saved and any(call.phase == "backward" for call in recorded.calls):
        echo(_UNTOLD)
    if offload:
        echo()
        print_table(offload_by_module(saved, depth, most))
    elif saved:
        echo()
        print_table(saved_by_module(saved, depth, most))
        echo()
        print_table(saved_by_call(saved, most))


def _record(rank: RankDump, saved: SavedForBackward, depth: int | None) -> dict[str, Any]:
    calls = sorted(saved.by_call().items(), key=lambda item: -item[1])
    return {
        "path": rank.directory.parent.parent,
        "step": rank.step,
        "rank": rank.rank,
        "bytes": saved.nbytes,
        "outside_bytes": saved.outside_nbytes,
        "nodes": len(saved),
        "by_module": [{"module": name, "bytes": nbytes} for name, nbytes in saved.by_module(depth).items()],
        "by_call": [
            {"call": call and call.name, "module": call and call.module, "bytes": nbytes} for call, nbytes in calls
        ],
        "offload": saved.offload(depth),
    }
