"""Calls that get different numbers on both sides, although no end of the step shows it.

Another temperature shows only if another word is drawn. Otherwise the ends are equal, although the programs do not
compute the same.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Final

from ...dump import Call
from ..evaluation.evaluation import Evaluation
from ..evidence.evidence_rows import Pair
from ..flow.argument_differences import argument_differences
from ..pairing.call_keys import line_of, place_of

_MOST: Final = 3  # most lines to name


def unshown(sides: tuple[Evaluation, Evaluation], pairs: Sequence[Pair]) -> tuple[str, ...]:
    """Return a sentence for each line with calls that get the same tensors and different numbers.

    The other side does not have their results: otherwise they would be the same.
    """
    found: dict[tuple[str, str], list[str]] = {}
    differing = [(pair, told) for pair in pairs if (told := _differences(sides, pair))]
    lines = [_ops_by_line(side) for side in sides] if differing else []
    for pair, told in differing:
        if lines[0][line_of(pair.target)] == lines[1][line_of(pair.baseline)]:  # it is written alike
            found.setdefault((pair.target.where, told), []).append(pair.target.name)
    said = []
    for (where, told), names in found.items():
        more = f" and {len(names) - 1} more calls" if len(names) > 1 else ""
        given = f"{names[0]}{more}{f' ({where})' if where else ''}"
        said.append(f"{given}: {told}; nothing that the step ends with shows it")
    rest = len(said) - _MOST
    return (*said[:_MOST], *([f"calls at {rest} more lines are given other numbers"] if rest > 0 else ()))


def _ops_by_line(side: Evaluation) -> dict[str, Counter[str]]:
    """Return how often a program runs each op at each of its lines."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for call in side.flow.calls():
        found[line_of(call)][call.op] += 1
    return found


def _differences(sides: tuple[Evaluation, Evaluation], pair: Pair) -> str:
    """Return the numbers in which two calls with the same tensors differ, or ""."""
    calls = pair.target, pair.baseline
    if place_of(calls[0]) != place_of(calls[1]) or not all(_makes_odd(sides, side, calls[side]) for side in (0, 1)):
        return ""
    read = [[side.numbers.get(v.id) for _, v in side.flow.reads(c)] for side, c in zip(sides, calls, strict=True)]
    if not read[0] or read[0] != read[1]:
        return ""
    return "; ".join(str(one) for one in argument_differences(*calls) if one.numbers)


def _makes_odd(sides: tuple[Evaluation, Evaluation], side: int, call: Call) -> bool:
    """Return True if a call makes something that the other side does not have."""
    if call.kind != "aten":
        return False
    evaluation, others = sides[side], sides[1 - side].holders
    numbers = [evaluation.numbers.get(value.id) for _, value in evaluation.flow.results(call)]
    return bool(numbers) and all(number is not None and number not in others for number in numbers)
