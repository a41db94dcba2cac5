"""Sources of one rank that are no part of what the other side has there: other data, another parameter.

Theory of operation
    What the ranks of a side read first at one place is one tensor. Where the ranks hold their parts of a tensor of the
    other side's, but for some of them, those read other contents. No call made these: nothing comes before them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from ...dump import Value
from ..cone.cone import cone_of
from ..ends.ends import End
from .carried import by_role
from .groups import Group, near, right_ranks
from .side import Side


@dataclass(frozen=True, slots=True)
class Foreign:
    """A source that is not what its rank would hold of the other side's tensor."""

    side: int
    value: Value
    twin: int | None  # the rank that holds the same as its own part


def foreign_sources(
    sides: tuple[Side, Side], contents: Mapping[int, Tensor], odd: tuple[Sequence[End], Sequence[End]]
) -> Iterator[Foreign]:
    """Yield the sources behind some ends that only some ranks hold as the other side does.

    Args:
        sides: evaluated.
        contents: of the baseline's sources, by id, that were not taken as recorded.
        odd: ends that differ.
    """
    for side in (0, 1):
        if len(sides[side].rank.ranks) < 2 or not odd[side]:
            continue
        cone = cone_of(sides[side].evaluation, (), [end.value for end in odd[side]])
        groups = [one for one in by_role(sides[side], set(cone.sources)).values() if len(one.now) > 1]
        groups = [group for group in groups if not _is_replicated(group, sides[side], sides[1 - side])]
        others = list(by_role(sides[1 - side], set(sides[1 - side].evaluation.sources)).values()) if groups else []
        for one, is_baseline in ((groups, side), (others, not side)):
            _take(one, contents if is_baseline else {})
        for group in groups:
            yield from _odd_ones(side, group, others)


def _take(groups: Sequence[Group], contents: Mapping[int, Tensor]) -> None:
    for group in groups:
        for rank, value in group.values.items():
            if value.id in contents:
                group.now[rank] = contents[value.id]


def _is_replicated(group: Group, side: Side, other: Side) -> bool:
    """Return True if all ranks hold the very same, which the other side holds as well."""
    numbers = {side.evaluation.numbers.get(value.id, 0) for value in group.values.values()}
    return len(numbers) == 1 and bool(other.evaluation.holders.get(*numbers))  # of a share nothing holds the number


def _odd_ones(side: int, group: Group, others: Sequence[Group]) -> Iterator[Foreign]:
    right = max((right_ranks(group, other) for other in others), key=len, default=[])
    if not right:
        return
    for rank, value in group.values.items():
        if rank not in right:
            own = group.now[rank]
            yield Foreign(side, value, next((one for one in right if near(own, group.now[one], 0.0)), None))
