"""Gives the baseline the tensors with which the target's ranks begin a step.

Theory of operation
    A tensor that the step before changed on both sides, and that was the same there, is the same here, even if rounding
    makes it differ. Memory that the step before created (moments of an optimizer) is matched by its role: of which
    parameter it is, or where each side reads it. The target's pieces are joined, and the baseline's ranks get their
    pieces of the whole.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

from torch import Tensor

from ...dump import Value
from ..evaluation.memory import UNREADABLE
from ..explanation.state_names import OWNER, StateNames
from ..flow.data_flow import DataFlow
from ..pairing.call_keys import normal_module
from ..rerun.start_tensors import start_tensors
from ..sources.stand_ins import Contents, Recorded, sources_in
from .groups import Group, Match, Ways, norm
from .side import Side

_NEAR: Final = 2e-2  # relative L2 of tensors in the same role, if the step before is unknown


@dataclass(slots=True)
class Carried:
    """The contents that the baseline's sources get.

    Attributes:
        stand_ins: contents, by id of the baseline's value.
        unknown: the baseline's sources that may or may not stand for the target's.
    """

    stand_ins: dict[int, Tensor] = field(default_factory=dict)
    unknown: list[Value] = field(default_factory=list)


class Carrying:
    """Finds what stands for the baseline's sources."""

    def __init__(self, target: Side, baseline: Side, before: tuple[Side, Side, Sequence[Match]] | None) -> None:
        """Take both sides, of which the target is evaluated; `before` has the sides of the step before."""
        self._target, self._baseline = target, baseline
        self._recorded = Recorded()
        self._before = before
        self._found = Carried()
        self._known: list[Ways] = [] if before is None else [found.ways for found in before[2]]

    def run(self, *, by_role: bool) -> Carried:
        """Find them. With `by_role`, sources that differ stand for each other if they are read in the same role."""
        ours = {self._recorded.contents(value) for value in self._target.evaluation.sources.values()}
        rest = [v for v in sources_in(self._baseline.flow) if self._recorded.contents(v) not in ours]
        rest = [value for value in rest if not self._from_before(value)]
        self._found.unknown = [value for value in rest if value.is_floating and value.numel > 1]
        if by_role:
            self._by_role({value.id for value in rest})
        return self._found

    def _from_before(self, value: Value) -> bool:
        """Give a source what the step before left of it on the target's side; return False if that is unknown."""
        found = self._left.get(self._recorded.contents(value))
        if found is None:
            return False
        match, rank = found
        side = self._before[0] if self._before is not None else self._target
        pieces = _tensors({rank: side.places[v.id].last for rank, v in match.target.values.items()})
        if pieces is None or not match.ways[0].fits(pieces):
            return False
        piece = match.ways[1].cut(match.ways[0].join(pieces), rank)
        if piece.numel() != value.numel:
            return False
        self._found.stand_ins[value.id] = piece.reshape(value.shape)
        return True

    @cached_property
    def _left(self) -> Mapping[Contents | None, tuple[Match, int]]:
        """What the step before left on the baseline's side, by contents."""
        found: dict[Contents | None, tuple[Match, int]] = {}
        for match in self._before[2] if self._before is not None else ():
            for rank, value in match.baseline.values.items():
                contents = self._recorded.contents(self._before[1].places[value.id].last)  # type: ignore[index]
                if contents is not None:
                    found.setdefault(contents, (match, rank))
        return found

    def _by_role(self, rest: set[int]) -> None:
        """Let sources of one role stand for each other: roles by name first, then those by place."""
        ours = by_role(self._target, set(self._target.evaluation.sources))
        theirs = by_role(self._baseline, rest)
        for role, other in sorted(theirs.items(), key=lambda item: not isinstance(item[0], Owned)):
            one = ours.get(role)
            if one is None or any(value.id in self._found.stand_ins for value in other.values.values()):
                continue
            ways = self._nearest(one, other)
            if ways is None:
                continue
            whole = ways[0].join(one.now)
            for rank, value in other.values.items():
                self._found.stand_ins[value.id] = ways[1].cut(whole, rank)
        self._found.unknown = [v for v in self._found.unknown if v.id not in self._found.stand_ins]

    def _nearest(self, one: Group, other: Group) -> Ways | None:
        """Return the arrangements of two groups in which they are nearly equal, or None."""
        best: tuple[float, Ways] | None = None
        for ways in self._ways(one, other):
            wholes = ways[0].join(one.now), ways[1].join(other.now)
            apart, size = norm(wholes[0] - wholes[1]), max(map(norm, wholes))
            distance = apart / size if size else 0.0
            if best is None or distance < best[0]:
                best = distance, ways
        is_near = best is not None and (best[0] <= _NEAR or self._before is not None)
        return best[1] if best is not None and is_near else None

    def _ways(self, one: Group, other: Group) -> Iterator[Ways]:
        theirs = list(other.ways())
        yield from ((a, b) for a in one.ways() for b in theirs if a.shape == b.shape)
        yield from (ways for ways in self._known if ways[0].fits(one.now) and ways[1].fits(other.now))


class Owned(NamedTuple):
    """The role of optimizer state: which it is, and of which parameter."""

    state: str
    parameter: str


def by_role(side: Side, chosen: set[int]) -> dict[Hashable, Group]:
    """Return some sources of a side by their roles on all ranks."""
    found: dict[Hashable, Group] = defaultdict(lambda: Group(""))
    for number, rank in side.rank.ranks.items():
        for own, roles in _roles(DataFlow(rank, "aten", wrapped=False)):
            value = side.rank.value_by_id(side.rank.value_on(number, own))
            tensors = _tensors({number: value}) if value.id in chosen else None
            for role in roles if tensors is not None else ():
                found[role].values[number] = value
                found[role].now |= tensors or {}
    return found


def _roles(flow: DataFlow) -> Iterator[tuple[int, list[Hashable]]]:
    """Yield the id of each source and its roles; only the first view of a memory counts.

    One is the place of its first read: a shard may be gathered in flat form before the optimizer reads it, while the
    other side reads it directly. Of optimizer state, which the ranks of a pipeline have of other parameters each,
    another is the name.
    """
    counts: Counter[Hashable] = Counter()
    seen: set[int] = set()
    names = StateNames(flow)
    for call in flow.calls():
        for slot, value in flow.reads(call):
            if flow.maker(value) is None and (value.storage or -value.id) not in seen:
                seen.add(value.storage or -value.id)
                state, _, parameter = names.of(value).name.partition(OWNER)
                place = call.module, call.phase, call.op, slot
                owned = [Owned(state, normal_module(parameter))] if parameter else []
                yield value.id, [*owned, (*place, counts[place])]
                counts[place] += 1


def _tensors(values: Mapping[int, Value]) -> dict[int, Tensor] | None:
    """Return the recorded contents of some values in float64, by the same keys; None if one cannot be read."""
    try:
        return {key: start_tensors([value])[value.id] for key, value in values.items()}
    except UNREADABLE:
        return None
