"""State that an optimizer made in the step: another one, written by hand, may have had it before.

Not all that an optimizer writes is read in the same step: what Adadelta adds up of its steps is read in the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from ...dump import Value
from ..evidence.noise_floors import distance
from ..flow.counterparts import Counterparts, Side
from ..flow.data_flow import DataFlow
from ..flow.left_memory import LeftMemory
from ..flow.regions import Regions
from .updates import lasts, nearest


class MadeState:
    """What both sides' optimizers left in state that they made in the step."""

    def __init__(
        self,
        memory: Sequence[LeftMemory],
        flows: tuple[DataFlow, DataFlow],
        known: Counterparts,
        regions: Regions,
    ) -> None:
        """Begin, with the memory that both sides left."""
        self._memory = memory
        self._flows = flows
        self._known = known
        self._regions = regions

    def takes(self, side: Side, value: Value) -> bool:
        """Tell whether the other side left in such state what one side left in memory from outside; once for each."""
        made = self._all[1 - side]
        alike = nearest(self._known, side, value, made)
        found = next((state for state in alike if self._is_the_same(side, value, state)), None)
        if found is not None:
            made.remove(found)
        return found is not None

    def _is_the_same(self, side: Side, value: Value, state: Value) -> bool:
        """Tell whether both mean the same or, where statistics alone are known, are as near as rounding leaves them."""
        target, baseline = (state, value) if side else (value, state)
        close = self._known.close(target, baseline)
        is_near = close.level == "statistic" and distance(target, baseline, close, self._known.depth)[1] <= 1
        return close.bitwise or is_near or self._regions.mean_the_same(target, baseline)

    @cached_property
    def _all(self) -> tuple[list[Value], list[Value]]:
        ours, theirs = (
            _in_state(flow, memory.last.values()) for flow, memory in zip(self._flows, self._memory, strict=True)
        )
        return ours, theirs


def _in_state(flow: DataFlow, last: Iterable[Value]) -> list[Value]:
    """Return what was left in memory that the step's optimizer made to last."""
    return [v for v in last if not v.from_outside and lasts(flow, [v, *flow.earlier(v)][-1])]
