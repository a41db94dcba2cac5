"""Steps and ranks that are read one after the other: what one says that was read before is not worked out again."""

from __future__ import annotations

from typing import Final

from .index.tables import Tables
from .rank import RankDump

_MOST: Final = 16  # ranks whose last index is held, some megabytes each


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
