"""Steps and ranks in words: of a thousand ranks those of which the same is said are one line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...store.run_json import ranges_of


def step_and_ranks(step: int | str, ranks: Iterable[int]) -> str:
    """Return a step and ranks of it, as ``step 0 ranks 0-63|65-127``."""
    text = ranges_of(ranks)
    return f"step {step} {'rank' if text.isdecimal() else 'ranks'} {text}"


def told_together(sentences: Iterable[tuple[int, int, str]]) -> Iterator[str]:
    """Yield each sentence once, behind the step and the ranks of which it is said.

    Args:
        sentences: step, rank, and what is said of it.
    """
    alike: dict[tuple[int, str], list[int]] = {}
    for step, rank, sentence in sentences:
        alike.setdefault((step, sentence), []).append(rank)
    for (step, sentence), ranks in alike.items():
        yield f"{step_and_ranks(step, ranks)}: {sentence}"
