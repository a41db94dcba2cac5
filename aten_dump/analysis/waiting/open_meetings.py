"""Collectives and messages that ranks have begun and not ended, and which ranks have not begun them.

A message of a number meets that of the same number on the other side, counted over all steps; a collective that of the
same number in the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .disagreements import Steps
from .meetings_begun import BegunStep, Key, Meet


@dataclass(slots=True)
class OpenMeeting:
    """One that has not ended on some ranks."""

    key: Key
    step: int
    number: int
    waiting: dict[int, Meet] = field(default_factory=dict)  # by rank
    missing: tuple[int, ...] = ()  # ranks that have not begun it
    from_any: bool = False  # a message from whoever comes first

    @property
    def since_unix_ns(self) -> int:
        """When the first rank began it."""
        return min(meet.begun_unix_ns for meet in self.waiting.values())

    @property
    def first(self) -> Meet:
        """As the rank that began it first asks for it."""
        return min(self.waiting.values(), key=lambda meet: meet.begun_unix_ns)


def open_meetings(steps: Steps, latest: Mapping[int, BegunStep]) -> list[OpenMeeting]:
    """Return what is open on any rank, what was begun first before the rest."""
    found: dict[tuple[Key, int, int], OpenMeeting] = {}
    for begun in latest.values():
        for meet in begun.open:
            number = meet.number + _before(meet.key, meet.step, begun.rank, steps)
            place = (meet.key, -1 if meet.key.is_message else meet.step, number)
            found.setdefault(place, OpenMeeting(meet.key, meet.step, number)).waiting[begun.rank] = meet
    for meeting in found.values():
        meeting.from_any = meeting.key.is_message and len(meeting.key.ranks) > 2
        others = [rank for rank in meeting.key.ranks if rank not in meeting.waiting]
        meeting.missing = tuple(rank for rank in others if not _has_begun(meeting, rank, steps, latest))
    return sorted(found.values(), key=lambda meeting: meeting.since_unix_ns)


def is_delivered(meeting: OpenMeeting) -> bool:
    """Return True if a message has reached who receives it: nobody has waited for its sending yet."""
    return meeting.key.is_message and not meeting.missing and len(meeting.waiting) == 1


def _before(key: Key, step: int, rank: int, steps: Steps) -> int:
    """Return how many messages of a key a rank began in the steps before one; 0 of collectives."""
    if not key.is_message:
        return 0
    return sum(
        ranks[rank].counts.get(key, (0, b""))[0] for number, ranks in steps.items() if number < step and rank in ranks
    )


def _has_begun(meeting: OpenMeeting, rank: int, steps: Steps, latest: Mapping[int, BegunStep]) -> bool:
    last = latest.get(rank)
    if last is None or meeting.from_any:
        return False
    key = meeting.key
    if key.is_message:
        return meeting.number < _before(key, last.step + 1, rank, steps)
    if last.step > meeting.step:
        return True  # or it has left it out, which is a disagreement
    begun = steps.get(meeting.step, {}).get(rank)
    return begun is not None and meeting.number < begun.counts.get(key, (0, b""))[0]
