"""What users name a recording by: a path, a dump, one of its steps, what one rank recorded."""

from __future__ import annotations

import os
from typing import TypeAlias

from ..dump import Dump, RankDump, Step, open_dump
from ..errors import ConfigError, MissingDataError

Path: TypeAlias = "str | os.PathLike[str]"
Given: TypeAlias = "Path | Dump | Step | RankDump"


def opened(given: Given) -> tuple[Dump, int | None, int | None]:
    """Return the dump, and the step and rank where the user named them."""
    match given:
        case Dump():
            return given, None, None
        case Step():
            return given.dump, given.step, None
        case RankDump():
            return open_dump(given.directory.parent.parent), given.step, given.rank
    return open_dump(given), None, None


def chosen(what: str, asked: str | int | None, given: tuple[int | None, int | None]) -> str | int | None:
    """Return which step or rank of both to compare, as `compare` takes it.

    Args:
        what: "step" or "rank".
        asked: by argument.
        given: by the target and the baseline themselves.

    Raises:
        ConfigError: it is named twice, or on one side only.
    """
    if given == (None, None):
        return asked
    if asked is not None:
        raise ConfigError(f"{what} is {asked!r}, and the target or baseline is one {what} already: name it once")
    if None in given:
        raise ConfigError(f"one side is one {what}, the other several; give both sides alike")
    return f"{given[0]}:{given[1]}"


def rank_of(given: Given) -> RankDump:
    """Return what one rank recorded: the first rank of the first step with calls, unless the user named one.

    Raises:
        MissingDataError: there is none.
    """
    if isinstance(given, RankDump):
        return given
    dump, step, _ = opened(given)
    ranks = [rank for rank in dump.all_ranks() if step in (None, rank.step)]
    found = next((rank for rank in ranks if len(rank.calls)), next(iter(ranks), None))
    if found is None:
        raise MissingDataError(f"{dump.path} has no recorded steps; see `aten-dump ls`")
    return found
