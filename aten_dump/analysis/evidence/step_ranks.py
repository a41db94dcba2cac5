"""Steps and ranks as an answer names them: a thousand ranks of which the same is said are one line."""

from __future__ import annotations

from collections.abc import Iterable

from ...store.run_json import ranges_of
from .findings import RankEvidence


def where(evidence: RankEvidence) -> str:
    """Return the step and rank of what was found, or how many ranks were put together."""
    if evidence.together is not None:
        return f"{_step(evidence)}, {evidence.together[0]} ranks against {evidence.together[1]}"
    ranks = evidence.ranks
    rank = str(ranks[0]) if ranks[0] == ranks[1] else f"{ranks[0]} against {ranks[1]}"
    return f"{_step(evidence)} rank {rank}"


def where_all(found: Iterable[RankEvidence]) -> str:
    """Return steps and ranks as a clause: ``step 0 ranks 0-63|65-127; step 1 rank 3``."""
    texts: dict[tuple[int, int], list[str]] = {}
    alike: dict[tuple[int, int], list[RankEvidence]] = {}
    for evidence in found:
        if evidence.together is None and evidence.ranks[0] == evidence.ranks[1]:
            alike.setdefault(evidence.steps, []).append(evidence)
            texts.setdefault(evidence.steps, [])
        else:
            texts.setdefault(evidence.steps, []).append(where(evidence))
    for steps, group in alike.items():
        ranks = ranges_of(evidence.ranks[0] for evidence in group)
        texts[steps].insert(0, where(group[0]) if len(group) == 1 else f"{_step(group[0])} ranks {ranks}")
    return "; ".join(text for of_step in texts.values() for text in of_step)


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
    return f"step {steps[0]}" if steps[0] == steps[1] else f"step {steps[0]} against {steps[1]}"
