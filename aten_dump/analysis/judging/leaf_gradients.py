"""Which leaf a gradient is accumulated into, where no model gives parameters their names.

Theory of operation
    A run of ``AccumulateGrad`` says what it is given, not for which leaf. The backward of a Python-level call sends a
    gradient for each input of that call: if what a run is given was sent, or made of what was sent, for one such input
    that no node made, that is the leaf. Backward reaches leaves in another order where the programs are written
    otherwise, and alignment then pairs the copies for one leaf with those for another. Leaves tell: those made by
    paired calls are counterparts, those from outside are if they hold the same. Of several that hold the same it is
    the one that is sent the same.

    A leaf whose counterpart gets no gradient was cut off there, by a detach or a block without gradients, or is frozen.
    That is said only where the leaf of every run on that side is known. Of a leaf that the step itself makes it takes a
    detach: a block that is checkpointed makes leaves of its inputs, whose counterparts need no gradient.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from ...dump import Call
from ..flow.counterparts import Side
from ..flow.data_flow import DataFlow
from ..flow.leaves import ACCUMULATES, LeafGradient, accumulations, sent
from .cut_gradients import detach_of
from .knowledge import Knowledge

_MOST_ALIKE: Final = 8  # leaves that hold the same; of more it is left to alignment


@dataclass(frozen=True, slots=True)
class LostGradient:
    """A gradient of a leaf whose counterpart gets none."""

    having: Side
    found: LeafGradient
    detach: Call | None  # that takes it on the other side alone


class LeafGradients:
    """Tells whether a pair of calls accumulates into other leaves; then all leaves' gradients are to be compared."""

    def __init__(self, knows: Knowledge) -> None:
        self._knows = knows
        self._is_crossed = False

    @property
    def _sides(self) -> tuple[dict[int, LeafGradient], dict[int, LeafGradient]]:
        return self._knows.links.leaf_gradients

    def is_crossed(self, target: Call, baseline: Call) -> bool:
        """Tell whether both calls are of ``AccumulateGrad``, but the target's leaf is another one of the baseline's."""
        nodes = target.parent, baseline.parent
        if nodes[0] is None or nodes[1] is None or not all(node.op.endswith(ACCUMULATES) for node in nodes if node):
            return False
        mine, theirs = (side.get(node.id) for side, node in zip(self._sides, nodes, strict=True) if node is not None)
        if mine is None or theirs is None or self._are_partners(mine, theirs):
            return False
        found = self._counterpart(mine)
        if found is None or found.leaf.id == theirs.leaf.id:
            return False
        self._is_crossed = True
        return True

    def pairs(self) -> Iterator[tuple[LeafGradient, LeafGradient]]:
        """Yield the gradients of leaves that are counterparts, where a pair was crossed."""
        for mine in self._sides[0].values() if self._is_crossed else ():
            found = self._counterpart(mine)
            if found is not None:
                yield mine, found

    def lost(self) -> Iterator[LostGradient]:
        """Yield the gradients of leaves that one side alone has, but those that both sides know by names."""
        runs = [{call.id for call in accumulations(flow)} for flow in self._knows.flows]
        if self._knows.wrapped or not all(runs):
            return
        named = [_named(flow) for flow in self._knows.flows]
        sides: tuple[Side, Side] = 0, 1
        for having in sides:
            lacking: Side = 0 if having else 1
            nameless = runs[having] - named[having] if all(named) else runs[having]
            if nameless and self._sides[lacking].keys() | named[lacking] >= runs[lacking]:
                known = [found for call, found in self._sides[having].items() if call in nameless and not found.turn]
                yield from self._lost(having, lacking, known)

    def _lost(self, having: Side, lacking: Side, known: Iterable[LeafGradient]) -> Iterator[LostGradient]:
        sent_for = {value.id for _, value in sent(self._knows.flows[lacking])}
        for found in known:
            other = self._knows.known.partner(having, found.leaf)
            if other is None or other.id in sent_for:
                continue
            detach = detach_of(self._knows, lacking, {other.id}, (0, sys.maxsize))
            values = (found.leaf, other) if having == 0 else (other, found.leaf)
            if detach is not None or self._knows.wiring.is_from_outside(*values):
                yield LostGradient(having, found, detach)

    def _counterpart(self, mine: LeafGradient) -> LeafGradient | None:
        alike = [other for other in self._sides[1].values() if other.turn == mine.turn and self._is_same(mine, other)]
        if len(alike) < 2:
            return alike[0] if alike else None
        rivals = [one for one in self._sides[0].values() if one.turn == mine.turn and self._is_same(one, alike[0])]
        return self._shared_out(rivals, alike).get(mine.leaf.id) if len(alike) <= _MOST_ALIKE else None

    def _shared_out(self, rivals: list[LeafGradient], alike: list[LeafGradient]) -> dict[int, LeafGradient]:
        """Return who is whose counterpart, by id of the leaf: who is sent the same, and the others in their order."""
        mean_the_same = self._knows.regions.mean_the_same
        found: dict[int, LeafGradient] = {}
        left = list(alike)
        for one in rivals:
            same = (other for other in left if mean_the_same(one.gradient, other.gradient))
            other = next(same, None)
            if other is not None:
                found[one.leaf.id] = other
                left.remove(other)
        lone = (one.leaf.id for one in rivals if one.leaf.id not in found)
        return found | dict(zip(lone, left, strict=False))

    def _are_partners(self, mine: LeafGradient, other: LeafGradient) -> bool:
        partner = self._knows.known.partner(0, mine.leaf)
        return partner is not None and partner.id == other.leaf.id

    def _is_same(self, mine: LeafGradient, other: LeafGradient) -> bool:
        knows, target, baseline = self._knows, mine.leaf, other.leaf
        if target.shape != baseline.shape:
            return False
        if not knows.wiring.is_from_outside(target, baseline):
            return self._are_partners(mine, other)
        said, _ = knows.sources.judge(target, baseline, knows.known.close(target, baseline))
        return said.status in ("same", "within")


def _named(flow: DataFlow) -> set[int]:
    """Return the ids of the calls that accumulate into parameters that have a name."""
    return {record.call for record in flow.rank.tables.gradients}
