"""On which ranks it depends that others go on: cycles of ranks that wait for each other, and the ends of chains.

A rank waits where it has begun what others have not. It is not waiting where its sign of life, newer than that, shows
it in a line of its own: it has started a collective and does something else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .open_meetings import OpenMeeting
from .rank_lives import ENDED, Life


@dataclass(frozen=True, slots=True)
class WaitGraph:
    """Which rank waits for which."""

    edges: Mapping[int, frozenset[int]]
    meetings: tuple[OpenMeeting, ...]  # those in which a rank waits for another one

    @classmethod
    def of(cls, meetings: Iterable[OpenMeeting], lives: Mapping[int, Life]) -> WaitGraph:
        """Find who waits, of what is open."""
        edges: dict[int, set[int]] = {}
        used = []
        for meeting in meetings:
            waiting = [rank for rank in meeting.waiting if _is_waiting(lives.get(rank), meeting, rank)]
            if meeting.missing and waiting:
                used.append(meeting)
                for rank in waiting:
                    edges.setdefault(rank, set()).update(meeting.missing)
        return cls({rank: frozenset(others) for rank, others in edges.items()}, tuple(used))

    def cycles(self) -> list[frozenset[int]]:
        """Return the sets of ranks that wait for each other, each of which reaches all others of its set."""
        alike = {others: self._reached(rank) for rank, others in self.edges.items()}
        reach = {rank: alike[others] for rank, others in self.edges.items()}
        found = {
            frozenset(other for other in there if rank in reach.get(other, ()))
            for rank, there in reach.items()
            if rank in there
        }
        return sorted(found, key=min)

    def ends(self) -> dict[int, frozenset[int]]:
        """Return each rank that others wait for and that waits for none, with those that it holds up."""
        alike: dict[frozenset[int], set[int]] = {}
        for rank, others in self.edges.items():
            alike.setdefault(others, set()).add(rank)
        held: dict[int, set[int]] = {}
        for ranks in alike.values():
            for other in self._reached(min(ranks)) - self.edges.keys():
                held.setdefault(other, set()).update(ranks)
        return {rank: frozenset(ranks) for rank, ranks in held.items()}

    def meetings_with(self, missing: Iterable[int], waiting: Iterable[int]) -> list[OpenMeeting]:
        """Return those in which one of some ranks is missing and one of others waits."""
        absent, there = set(missing), set(waiting)
        return [m for m in self.meetings if absent.intersection(m.missing) and there.intersection(m.waiting)]

    def _reached(self, rank: int) -> set[int]:
        """Return the ranks that it depends on; of a thousand ranks most wait for the same ones, which are looked at
        once.
        """
        found: set[int] = set()
        looked_at: set[frozenset[int]] = set()
        left = [self.edges.get(rank, frozenset())]
        while left:
            others = left.pop()
            if others not in looked_at:
                looked_at.add(others)
                left += {self.edges[other] for other in others - found if other in self.edges}
                found |= others
        return found


def _is_waiting(life: Life | None, meeting: OpenMeeting, rank: int) -> bool:
    meet = meeting.waiting[rank]
    if life is None or life.kind == "absent":
        return True
    if life.kind in ENDED - {"stopped", "silent"}:
        return False
    if life.waits is None or life.pulse_unix_ns < meet.begun_unix_ns:
        return True
    return meet.call in life.waits if life.waits else bool(life.inside) or not life.line
