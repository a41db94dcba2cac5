"""Steps and ranks that a command reads one after the other: each index once, and what it lacks with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ..dump import Dump, RankDump
from ..dump.known_tables import KnownTables
from .options import Numbers, say_not_whole


class ReadInTurn:
    """The steps and ranks of a dump that a command is asked for: ten thousand take minutes to read twice."""

    def __init__(self, dump: Dump, *, steps: Numbers | None = None, ranks: Numbers | None = None) -> None:
        """Take a dump, or some steps and ranks of it."""
        self.dump = dump
        self.ranks = [
            one
            for one in dump.all_ranks()
            if (steps is None or one.step in steps) and (ranks is None or one.rank in ranks)
        ]
        self._problems = dump.problems if steps is ranks is None else ()
        self._lacks: dict[tuple[int, int], str] = {}
        self._is_said = False

    def each(self, ranks: Iterable[RankDump]) -> Iterator[RankDump]:
        """Read one index after the other; but for what the next ones may say too, none is held afterwards."""
        known = KnownTables()
        for rank in ranks:
            fresh = known.anew(rank)
            if (rank.step, rank.rank) not in self._lacks:
                self._lacks[rank.step, rank.rank] = fresh.lacks
            yield fresh

    def say_not_whole(self) -> None:
        """Print once what is not whole; read those that were not read yet."""
        if not self._is_said:
            self._is_said = True
            say_not_whole(self.dump.path, map(self._read, self.ranks), self._problems)

    def _read(self, rank: RankDump) -> _Read | RankDump:
        lacks = self._lacks.get((rank.step, rank.rank))
        return rank.anew() if lacks is None else _Read(rank.step, rank.rank, lacks)


class _Read(NamedTuple):
    """What a step and rank lacks."""

    step: int
    rank: int
    lacks: str
