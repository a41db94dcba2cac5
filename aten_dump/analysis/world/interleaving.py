"""The order in which the calls of all ranks may have run, and which of them are one transfer.

Theory of operation
    Each rank runs on until it comes to a transfer. When all ranks that take part have come there, their calls are put
    next to each other; a message is there once it was sent. Where all ranks wait (each posts a receive before it
    sends), they run on past what they wait for, until a call looks at the memory that is to come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...dump import Call, RankDump
from ...store.argument_trees import input_ids, result_ids
from ..evidence.other_ranks import Key
from ..meetings.meeting_points import Attendance, attendance_of, others_at, ranks_of
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
        while any(rank.left for rank in self._ranks.values()):
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
        """Let each rank run on as far as it can; return True if one did."""
        moved = False
        for number, rank in self._ranks.items():
            while (call := rank.next(eager=eager)) is not None:
                moved = True
                at = number, call.id
                meeting = self.meetings.get(at)
                rank.left.pop()
                if meeting is None or (meeting.is_message and meeting.calls[0] == at):
                    self.order.append(at)
                    self._posted.add(at)
                else:
                    rank.wait_for(call)
                    self._posted.add(at)
                    self._settle(meeting)
                if eager:
                    break
            self._settle_messages(rank, number)
        return moved

    def _settle(self, meeting: Meeting) -> None:
        """Put the calls of a transfer next to each other, if all ranks have come to it."""
        if all(at in self._posted for at in meeting.calls):
            for number, id in meeting.calls:
                if self._ranks[number].is_waiting_for(id):
                    self.order.append((number, id))
                    self._ranks[number].waiting.pop(id)

    def _settle_messages(self, rank: _Rank, number: int) -> None:
        for id in list(rank.waiting):
            self._settle(self.meetings[number, id])

    def _give_up(self) -> None:
        """Let all that waits be done, as nobody knows what it waits for."""
        for number, rank in self._ranks.items():
            for id in list(rank.waiting):
                self.order.append((number, id))
                for at in self.meetings[number, id].calls:
                    self.meetings.pop(at, None)
                del rank.waiting[id]


class _Rank:
    """One rank, on its way."""

    def __init__(self, recording: RankDump) -> None:
        self.recording = recording
        self.left = list(range(len(recording.tables.calls) - 1, -1, -1))
        self.waiting: dict[int, set[int]] = {}  # storages to which a transfer brings something, by call
        self._values = recording.tables.values

    def next(self, *, eager: bool) -> Call | None:
        """Return the call that is to be run next, if it can be."""
        if not self.left or (self.waiting and not eager):
            return None
        record = self.recording.tables.calls[self.left[-1]]
        if self.waiting:
            seen = {self._values[number].storage for number in (*input_ids(record), *result_ids(record))}
            if any(seen & storages for storages in self.waiting.values()):
                return None
        return self.recording.call_at(self.left[-1])

    def wait_for(self, call: Call) -> None:
        self.waiting[call.id] = {value.storage for _, value in call.result_values()} - {0}

    def is_waiting_for(self, id: int) -> bool:
        return id in self.waiting
