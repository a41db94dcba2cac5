"""The step and rank that a command shows, which its first line names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ..dump import RankDump, open_dump
from ..dump.shown.step_ranks import named
from ..errors import AtenDumpError, MissingDataError
from .options import open_rank

_SEARCHED_BYTES: Final = 64 << 20  # of indexes, for a name: about a second


class Place:
    """The step and rank of a command that shows one, and its dump."""

    def __init__(self, path: Path, step: int | None, rank: int | None, *, err: bool = False) -> None:
        """Open it as `open_rank` does."""
        self.rank = open_rank(path, step, rank, err=err)
        self.dump = open_dump(path)
        self._is_default = step is None

    @property
    def line(self) -> str:
        """The first line: which step and rank this is, and which the dump has beside it."""
        beside = f" ({self.recorded})" if self.recorded else ""
        return f"step {self.rank.step}, rank {self.rank.rank} of {self.dump.path}{beside}"

    @property
    def recorded(self) -> str:
        """The recorded steps, and the ranks that recorded this one; "" where there is one of each."""
        steps, ranks = self.dump.steps, self.dump.step(self.rank.step).ranks
        found = [named("step", steps)] if len(steps) > 1 else []
        found += [named("rank", ranks)] if len(ranks) > 1 else []
        return f"{', '.join(found)} recorded" if found else ""

    def other_steps(self, name: str) -> Iterator[str]:
        """Yield where a call or tensor of a name is in other steps as well, unless a step was asked for.

        Raises:
            MissingDataError: it is in other steps only.
        """
        others, unread = self._others_with(name) if self._is_default else ([], [])
        if others and not _has(self.rank, name):
            raise MissingDataError(
                f"{name} is not in step {self.rank.step} of {self.dump.path}, but in {named('step', others)}: "
                f"add --step {others[0]}"
            )
        if others:
            yield f"{name} is also in {named('step', others)}: add --step {others[0]}"
        if unread:
            yield f"{named('step', unread)} may have {name} too: add --step {unread[0]}"

    def _others_with(self, name: str) -> tuple[list[int], list[int]]:
        """Return the other steps in which this rank has a name, and those that would take too long to read."""
        having: list[int] = []
        others = [step for step in self.dump.steps if step != self.rank.step]
        room = _SEARCHED_BYTES
        for number, step in enumerate(others):
            if self.rank.rank not in self.dump.step(step).ranks:
                continue
            other = self.dump.rank(step, self.rank.rank).anew()
            try:
                room -= other.summary().index_bytes
                if room < 0:
                    return having, others[number:]
                having += [step] if _has(other, name) else []
            except AtenDumpError:  # a damaged step is reported by the command that is asked for it
                continue
        return having, []


def _has(rank: RankDump, name: str) -> bool:
    """Return True if a name is that of a call or of a tensor."""
    if name in rank:
        return True
    try:
        rank.value(name)
    except MissingDataError:
        return False
    return True
