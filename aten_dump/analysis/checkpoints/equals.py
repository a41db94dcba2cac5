"""Pair tensors that are all equal to the bit, by their names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from .found_weights import Weight
from .names import Names

_MOST_PAIRS: Final = 1 << 16
_TIED: Final = "equal, a copy (tied or replicated)"


def paired_equal(ours: Sequence[str], theirs: Sequence[str], names: Names) -> Iterator[Weight]:
    """Yield pairs of equal tensors, the likeliest names first; what is left of one side is tied to one that is paired.

    Args:
        ours: of the target, all equal.
        theirs: of the baseline, equal to them.
        names: what is known of names.
    """
    pairs = [(one, other) for one in ours for other in theirs][:_MOST_PAIRS]
    if len(pairs) > 1:
        pairs.sort(key=lambda pair: -names.closeness(*pair))
    left, free = dict.fromkeys(ours), dict.fromkeys(theirs)
    for one, other in pairs:
        if one in left and other in free:
            yield Weight((one,), (other,), ("equal",), "equal")
            del left[one], free[other]
    for one in left:
        nearest = max(theirs, key=lambda other: names.closeness(one, other))
        yield Weight((one,), (nearest,), ("equal", "tied"), _TIED)
    for other in free:
        nearest = max(ours, key=lambda one: names.closeness(one, other))
        yield Weight((nearest,), (other,), ("equal", "tied"), _TIED)
