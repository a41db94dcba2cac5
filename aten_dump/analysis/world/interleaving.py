"""The order in which the calls of all ranks may have run, and which of them are one transfer.

Theory of operation
    The rank that is least far on runs its next call, so that calls of one place stand near each other. At a transfer a
    rank waits until all ranks that take part have come there; a message is there once it was sent. Where all ranks wait
    (each posts a receive before it sends), they run on past what they wait for, until a call looks at the memory that
    is to come.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...dump import RankDump
from ...store.argument_trees import input_ids, result_ids
from ..meetings.meeting_points import attendance_of, others_at, ranks_of
from ..meetings.process_groups import is_message

At = tuple[int, int]  # number of a rank, id of a call


@dataclass(frozen=True, slots=True)
class Meeting:
    """The calls of one transfer, in the order of the group; of a message the sender's is the first."""

    calls: tuple[At, ...]
    is_message: bool


class Interleaving:
    """The calls of some ranks in one order.

    Attributes:
        order: each call, with its rank.
        meetings: the transfer that a call is part of; those of which nobody knows who met are left out.
    """

    def __init__(self, ranks: Mapping[int, RankDump]) -> None:
        self.order: list[At] = []
        self.meetings: dict[At, Meeting] = {}
        self._attendance = {number: attendance_of(rank) for number, rank in ranks.items()}
        self._ranks = {number: _Rank(rank) for number, rank in ranks.items()}
        self._find()
        self._posted: set[At] = set()
        while any(rank.left or rank.waiting for rank in self._ranks.values()):
            if not self._advance(eager=False) and not self._advance(eager=True):
                self._give_up()

    def _find(self) -> None:
        """Find the calls that meet."""
        for number, known in self._attendance.items():
            for part in known.parts:
                if not set(ranks_of(part.key)) <= self._ranks.keys():
                    continue
                others = others_at(part, number, self._attendance)
                if others is not None:
                    met = {**others, number: part.call}
                    calls = tuple((rank, met[rank]) for rank in ranks_of(part.key))
                    call = self._ranks[number].recording.call(part.call)
                    self.meetings[number, part.call] = Meeting(calls, is_message(call.op))

    def _advance(self, *, eager: bool) -> bool:
        """Run the next call of the rank that is least far on and can run; return False if none can."""
        for number, rank in sorted(self._ranks.items(), key=lambda one: -len(one[1].left) / one[1].count):
            call = rank.next(eager=eager)
            if call is not None:
                self._run(number, rank, call)
                return True
        settled = [self._settle_all(number, rank) for number, rank in self._ranks.items()]
        return any(settled)

    def _run(self, number: int, rank: _Rank, call: int) -> None:
        at = number, call
        meeting = self.meetings.get(at)
        rank.left.pop()
        self._posted.add(at)
        if meeting is None or (meeting.is_message and meeting.calls[0] == at):
            self.order.append(at)
        else:
            rank.wait_for(call)
        if meeting is not None:
            self._settle(meeting)

    def _settle(self, meeting: Meeting) -> None:
        """Put the calls of a transfer next to each other, if all ranks have come to it."""
        if all(at in self._posted for at in meeting.calls):
            for number, id in meeting.calls:
                if self._ranks[number].is_waiting_for(id):
                    self.order.append((number, id))
                    self._ranks[number].waiting.pop(id)

    def _settle_all(self, number: int, rank: _Rank) -> bool:
        """Settle what a rank waits for, as far as it is there; return True if something was."""
        before = len(rank.waiting)
        for id in list(rank.waiting):
            self._settle(self.meetings[number, id])
        return len(rank.waiting) < before

    def _give_up(self) -> None:
        """Let all that waits be done, as nobody knows what it waits for."""
        for number, rank in self._ranks.items():
            for id in list(rank.waiting):
                self.order.append((number, id))
                meeting = self.meetings.get((number, id))
                for at in () if meeting is None else meeting.calls:
                    self.meetings.pop(at, None)
                del rank.waiting[id]


class _Rank:
    """One rank, on its way."""

    def __init__(self, recording: RankDump) -> None:
        self.recording = recording
        self.left = list(range(len(recording.tables.calls) - 1, -1, -1))
        self.count = max(1, len(self.left))
        self.waiting: dict[int, set[int]] = {}  # storages to which a transfer brings something, by call
        self._values = recording.tables.values
        self._ids = recording.tables.calls.column("id").tolist()

    def next(self, *, eager: bool) -> int | None:
        """Return the id of the call that is to be run next, if it can be."""
        if not self.left or (self.waiting and not eager):
            return None
        if self.waiting:
            record = self.recording.tables.calls[self.left[-1]]
            seen = {self._values[number].storage for number in (*input_ids(record), *result_ids(record))}
            if any(seen & storages for storages in self.waiting.values()):
                return None
        return int(self._ids[self.left[-1]])

    def wait_for(self, id: int) -> None:
        found = self.recording.call(id).result_values()
        self.waiting[id] = {value.storage for _, value in found} - {0}

    def is_waiting_for(self, id: int) -> bool:
        return id in self.waiting
