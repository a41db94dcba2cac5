"""The step-ranks whose index is in memory: few at a time, each read once.

Theory of operation
    Requests come in threads of their own. What a step-rank reads once and keeps must not be read by two threads at
    once, so each has locks: one for its index, one for the relations between calls and values. The latter take seconds
    for a million calls, in which the tree of calls can still be looked at. When more calls are held than allowed, those
    looked at longest ago go.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple

from ...dump import RankDump

MOST_CALLS: Final = 2_500_000  # of all indexes that are held together


class _Held(NamedTuple):
    rank: RankDump
    tables_lock: Lock
    links_lock: Lock


class OpenedRanks:
    """Step-ranks by folder."""

    def __init__(self, most_calls: int = MOST_CALLS) -> None:
        self._most_calls = most_calls
        self._lock = Lock()
        self._held: dict[Path, _Held] = {}  # the one looked at last is the last

    @contextmanager
    def use(self, place: RankDump, *, links: bool) -> Iterator[RankDump]:
        """Yield a step-rank whose index has been read.

        Args:
            place: which one.
            links: its relations between calls and values are needed; nobody else uses them meanwhile.
        """
        with self._lock:
            held = self._held.pop(place.directory, None) or _Held(place.anew(), Lock(), Lock())
            self._held[place.directory] = held
        with held.tables_lock:
            _read_index(held.rank)
        with held.links_lock if links else held.tables_lock:
            yield held.rank
        self._drop_some()

    def forget(self, directory: Path) -> None:
        """Let go of a step-rank that has changed on disk."""
        with self._lock:
            self._held.pop(directory, None)

    def _drop_some(self) -> None:
        """Drop those looked at longest ago, but none that is in use."""
        with self._lock:
            calls = 0
            for directory, held in reversed(list(self._held.items())):
                calls += len(held.rank.tables.calls) if "tables" in vars(held.rank) else 0
                if calls > self._most_calls and directory != next(reversed(self._held)):
                    self._drop(directory, held)

    def _drop(self, directory: Path, held: _Held) -> None:
        with ExitStack() as taken:
            for lock in (held.tables_lock, held.links_lock):
                if not lock.acquire(blocking=False):
                    return
                taken.callback(lock.release)
            del self._held[directory]


def _read_index(rank: RankDump) -> None:
    """Read the index, and make what its relations will be kept in."""
    assert rank.tables is not None
    assert rank.links is not None
