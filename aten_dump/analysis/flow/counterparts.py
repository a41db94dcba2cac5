"""What is known of pairs of values while two recordings are walked: who is whose counterpart, and how both compare.

Theory of operation
    Counterparts form classes: values of both sides that stand for the same thing. A class begins with a result of two
    calls that were paired, or with memory from outside that both read at one place; views of the same elements join it.
    In a class the numbers may differ, by noise or because of a cause that was found before: the `State` says so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal

from ...dump import Call, Value
from ..distance.metrics import Measured, measure
from ..distance.value_distance import Closeness, closeness
from ..evidence.states import State
from ..rerun.run_op import without
from ..rerun.undefined_elements import DEPENDS
from .undefined_memory import UndefinedMemory

Side = Literal[0, 1]  # the target's, the baseline's
UNWRITTEN: Final = "it depends on memory that nothing had written"
NOT_TOLD: Final = "it may depend on memory that nothing had written: that cannot be told, and it was not compared"


class Counterparts:
    """Classes of counterparts, the states of pairs, and how close pairs are, each computed once."""

    def __init__(self, *, read_data: bool, undefined: tuple[UndefinedMemory, UndefinedMemory] | None = None) -> None:
        self.depth = 0
        self._undefined = undefined
        self.read_data = read_data
        self._states: dict[tuple[int, int], State] = {}
        self._close: dict[tuple[int, int], Closeness] = {}
        self._measured = Measured()
        self._parents: dict[tuple[Side, int], tuple[Side, int]] = {}
        self._partners: tuple[dict[int, Value], dict[int, Value]] = ({}, {})
        self._targets: dict[int, Value] = {}

    def close(self, target: Value, baseline: Value) -> Closeness:
        """Return the closeness of a pair of values; of undefined elements nothing is said."""
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
        if found.shape is not None:  # which may depend on that memory too
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

    def holds_undefined(self, side: Side, value: Value) -> bool:
        """Tell whether something of a value depends on memory that nothing had written."""
        return value.undefined or (self._undefined is not None and self._undefined[side].elements(value) is not None)

    def leaves_undefined(self, side: Side, call: Call) -> bool:
        """Tell whether something of what a call made depends on memory that nothing had written."""
        values = [value for _, value in call.result_values()]
        told = None if self._undefined is None else self._undefined[side].elements
        found = [None if told is None else told(value) for value in values]
        return any(v.undefined for v in values) or any(e is not None and bool((e == DEPENDS).any()) for e in found)

    def find(self, target: Value, baseline: Value) -> State | None:
        """Return the state of a pair of values; None where they are not known to be counterparts."""
        return self._states.get((target.id, baseline.id))

    def keep(self, target: Value, baseline: Value, state: State) -> None:
        """Note that two values are counterparts, and their state."""
        self._states[target.id, baseline.id] = state
        self._partners[0].setdefault(target.id, baseline)
        self._targets.setdefault(target.id, target)
        self._partners[1].setdefault(baseline.id, target)
        self._parents[self.class_of(0, target)] = self.class_of(1, baseline)
        self.depth = max(self.depth, state.depth)

    def pairs(self) -> list[tuple[Value, Value]]:
        """Return the values of the target that have a counterpart, with the first one."""
        return [(target, self._partners[0][target.id]) for target in self._targets.values()]

    def is_known(self, side: Side, value: Value) -> bool:
        """Tell whether a value has a counterpart."""
        return value.id in self._partners[side]

    def partner(self, side: Side, value: Value) -> Value | None:
        """Return the first counterpart of a value."""
        return self._partners[side].get(value.id)

    def class_of(self, side: Side, value: Value) -> tuple[Side, int]:
        """Return what stands for the class of a value."""
        key: tuple[Side, int] = (side, value.id)
        root = key
        while (parent := self._parents.get(root, root)) != root:
            root = parent
        while key != root:
            key, self._parents[key] = self._parents.get(key, root), root
        return root

    def state_of(self, value: Value) -> State | None:
        """Return the state of a value of the target's and its counterpart."""
        partner = self._partners[0].get(value.id)
        return None if partner is None else self._states.get((value.id, partner.id))
