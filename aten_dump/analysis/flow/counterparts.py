"""Computes once how close pairs of values are, and keeps the states of judged pairs.

Elements that depend on unwritten memory are left out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal

from ...dump import Value
from ..distance.metrics import Measured, measure
from ..distance.value_distance import Closeness, closeness
from ..evidence.judgement import State
from ..rerun.run_op import without
from ..rerun.undefined_elements import DEPENDS
from .undefined_memory import UndefinedMemory

Side = Literal[0, 1]  # the target's, the baseline's
UNWRITTEN: Final = "it depends on memory that nothing had written"
NOT_TOLD: Final = "it may depend on memory that nothing had written: nobody knows, and it was not compared"


class Counterparts:
    """The states of pairs, and how close they are, each computed once."""

    def __init__(self, *, read_data: bool, undefined: tuple[UndefinedMemory, UndefinedMemory] | None = None) -> None:
        self.depth = 0
        self._undefined = undefined
        self.read_data = read_data
        self._states: dict[tuple[int, int], State] = {}
        self._close: dict[tuple[int, int], Closeness] = {}
        self._measured = Measured()
        self._partners: tuple[dict[int, Value], dict[int, Value]] = ({}, {})

    def close(self, target: Value, baseline: Value) -> Closeness:
        """Return the closeness of a pair of values, without undefined elements."""
        key = target.id, baseline.id
        found = self._close.get(key)
        if found is None:
            found = closeness(target, baseline, data=self.read_data, known=self._measured)
            found = self._close[key] = self._of_defined(target, baseline, found)
        return found

    def _of_defined(self, target: Value, baseline: Value, found: Closeness) -> Closeness:
        """Leave out the elements that are undefined on both sides; those of one side are a difference."""
        if self._undefined is None or not found.known:
            return found
        sides = list(zip(self._undefined, (target, baseline), strict=True))
        one, other = (memory.elements(value) for memory, value in sides)
        if one is None and other is None:
            return found
        nothing = replace(found, level="none", bitwise=False, error=None, metrics=None, nonfinite=False, undefined=True)
        if found.shape is not None:  # they may depend on that memory too
            return found if one is None or other is None else replace(nothing, reason=UNWRITTEN)
        if any(memory.is_guessed(value) for memory, value in sides) or not (target.has_data and baseline.has_data):
            return found if found.error == 0 and not found.nonfinite else replace(nothing, reason=NOT_TOLD)
        if one is None or other is None:
            return found
        mask = (one.maximum(other) == DEPENDS) & (one.minimum(other) > 0)
        if bool(mask.all()):
            return replace(nothing, reason=UNWRITTEN)
        if found.bitwise:
            return found
        apart = measure(without(mask, target.tensor()), without(mask, baseline.tensor()))
        why = f"{int(mask.sum())} of {mask.numel()} elements depend on memory that nothing had written"
        return replace(
            found, bitwise=apart.bitwise, error=apart.rel_l2, metrics=apart, nonfinite=apart.nonfinite > 0, reason=why
        )

    def find(self, target: Value, baseline: Value) -> State | None:
        """Return the state of a pair of values; None if they are not known to be counterparts."""
        return self._states.get((target.id, baseline.id))

    def keep(self, target: Value, baseline: Value, state: State) -> None:
        """Note that two values are counterparts, and their state."""
        self._states[target.id, baseline.id] = state
        self._partners[0].setdefault(target.id, baseline)
        self._partners[1].setdefault(baseline.id, target)
        self.depth = max(self.depth, state.depth)

    def partner(self, side: Side, value: Value) -> Value | None:
        """Return the first counterpart of a value."""
        return self._partners[side].get(value.id)
