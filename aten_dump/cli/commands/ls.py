"""``aten-dump ls``: what a dump holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from ...analysis.hang import hang
from ...analysis.meetings.group_trees import group_lines, group_rows, groups_of
from ...analysis.meetings.meeting_points import RankGroup
from ...dump import RankDump, open_dump
from ...dump.index.summary import Summary
from ...dump.shown.command_lines import command_line
from ...dump.shown.step_ranks import over_ranks
from ...dump.wholeness import lacks_of
from ...errors import AtenDumpError
from ...report.terminal_tables import UNCHECKED, note_sentences, run_lines, scopes_line, steps_table
from ..console import echo, print_lines, print_table, with_progress
from ..formats import format_option, print_record
from ..options import dump_argument, say_not_whole
from .hang import print_hang

# Up to here all indexes are read in about a second, and the details come without asking.
_QUICK_INDEX_BYTES: Final = 64 << 20


@click.command("ls")
@dump_argument
@click.option(
    "--details/--no-details",
    default=None,
    help="Read whole indexes: calls by kind, notes, missing data.  [default: if they are below 64 MiB together]",
)
@click.option(
    "--live",
    is_flag=True,
    help="For a run that may hang: print what `aten-dump hang` prints, and return its exit code.",
)
@format_option("ls", more=" (with --live, that of hang)")
def command(dump: Path, details: bool | None, live: bool, form: str) -> None:
    """Print the contents of DUMP: the run, and for each step and rank its state, calls, values and bytes.

    Without details only the two ends of each index are read, which is quick for thousands of steps and ranks.

    Exit code 0: everything read is complete; 2: something is damaged, interrupted or missing. That comes first.

    \b
    Examples
      aten-dump ls dump
      aten-dump ls dump --details
      aten-dump ls dump --live
    """  # noqa: D301 - \b keeps click from filling lines
    opened = open_dump(dump)
    if live:
        print_hang(hang(opened), form)
        return
    ranks = opened.all_ranks()
    summaries = [rank.summary() for rank in with_progress("reading", ranks)]
    if details is None:
        details = sum(summary.index_bytes for summary in summaries) <= _QUICK_INDEX_BYTES
    looks = {rank: _look(rank, summary, read=details) for rank, summary in _reading(ranks, summaries, details)}
    say_not_whole(opened.path, looks.values(), opened.problems)
    groups = set().union(*(look.groups for look in looks.values()))
    if form == "json":
        rows = [_row(look, summary) for look, summary in zip(looks.values(), summaries, strict=True)]
        print_record({"path": opened.path, "details": details, "steps": rows, "groups": group_rows(groups)})
        return
    print_lines(run_lines(opened))
    kinds = {rank: look.kinds for rank, look in looks.items()} if details else None
    states = {rank: look.state for rank, look in looks.items()}
    print_table(steps_table(zip(ranks, summaries, strict=True), kinds, states))
    notes = ((look.step, look.rank, note) for look in looks.values() for note in look.notes)
    print_lines([*_interrupted(ranks, summaries, dump), *over_ranks(notes)])
    print_lines(f"groups {line}" for line in group_lines(groups))
    if UNCHECKED in states.values():
        echo(f"{UNCHECKED}: only the two ends of these indexes were read; `aten-dump ls {dump} --details` reads all")


class _Look(NamedTuple):
    """What is said of a step and rank."""

    step: int
    rank: int
    state: str
    lacks: str
    kinds: Counter[str]
    notes: list[str]
    groups: set[RankGroup]


def _row(look: _Look, summary: Summary) -> dict[str, Any]:
    commit = summary.commit
    return {
        "step": look.step, "rank": look.rank, "state": look.state, "lacks": look.lacks,
        "calls": None if commit is None else commit.calls, "values": None if commit is None else commit.values,
        "calls_by_kind": dict(look.kinds), "index_bytes": summary.index_bytes, "shard_bytes": summary.shard_bytes,
        "shards": summary.shards, "notes": look.notes,
    }  # fmt: skip


def _reading(
    ranks: Sequence[RankDump], summaries: Sequence[Summary], details: bool
) -> Iterable[tuple[RankDump, Summary]]:
    pairs = list(zip(ranks, summaries, strict=True))
    return with_progress("reading indexes", pairs) if details else pairs


def _look(rank: RankDump, summary: Summary, *, read: bool) -> _Look:
    """Look at a step and rank: at its whole index, or at what its ends say."""
    where = rank.step, rank.rank
    if not read:
        return _Look(*where, *((UNCHECKED, "") if summary.commit else ("interrupted",) * 2), Counter(), [], set())
    fresh = rank.anew()  # so that only one index is in memory at a time
    try:
        # What it lacks is said in the first lines already.
        notes = [sentence for sentence in note_sentences(fresh) if not fresh.lacks or sentence not in fresh.missing]
        notes += filter(None, [scopes_line(fresh)])
        return _Look(*where, fresh.state, fresh.lacks, fresh.calls_by_kind(), notes, groups_of(fresh))
    except AtenDumpError as error:  # a look at a dump does not end with one damaged file of it
        return _Look(*where, "damaged", lacks_of("damaged", (str(error),)), Counter(), [], set())


def _interrupted(ranks: Sequence[RankDump], summaries: Sequence[Summary], dump: Path) -> list[str]:
    count = sum(summary.commit is None for summary in summaries)
    if not count:
        return []
    finish = command_line("recover", dump)
    return [f"{count} of {len(ranks)} step/rank folders are interrupted; `{finish}` finishes them"]
