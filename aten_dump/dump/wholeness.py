"""Decides if what one rank recorded in one step is whole: the one place that says so, for every tool that answers.

Theory of operation
    A recording is *complete* when its index was committed and all of it, and all the bytes it names, are there. It is
    *interrupted* when the program ended before the commit, or the recorder failed; that stays so when `recover` has
    added a commit, as nobody knows what the program went on to do. It is *damaged* when something that had been
    written is gone or has changed. Of what is not complete no tool says that nothing is wrong: what is missing may
    hold it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, Protocol

from ..errors import AtenDumpError
from ..store.records import DAMAGED, FAILED, RECOVERED
from .index.tables import Tables
from .shown.step_ranks import over_ranks

State = Literal["complete", "interrupted", "damaged"]
_MOST_LINES: Final = 8


class Recorded(Protocol):
    """A step and rank, as far as it is asked here."""

    @property
    def step(self) -> int: ...

    @property
    def rank(self) -> int: ...

    @property
    def lacks(self) -> str: ...


def state_of(tables: Tables, missing_bytes: int) -> State:
    """Return the state of a step and rank.

    Args:
        tables: its records.
        missing_bytes: how many stored tensors are described whose bytes are not there.
    """
    codes = {note.code for note in tables.notes}
    if tables.damage is not None or DAMAGED in codes:
        return "damaged"
    if tables.commit is None or RECOVERED in codes or FAILED in codes:
        return "interrupted"
    return "damaged" if missing_bytes or not tables.has_header else "complete"


def lacks_of(state: State, missing: Iterable[str]) -> str:
    """Return what is wrong with a step and rank that is not complete, as ``damaged (...)``."""
    return f"{state} ({'; '.join(missing)})"


def lacks_with(lacks: str, damage: Iterable[str]) -> str:
    """Add what readers found damaged in shards to what a recording lacks."""
    found = "; ".join(damage)
    return lacks if not found else f"{lacks}; {found}" if lacks else f"damaged: {found}"


def reason_of(lacks: str) -> str:
    """Return the state alone of what a recording lacks, where a line before says the rest."""
    return lacks.partition(" (")[0]


def not_whole_lines(where: object, ranks: Iterable[Recorded], problems: Iterable[str] = ()) -> list[str]:
    """Return which of some steps and ranks are not whole, how, and how much is missing; empty where all are.

    Args:
        where: the dump, as a line names it.
        ranks: the steps and ranks that are asked for.
        problems: what is wrong with the folder of the dump.
    """
    found = [(rank.step, rank.rank, _lacks(rank)) for rank in ranks]
    lacking = [one for one in found if one[2]]
    lines = [f"{where}, {line}" for line in over_ranks(lacking)]
    lines += [f"{where} is not whole: {problem}" for problem in problems]
    if len(lines) <= _MOST_LINES:
        return lines
    count = f"{len(lacking)} of {len(found)} step/rank folders" if lacking else "the folder"
    more = f"... {len(lines) - _MOST_LINES} more such lines"
    return [f"{where} is not whole: {count} lack something", *lines[:_MOST_LINES], more]


def _lacks(rank: Recorded) -> str:
    try:
        return rank.lacks
    except AtenDumpError as error:  # its index cannot be read at all
        return lacks_of("damaged", (str(error),))
