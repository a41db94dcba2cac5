"""Steps and ranks in words: of a thousand ranks those of which the same is said are one line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from ...store.run_json import ranges_of
from .rank_strides import strides_of

_MOST_RANGES: Final = 6  # that are listed where a stride says the same


def named(what: str, numbers: Iterable[int]) -> str:
    """Return numbers of steps or ranks, as ``ranks 0-63|65-127``, ``step 3`` or ``ranks 0|8|...|1016``."""
    text = listed(numbers)
    return f"{what if text.isdecimal() else f'{what}s'} {text}"


def listed(numbers: Iterable[int]) -> str:
    """Return numbers as `named` has them."""
    numbers = sorted(numbers)
    text = ranges_of(numbers)
    if text.count("|") >= _MOST_RANGES and strides_of(numbers):
        first, second, *_, last = text.split("|")
        return f"{first}|{second}|...|{last}"
    return text


def step_and_ranks(step: int | str, ranks: Iterable[int]) -> str:
    """Return a step and ranks of it, as ``step 0 ranks 0-63|65-127``."""
    return f"step {step} {named('rank', ranks)}"


def over_ranks(sentences: Iterable[tuple[int, int, str]]) -> Iterator[str]:
    """Yield each sentence once, behind the step and the ranks of which it is said.

    Args:
        sentences: step, rank, and what is said of it.
    """
    alike: dict[tuple[int, str], list[int]] = {}
    for step, rank, sentence in sentences:
        alike.setdefault((step, sentence), []).append(rank)
    for (step, sentence), ranks in alike.items():
        yield f"{step_and_ranks(step, ranks)}: {sentence}"
