"""Of the causes that several ranks have, the first; and on whom a proof rests that nobody gave.

Theory of operation
    Ids of calls of different ranks say nothing of time. A cause at a call of one rank reaches another rank at the first
    meeting after it at which the one sends and the other receives, and goes on from there. A cause that is reached by
    another one yields to it. Of those that are left the earliest in its own rank is named.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from ..evidence.findings import Finding, Key, Leaning, Part, RankEvidence

Caused = tuple[RankEvidence, Finding]


def first_cause(ranks: Sequence[RankEvidence]) -> Caused | None:
    """Return the first cause over all steps and ranks, and where it is."""
    found = [(evidence, evidence.findings[0]) for evidence in ranks if evidence.findings]
    if not found:
        return None
    step = min(evidence.steps[0] for evidence, _ in found)
    found = [pair for pair in found if pair[0].steps[0] == step]
    meetings = Meetings({e.ranks[0]: e.meets for e in ranks if e.steps[0] == step})
    arrived = meetings.reached_from({evidence.ranks[0]: finding.order[0] for evidence, finding in found})
    left = [pair for pair in found if arrived.get(pair[0].ranks[0], pair[1].order[0] + 1) > pair[1].order[0]]
    return min(left or found, key=lambda pair: (pair[1].order, pair[0].ranks[0]))


def brought_by(first: Caused, ranks: Sequence[RankEvidence]) -> dict[int, int]:
    """Return the ranks that have no cause of their own and to which a cause of another rank gets in its step.

    Returns:
        For each of them the id of the first call that what is wrong reaches there.
    """
    evidence, finding = first
    others = [e for e in ranks if e.steps == evidence.steps]
    reached = Meetings({e.ranks[0]: e.meets for e in others}).reached_from({evidence.ranks[0]: finding.order[0]})
    clean = {e.ranks[0] for e in others if not e.findings} - {evidence.ranks[0]}
    return {rank: call for rank, call in reached.items() if rank in clean}


class Meetings:
    """Who meets whom in one step, for all ranks of it."""

    def __init__(self, parts: Mapping[int, Sequence[Part]]) -> None:
        """Take the parts of each rank, in its order of execution."""
        self._parts = parts
        self._at: dict[tuple[Key, int], list[tuple[int, Part]]] = {}
        for rank, own in parts.items():
            for part in own:
                self._at.setdefault((part.key, part.number), []).append((rank, part))

    def reached_from(self, causes: Mapping[int, int]) -> dict[int, int]:
        """Return for each rank the id of the first call at which it may get what calls of other ranks made wrong.

        Each meeting is gone through once, so that a thousand ranks with a cause each take no longer than one. For a
        rank with a cause of its own, what comes after it may be missing.

        Args:
            causes: the id of the wrong call, by rank.
        """
        arrived: dict[int, int] = {}
        wrong = dict(causes)  # from which call on what a rank sends may be wrong
        spread: set[tuple[Key, int]] = set()  # meetings that are known to have brought it
        waiting = deque(causes)
        while waiting:
            rank = waiting.popleft()
            for part in self._parts.get(rank, ()):
                meeting = part.key, part.number
                if not part.sends or part.call <= wrong[rank] or meeting in spread:
                    continue
                spread.add(meeting)
                for other, theirs in self._at[meeting]:
                    if other == rank or not theirs.receives or theirs.call >= arrived.get(other, theirs.call + 1):
                        continue
                    arrived[other] = theirs.call
                    if theirs.call < wrong.get(other, theirs.call + 1):
                        wrong[other] = theirs.call
                        waiting.append(other)
        return arrived


def unfounded(ranks: Sequence[RankEvidence]) -> Iterator[tuple[RankEvidence, Leaning]]:
    """Yield what rests on ranks that were not compared, where noise does not explain it."""
    compared = {(evidence.steps, evidence.ranks[0]) for evidence in ranks}
    for evidence in ranks:
        for leaning in evidence.leans:
            absent = [rank for rank in leaning.ranks if (evidence.steps, rank) not in compared]
            if absent and leaning.error > leaning.limit:
                yield evidence, leaning
                break
