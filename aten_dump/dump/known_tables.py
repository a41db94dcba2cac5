"""Steps and ranks that are read one after the other: what one says that was read before is not worked out again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

from .index.pattern import Pattern
from .index.tables import Tables
from .rank import RankDump
from .root import Dump

_MOST: Final = 16  # ranks whose last index is held, some megabytes each

Found = TypeVar("Found")


class KnownTables:
    """The tables of the last steps that were read, of a few ranks; nothing of a long index is held."""

    def __init__(self) -> None:
        self._by_rank: dict[int, Tables] = {}

    def anew(self, rank: RankDump) -> RankDump:
        """Return a step and rank as when opened; its index is read at once."""
        last = next(reversed(self._by_rank.values()), None)
        fresh = rank.anew(self._by_rank.pop(rank.rank, last))
        if fresh.tables.pattern.is_short:
            self._by_rank[rank.rank] = fresh.tables
            if len(self._by_rank) > _MOST:
                self._by_rank.pop(next(iter(self._by_rank)))
        return fresh


def read_in_turn(dump: Dump) -> Iterator[RankDump]:
    """Yield all steps and ranks of a dump, read; but for what the next ones may say too, none is held afterwards."""
    return map(KnownTables().anew, dump.all_ranks())


def once_for_alike(find: Callable[[RankDump], Found]) -> Callable[[RankDump], Found]:
    """Return a function that answers once for steps of one pattern: it reads nothing that `Pattern` leaves out."""
    known: WeakKeyDictionary[Pattern, Found] = WeakKeyDictionary()

    @wraps(find)
    def found(rank: RankDump) -> Found:
        pattern = rank.tables.pattern
        if pattern not in known:
            known[pattern] = find(rank)
        return known[pattern]

    return found
