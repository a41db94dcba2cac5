"""Whether all gradients of one side are one simple number times the other side's: a scale that one side lacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Final

from ..ends.ends import End
from ..evaluation.evaluation import Evaluation
from ..signatures.signature import Signature

_LEAST: Final = 2  # gradients
_MOST_PARTS: Final = 64  # the greatest denominator
_ROUNDING: Final = 1e-5  # relative


def factor_sentence(sides: tuple[Evaluation, Evaluation], ends: tuple[Sequence[End], Sequence[End]]) -> str:
    """Return by which number all gradients of the target are the baseline's, in a clause; "" if by none, or by 1."""
    theirs = {end.name: end for end in ends[1] if end.is_named}
    pairs = [(end, theirs[end.name]) for end in ends[0] if end.is_named and end.name in theirs]
    signatures = [(_signature(sides[0], one), _signature(sides[1], other)) for one, other in pairs]
    known = [(one, other) for one, other in signatures if one and other and other.norm > other.noise]
    if len(known) < max(_LEAST, len(pairs)):
        return ""
    factor = known[0][0].norm / known[0][1].norm
    if known[0][0].first * known[0][1].first < 0:
        factor = -factor
    simple = Fraction(factor).limit_denominator(_MOST_PARTS)
    if simple in (0, 1) or not all(_is_times(*pair, float(simple)) for pair in known):
        return ""
    return f"each gradient is exactly {simple} times the baseline's"


def _signature(side: Evaluation, end: End) -> Signature | None:
    writer = side.flow.writer(end.value)
    return side.signatures.get(end.value.id) or (None if writer is None else side.signatures.get(writer[2].id))


def _is_times(one: Signature, other: Signature, factor: float) -> bool:
    allowed = _ROUNDING * abs(factor) * other.norm + one.noise + abs(factor) * other.noise
    return one.numel == other.numel and all(abs(apart) <= 5 * allowed for apart in _apart(one, other, factor))


def _apart(one: Signature, other: Signature, factor: float) -> Iterator[float]:
    yield one.norm - abs(factor) * other.norm
    yield one.first - factor * other.first
    yield one.second - factor * other.second
