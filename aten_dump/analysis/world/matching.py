"""Matches the ends of all ranks of both sides.

Theory of operation
    Gradients are matched by name; their pieces on all ranks must make up the same tensor on both sides. Memory that the
    step changed is matched if it was the same tensor before and after the step, in the same arrangement. Each rank and
    each micro-batch has a loss for its own samples, so only the mean or the sum of the losses counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from ...dump import Value
from ..ends.ends import End
from ..rerun.shared_memory import extent
from ..signatures.signature import TOLERANCE
from .arrangements import Arrangement
from .groups import Group, Match, match, near, norm, right_ranks
from .side import Side

Sides = tuple[Side, Side]


@dataclass(slots=True)
class Matched:
    """The matched and unmatched ends of both sides."""

    odd: tuple[list[End], list[End]] = field(default_factory=lambda: ([], []))
    gradients: list[Match] = field(default_factory=list)
    left: list[Match] = field(default_factory=list)
    means: list[str] = field(default_factory=list)  # gradients that one side's optimizer does not read: others count
    compared: int = 0  # ends with a counterpart

    @property
    def differs(self) -> bool:
        return bool(self.odd[0] or self.odd[1])


class Matching:
    """Matches the ends of both sides."""

    def __init__(self, sides: Sides) -> None:
        self._sides = sides
        self._found = Matched()
        self._ends: tuple[dict[int, End], dict[int, End]] = ({}, {})
        for side, known in zip(sides, self._ends, strict=True):
            for end in side.ends:
                known[end.value.id if end.buffer is None else end.buffer.id] = end

    def run(self) -> Matched:
        """Match all kinds of ends."""
        self._losses()
        self._left()
        self._named("gradient")
        if not self._found.compared and not self._found.differs:
            self._named("output")
        return self._found

    def _add(self, side: int, group: Group, but: Sequence[int] = ()) -> None:
        for rank, value in group.values.items():
            end = self._ends[side].get(value.id)
            if end is not None and rank not in but:
                self._found.odd[side].append(end)

    # -- losses ------------------------------------------------------------------------------------------------------

    def _losses(self) -> None:
        ours, theirs = (side.losses() for side in self._sides)
        if not ours or not theirs:
            return
        noise = sum(one[2] for one in (*ours, *theirs))
        numbers = [one[1] for one in ours], [one[1] for one in theirs]
        sums = sum(numbers[0]), sum(numbers[1])
        allowed = TOLERANCE * max(abs(number) for number in (*numbers[0], *numbers[1])) + noise
        scales = {1.0, len(ours) / len(theirs), *(self._ranks_per_loss())}
        is_same = any(abs(sums[0] - scale * sums[1]) <= allowed * max(1.0, scale) * len(ours) for scale in scales)
        if is_same:
            self._found.compared += 1
            return
        for side, losses in enumerate((ours, theirs)):
            self._found.odd[side].extend(end for end, _, _ in losses)

    def _ranks_per_loss(self) -> Iterator[float]:
        one, other = (len(side.rank.ranks) for side in self._sides)
        yield from (one / other, float(one), 1.0 / other)

    # -- gradients and outputs ---------------------------------------------------------------------------------------

    def _named(self, kind: str) -> None:
        ours, theirs = (side.groups(kind) for side in self._sides)
        for groups, against in ((ours, self._sides[1]), (theirs, self._sides[0])) if kind == "gradient" else ():
            for name in [name for name in groups if name in against.means]:
                self._found.means.append(name)
                del groups[name]
        for name in [name for name in ours if name in theirs]:
            one, other = ours.pop(name), theirs.pop(name)
            found = match(one, other, (known.ways for known in self._found.left))
            if found is None:
                self._add(0, one, right_ranks(one, other))
                self._add(1, other, right_ranks(other, one))
                continue
            self._found.compared += 1
            if kind == "gradient":
                self._found.gradients.append(found)
        rest = list(theirs.values())
        for one in ours.values():
            twin = next((other for other in rest if match(one, other) is not None), None)
            if twin is None:
                self._add(0, one)
            else:
                rest.remove(twin)
                self._found.compared += 1
        for other in rest:
            self._add(1, other)

    # -- memory ------------------------------------------------------------------------------------------------------

    def _left(self) -> None:
        groups = [self._sides[side].left_groups() for side in (0, 1)]
        rest = self._matched(groups[0], groups[1])
        alone = [[one for group in groups for one in _by_rank(group)] for groups in rest]
        rest = self._matched(alone[0], alone[1])
        for side in (0, 1):
            known = [match.baseline if side else match.target for match in self._found.left]
            for group in rest[side]:
                if self._is_end(side, group) and not _is_within(group, known):
                    self._add(side, group)

    def _matched(self, ours: list[Group], theirs: list[Group]) -> tuple[list[Group], list[Group]]:
        """Match memory; return what has no counterpart. Of two that were changed alike each has its own."""
        known = _Wholes(theirs)
        left, taken = [], set[int]()
        for group in ours:
            found: Match | None = None
            for other in known.like(group):
                if (found is None or id(other) not in taken) and (one := match(group, other)) is not None:
                    found = one
                    if id(other) not in taken:
                        break
            if found is None:
                left.append(group)
                continue
            taken.add(id(found.baseline))
            self._found.left.append(found)
            self._found.compared += 1
        return left, [group for group in theirs if id(group) not in taken]

    def _is_end(self, side: int, group: Group) -> bool:
        """Return True if memory without a counterpart counts: it was changed, and the other side has no such change."""
        evaluation, other = self._sides[side].evaluation, self._sides[1 - side].evaluation
        for rank, value in group.values.items():
            is_changed = not near(group.now[rank], group.before[rank], 1e-12 * norm(group.now[rank]))
            is_known = evaluation.at_end.get(value.id) in other.holders
            if is_changed and not is_known and not self._sides[side].is_read(value):
                return True
        return False


def _is_within(group: Group, known: Sequence[Group]) -> bool:
    """Return True if other groups hold all memory of one: it was taken in parts and as a whole."""
    return all(
        value.storage
        and sum(
            _shared_bytes(value, other)
            for one in known
            for other in one.values.values()
            if other.storage == value.storage and other.rank is value.rank
        )
        >= _shared_bytes(value, value)
        for value in group.values.values()
    )


def _shared_bytes(one: Value, other: Value) -> int:
    """Return how many bytes of one storage two values have in common."""
    (low, high), (start, end) = extent(one), extent(other)
    return max(0, min(high, end) - max(low, start))


class _Wholes:
    """Groups by the tensors that they may make up."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self._by_shape: dict[tuple[int, ...], list[tuple[float, Group]]] = defaultdict(list)
        for group in groups:
            for way in group.ways():
                self._by_shape[way.shape].append((_norm_of(way, group.before), group))

    def like(self, group: Group) -> Iterator[Group]:
        """Yield the groups whose contents before the step had the same size."""
        seen: set[int] = set()
        for way in group.ways():
            size = _norm_of(way, group.before)
            for other, known in self._by_shape.get(way.shape, ()):
                if id(known) not in seen and abs(size - other) <= 1e-6 * max(size, other):
                    seen.add(id(known))
                    yield known
        shapes = {tuple(tensor.shape) for tensor in group.now.values()}
        for shape, groups in self._by_shape.items():  # rows may be anywhere
            for _, known in groups:
                if id(known) not in seen and len(known.now) != len(group.now) and any(
                    len(one) == len(shape) and sum(a != b for a, b in zip(one, shape, strict=True)) == 1
                    for one in shapes
                ):  # fmt: skip
                    seen.add(id(known))
                    yield known


def _norm_of(way: Arrangement, pieces: dict[int, Tensor]) -> float:
    return norm(way.join(pieces))


def _by_rank(group: Group) -> Iterator[Group]:
    for rank in group.now:
        yield Group(
            group.name,
            {rank: group.values[rank]},
            {rank: group.now[rank]},
            {rank: group.moved[rank]} if rank in group.moved else {},
            {rank: group.before[rank]},
        )
