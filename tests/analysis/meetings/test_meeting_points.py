"""Which call of each rank takes part in the same collective or message."""

from __future__ import annotations

from pathlib import Path

from aten_dump.analysis.meetings.meeting_points import (
    Attendance,
    RankGroup,
    attendance_of,
    group_of,
    is_message,
    others_at,
    root_of,
)
from tests.analysis.meetings.ranks_by_hand import X, reducing


def test_ranks_meet_at_the_collective_of_the_same_number(tmp_path: Path) -> None:
    ranks = reducing(tmp_path, X, X + 1, X + 2)
    known = {rank.rank: attendance_of(rank) for rank in ranks}
    first = known[0].parts[0]
    assert (first.number, first.sends, first.receives) == (0, True, True)
    assert others_at(first, 0, known) == {1: ranks[1].calls[0].id, 2: ranks[2].calls[0].id}
    assert others_at(first, 0, {0: known[0], 1: known[1], 2: Attendance(2)}) is None, "rank 2 began none"
    assert others_at(first, 0, {0: known[0]}) is None, "the others are not there"


def test_a_message_is_between_two(tmp_path: Path) -> None:
    ranks = reducing(tmp_path, X, X + 1)
    known = {rank.rank: attendance_of(rank) for rank in ranks}
    sent, received = known[0].parts[1], known[1].parts[1]
    assert (sent.sends, sent.receives, received.sends, received.receives) == (True, False, False, True)
    assert sent.key == received.key and sent.key[1] == (0, 1)
    assert others_at(received, 1, known) == {0: ranks[0].calls[1].id}
    assert [is_message(call.op) for call in ranks[0].calls] == [False, True]


def test_groups_and_roots_are_read_from_the_arguments(tmp_path: Path) -> None:
    reduce, send = reducing(tmp_path, X, X + 1)[0].calls
    group = group_of(reduce)
    assert group == RankGroup("0", (0, 1))
    assert root_of(reduce, group) is None
    assert root_of(send, RankGroup("0", (4, 9))) == 9, "the number is one within the group"
