"""On whom it depends that ranks go on, for as many ranks as a cluster has."""

from __future__ import annotations

import pytest

from aten_dump.analysis.waiting.findings import WaitGraph
from aten_dump.analysis.waiting.meetings_begun import Key, Meet
from aten_dump.analysis.waiting.open_meetings import OpenMeeting

RANKS = 1024


def meeting(name: str, members: range | tuple[int, ...], waiting: range | tuple[int, ...]) -> OpenMeeting:
    """Return a collective that some members of a group have begun, and the others have not."""
    key = Key(name, tuple(members))
    begun = {
        rank: Meet(key, rank, 0, 0, "asks", "shown", False, 1, 7, "name", "train.py:1 in main", "") for rank in waiting
    }
    return OpenMeeting(key, 0, 0, begun, tuple(rank for rank in members if rank not in begun))


def test_one_of_a_thousand_ranks_holds_up_all_others() -> None:
    graph = WaitGraph.of([meeting("world", range(RANKS), tuple(r for r in range(RANKS) if r != 700))], {})
    assert graph.cycles() == []
    assert graph.ends() == {700: frozenset(range(RANKS)) - {700}}


def test_the_end_of_a_chain_of_groups_is_what_all_wait_for() -> None:
    """Each rank waits in a group of two for the next one."""
    last = 200
    chain = [meeting(f"{rank}", (rank, rank + 1), (rank,)) for rank in range(last)]
    graph = WaitGraph.of(chain, {})
    assert graph.cycles() == []
    assert graph.ends() == {last: frozenset(range(last))}


@pytest.mark.parametrize("size", [2, 3, 8])
def test_a_circle_of_groups_is_found_and_who_waits_for_it_is_not_in_it(size: int) -> None:
    circle = [meeting(f"{rank}", (rank, (rank + 1) % size), (rank,)) for rank in range(size)]
    graph = WaitGraph.of([*circle, meeting("world", range(RANKS), range(size, RANKS))], {})
    assert graph.cycles() == [frozenset(range(size))]
    assert graph.ends() == {}
