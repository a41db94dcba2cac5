"""``aten-dump nonfinite``: where NaN and Inf came from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from ...analysis.nonfinite.search import Event, NonFinite, find_nonfinite
from ...choices import NEAR
from ...dump import RankDump
from ...dump.known_tables import KnownTables
from ...dump.shown.command_lines import command_line
from ...errors import MissingDataError
from ...report.nonfinite import answer_lines, events_table, how_early, near_lines, short_lines, total_lines, what_next
from ..console import echo, line_limit, print_lines, print_table, say_left_out, with_progress
from ..ending import never_end_well
from ..formats import format_option, print_record
from ..options import dump_argument, end_if_never_fired, limit_option, open_all, places_options

_NEAR_SHOWN: Final = 10  # values near overflow, of all steps and ranks
_MOST_LINES: Final = 20  # of steps and ranks of which a line is printed


@click.command("nonfinite")
@dump_argument
@places_options
@click.option(
    "--all",
    "show_all",
    is_flag=True,
    help="Show calls that only propagated NaN or Inf too, and all values near overflow.",
)
@click.option(
    "--near",
    type=click.FloatRange(0, 1, min_open=True),
    default=NEAR,
    show_default=True,
    help="A value is near overflow beyond this fraction of the largest number of its dtype.",
)
@format_option("nonfinite")
@limit_option(30, "rows of a table")
def command(
    dump: Path, step: int | None, rank: int | None, show_all: bool, near: float, form: str, limit: int | None
) -> None:
    """Print the calls that produced NaN and Inf in DUMP, in execution order.

    All steps and ranks are searched, or those of --step and --rank. Recorded statistics are enough.

    Listed last, and not counted as findings: attention masks; NaN and Inf on which no loss, no gradient and nothing
    that the step leaves depends; gradients that overflowed under a gradient scaler, which skipped the optimizer's step.

    Exit code 0: no finding; 1: findings; 2: nothing could be judged.

    \b
    Examples
      aten-dump nonfinite dump
      aten-dump nonfinite dump --step 5 --rank 0 --all
    """  # noqa: D301 - \b keeps click from filling lines
    places = _places(dump, step, rank)
    if form == "json":
        _print_json(places, near)
        return
    told = _Findings(dump, line_limit(limit, default=30), show_all=show_all)
    for fresh in map(KnownTables().anew, with_progress("searching", places)):
        empty = fresh.why_no_calls
        if empty is not None:
            echo(empty, err=True)
        else:
            told.add(find_nonfinite(fresh, near))
    told.end(is_alone=len(places) == 1)
    searched = told.searched
    if not searched:
        raise MissingDataError(f"nothing in {dump} could be judged: no step and rank that was asked for has calls")
    if not told.sick and not any(found.judged for found in searched) and any(f.unknown for f in searched):
        raise MissingDataError(f'nothing in {dump} could be judged; record again with DumpConfig.data="statistic"')
    if told.sick:
        raise click.exceptions.Exit(1)


def _print_json(places: list[RankDump], near: float) -> None:
    """Print what was found in all steps and ranks as one object."""
    ranks = map(KnownTables().anew, places)
    found = [find_nonfinite(one, near) for one in ranks if one.why_no_calls is None]
    if not any(one.judged or one.first for one in found):
        raise MissingDataError('nothing could be judged; record again with DumpConfig.data="statistic"')
    steps = [
        {
            "step": one.step,
            "rank": one.rank,
            "judged": one.judged,
            "unknown": one.unknown,
            "lacks": one.lacks,
            **{kind: [_plain(event) for event in getattr(one, kind)] for kind in _KINDS},
        }
        for one in found
    ]
    sick = [one for one in found if one.first is not None]
    first = min(sick, key=how_early, default=None)
    event = None if first is None else first.first
    where = None if first is None or event is None else {"step": first.step, "rank": first.rank, **_plain(event)}
    print_record({"first": where, "steps": steps})
    if any(one.lacks for one in found):
        never_end_well()
    if sick:
        raise click.exceptions.Exit(1)


_KINDS: Final = ("producers", "outside", "masks", "scaled", "contained")  # propagators are many, and no cause


def _plain(event: Event) -> dict[str, Any]:
    names = ("name", "op", "phase", "module", "source", "forward", "why")
    return {**{name: getattr(event, name) for name in names}, "reaches": list(event.reaches)}


class _Findings:
    """What was found in the steps and ranks: where it began is printed whole, all else a line for those alike."""

    def __init__(self, path: Path, limit: int | None, *, show_all: bool) -> None:
        self._path = path
        self.searched: list[NonFinite] = []
        self.sick: dict[int, int] = {}  # rank -> its first step with NaN or Inf
        self._limit = limit
        self._show_all = show_all
        self._whole: NonFinite | None = None  # of which all is printed

    def add(self, found: NonFinite) -> None:
        """Note what was found in one step and rank."""
        if found.lacks:
            never_end_well()
        if found.first is not None:
            self.sick.setdefault(found.rank, found.step)
        if self._whole is None or _counts_more(found, self._whole):
            self._whole = found
        self.searched.append(replace(found, propagators=(), masks=()))

    def end(self, *, is_alone: bool) -> None:
        """Print where it began, what is in the others, the values near overflow, and what to run next."""
        whole = self._whole
        is_said = whole is not None and (is_alone or not _is_clean(whole) or whole.unknown > 0)
        if whole is not None and is_said:
            self._print(whole)
        others = [one for one in self.searched if not (is_said and _is_place_of(one, whole))]
        others = [one for one in others if not _is_clean(one) or one.unknown]
        lines = list(short_lines(others))
        print_lines(lines[:_MOST_LINES])
        say_left_out(max(0, len(lines) - _MOST_LINES), "lines")
        if others:
            echo(f"more on one of these: {self._command('nonfinite', others[0])}")
        print_lines(near_lines(self.searched, None if self._show_all else _NEAR_SHOWN))
        if len(self.searched) > 1:
            print_lines(total_lines(self.searched, sum(map(_is_clean, self.searched))))
        told = next((one for one in self.searched if one.scaled or one.contained), None)
        told = whole if whole is not None and whole.first is not None else told
        if told is not None:
            print_lines(what_next(told))

    def _command(self, name: str, found: NonFinite) -> str:
        return command_line(name, self._path, step=found.step, rank=found.rank)

    def _print(self, found: NonFinite) -> None:
        earlier = self.sick.get(found.rank)
        print_lines(answer_lines(found, earlier if earlier != found.step else None))
        table, left_out = events_table(found, self._limit, propagators=self._show_all)
        if table.rows:
            echo()
            print_table(table)
            say_left_out(left_out, "rows")
            echo()


def _is_clean(found: NonFinite) -> bool:
    return found.first is None and not found.scaled and not found.lacks


def _is_place_of(one: NonFinite, other: NonFinite | None) -> bool:
    return other is not None and (one.step, one.rank) == (other.step, other.rank)


def _counts_more(one: NonFinite, other: NonFinite) -> bool:
    """Return True if the first of two is to be printed whole, and not the other."""
    if one.first is None or other.first is None:
        return (one.first is not None, not _is_clean(one)) > (other.first is not None, not _is_clean(other))
    return how_early(one) < how_early(other)


def _places(path: Path, step: int | None, rank: int | None) -> list[RankDump]:
    dump = open_all(path, steps=None if step is None else (step,), ranks=None if rank is None else (rank,))
    if step is None:
        end_if_never_fired(dump)
    else:
        dump.step(step)  # says what there is, where this one is not
    if step is not None and rank is not None:
        return [dump.rank(step, rank)]
    return [p for p in dump.all_ranks() if step in (None, p.step) and rank in (None, p.rank)]
