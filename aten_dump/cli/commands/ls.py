"""``aten-dump ls``: what a dump holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from ...analysis.live_collectives import collectives_of
from ...dump import Dump, RankDump, open_dump
from ...dump.index.summary import Summary
from ...dump.shown.command_lines import command_line
from ...dump.shown.step_ranks import told_together
from ...report.terminal_tables import collectives_table, note_sentences, run_lines, steps_table
from ..console import echo, print_lines, print_table, with_progress
from ..options import dump_argument

# Up to here all indexes are read in about a second, and the details come without asking.
_QUICK_INDEX_BYTES: Final = 64 << 20


@click.command("ls")
@dump_argument
@click.option(
    "--details/--no-details",
    default=None,
    help="Read the indexes: calls by kind, notes, what is missing.  [default: when they are under 64 MiB in all]",
)
@click.option(
    "--live",
    is_flag=True,
    help="For a run that hangs, or may: the last and the pending collective of each rank and group, and what ranks do "
    "not agree in. Exit code 1 where there is something.",
)
def command(dump: Path, details: bool | None, live: bool) -> None:
    """Print what DUMP holds: the run, and for each step and rank its state, calls, values and bytes.

    Without details only the two ends of each index are read: quick for thousands of steps and ranks.

    \b
    Examples
      aten-dump ls dump
      aten-dump ls dump --details
      aten-dump ls dump --live
    """  # noqa: D301 - \b keeps click from filling lines
    opened = open_dump(dump)
    if live:
        _print_live(opened)
        return
    print_lines(run_lines(opened))
    ranks = opened.all_ranks()
    summaries = [rank.summary() for rank in with_progress("reading", ranks)]
    if details is None:
        details = sum(summary.index_bytes for summary in summaries) <= _QUICK_INDEX_BYTES
    kinds: dict[RankDump, Counter[str]] | None = None
    notes: list[tuple[int, int, str]] = []
    if details:
        kinds = {}
        # Each step and rank is opened anew, so that only one index is in memory at a time.
        for rank in with_progress("reading indexes", ranks):
            fresh = rank.anew()
            kinds[rank] = fresh.calls_by_kind()
            notes += ((rank.step, rank.rank, sentence) for sentence in note_sentences(fresh))
    print_table(steps_table(zip(ranks, summaries, strict=True), kinds))
    print_lines([*_interrupted(ranks, summaries, dump), *opened.problems, *told_together(notes)])


def _print_live(dump: Dump) -> None:
    """Print what the ranks are at."""
    latest: dict[int, RankDump] = {}
    for rank in dump.all_ranks():
        latest[rank.rank] = max(rank, latest.get(rank.rank, rank), key=lambda one: one.step)
    if not latest:
        echo("no rank has written a step yet")
        return
    step = min(rank.step for rank in latest.values())
    ahead = [f"rank {number} is in step {rank.step}" for number, rank in latest.items() if rank.step > step]
    groups = collectives_of([rank for rank in dump.all_ranks() if rank.step >= step], dump.expected_ranks)
    print_lines(f"{words}; the others are in step {step}" for words in ahead)
    print_table(collectives_table({number: rank.step for number, rank in latest.items()}, groups))
    found = [words for group in groups for words in group.mismatches()]
    print_lines(found or ["the ranks agree in all collectives that they have begun"])
    if found:
        raise click.exceptions.Exit(1)


def _interrupted(ranks: Sequence[RankDump], summaries: Sequence[Summary], dump: Path) -> list[str]:
    count = sum(summary.commit is None for summary in summaries)
    if not count:
        return []
    finish = command_line("recover", dump)
    return [f"{count} of {len(ranks)} step/rank folders are interrupted; `{finish}` finishes them"]
