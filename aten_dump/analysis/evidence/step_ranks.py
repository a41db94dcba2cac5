"""Steps and ranks as an answer names them: a thousand ranks of which the same is said are one line."""

from __future__ import annotations

from collections.abc import Iterable

from ...dump.shown.step_ranks import step_and_ranks
from .findings import RankEvidence


def where(evidence: RankEvidence) -> str:
    """Return the step and rank of what was found, or how many ranks were put together."""
    ranks = evidence.ranks
    if evidence.together is not None:
        return f"step {_step(evidence)}, {evidence.together[0]} ranks against {evidence.together[1]}"
    if ranks[0] != ranks[1]:
        return f"step {_step(evidence)} rank {ranks[0]} against {ranks[1]}"
    return step_and_ranks(_step(evidence), ranks[:1])


def where_all(found: Iterable[RankEvidence]) -> str:
    """Return steps and ranks as a clause: ``step 0 ranks 0-63|65-127; step 1 rank 3``."""
    alike: dict[str, list[int]] = {}
    others: list[str] = []
    for evidence in found:
        if evidence.together is None and evidence.ranks[0] == evidence.ranks[1]:
            alike.setdefault(_step(evidence), []).append(evidence.ranks[0])
        else:
            others.append(where(evidence))
    return "; ".join([*(step_and_ranks(step, ranks) for step, ranks in alike.items()), *others])


def told_together(sentences: Iterable[tuple[RankEvidence, str]]) -> list[tuple[str, str]]:
    """Return each sentence once, with where it holds: of all ranks of a step of which it is said.

    Args:
        sentences: what is said of each step and rank.
    """
    places: dict[tuple[tuple[int, int], str], list[RankEvidence]] = {}
    for evidence, sentence in sentences:
        places.setdefault((evidence.steps, sentence), []).append(evidence)
    return [(where_all(group), sentence) for (_, sentence), group in places.items()]


def _step(evidence: RankEvidence) -> str:
    steps = evidence.steps
    return str(steps[0]) if steps[0] == steps[1] else f"{steps[0]} against {steps[1]}"
