"""Of the causes that several ranks have, the first; and on whom a proof rests that nobody gave.

Theory of operation
    Ids of calls of different ranks say nothing of time. A cause at a call of one rank reaches another rank at the first
    meeting after it at which the one sends and the other receives, and goes on from there. A cause that is reached by
    another one yields to it. Of those that are left the earliest in its own rank is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..evidence.findings import Finding, RankEvidence
from ..evidence.other_ranks import Leaning
from .meeting_points import Attendance, ranks_of

Caused = tuple[RankEvidence, Finding]


def first_cause(ranks: Sequence[RankEvidence]) -> Caused | None:
    """Return the first cause over all steps and ranks, and where it is."""
    found = [(evidence, evidence.findings[0]) for evidence in ranks if evidence.findings]
    if not found:
        return None
    step = min(evidence.steps[0] for evidence, _ in found)
    found = [pair for pair in found if pair[0].steps[0] == step]
    meetings = {e.ranks[0]: Attendance.of(e.ranks[0], e.meets) for e in ranks if e.steps[0] == step}
    left = [cause for cause in found if not any(_reaches(other, cause, meetings) for other in found)]
    return min(left or found, key=lambda pair: (pair[1].order, pair[0].ranks[0]))


def brought_by(first: Caused, ranks: Sequence[RankEvidence]) -> dict[int, int]:
    """Return the ranks that have no cause of their own and to which a cause of another rank gets in its step.

    Returns:
        For each of them the id of the first call that what is wrong reaches there.
    """
    evidence, finding = first
    others = [e for e in ranks if e.steps == evidence.steps]
    meetings = {e.ranks[0]: Attendance.of(e.ranks[0], e.meets) for e in others}
    reached = reached_by(evidence.ranks[0], finding.order[0], meetings)
    return {e.ranks[0]: reached[e.ranks[0]] for e in others if not e.findings and e.ranks[0] in reached}


def _reaches(one: Caused, other: Caused, meetings: Mapping[int, Attendance]) -> bool:
    """Tell whether what is wrong at one cause gets to the rank of another one before that."""
    if one[0].ranks[0] == other[0].ranks[0]:
        return False
    reached = reached_by(one[0].ranks[0], one[1].order[0], meetings)
    return reached.get(other[0].ranks[0], other[1].order[0] + 1) <= other[1].order[0]


def reached_by(rank: int, call: int, meetings: Mapping[int, Attendance]) -> dict[int, int]:
    """Return for each rank the id of the first call at which it may get what a call of one rank made wrong."""
    reached = {rank: call}
    waiting = [rank]
    while waiting:
        one = waiting.pop()
        for part in meetings[one].parts if one in meetings else ():
            if not part.sends or part.call <= reached[one]:
                continue
            for other in ranks_of(part.key):
                theirs = meetings[other].at(part) if other != one and other in meetings else None
                if theirs is not None and theirs.receives and theirs.call < reached.get(other, theirs.call + 1):
                    reached[other] = theirs.call
                    waiting.append(other)
    return reached


def unfounded(ranks: Sequence[RankEvidence]) -> Iterator[tuple[RankEvidence, Leaning]]:
    """Yield what rests on ranks that were not compared, where noise does not explain it."""
    compared = {(evidence.steps, evidence.ranks[0]) for evidence in ranks}
    for evidence in ranks:
        for leaning in evidence.leans:
            absent = [rank for rank in leaning.ranks if (evidence.steps, rank) not in compared]
            if absent and leaning.error > leaning.limit:
                yield evidence, leaning
                break
