"""What is known of pairs of values while two recordings are walked: who is whose counterpart, and how both compare.

Theory of operation
    Counterparts form classes: values of both sides that stand for the same thing. A class begins with a result of two
    calls that were paired, or with memory from outside that both read at one place; views of the same elements join it.
    In a class the numbers may differ, by noise or because of a cause that was found before: the `State` says so.
"""

from __future__ import annotations

from typing import Literal

from ...dump import Value
from ..distance.metrics import Measured
from ..distance.value_distance import Closeness, closeness
from ..evidence.states import State

Side = Literal[0, 1]  # the target's, the baseline's


class Counterparts:
    """Classes of counterparts, the states of pairs, and how close pairs are, each computed once."""

    def __init__(self, *, read_data: bool) -> None:
        self.depth = 0
        self.read_data = read_data
        self._states: dict[tuple[int, int], State] = {}
        self._close: dict[tuple[int, int], Closeness] = {}
        self._measured = Measured()
        self._parents: dict[tuple[Side, int], tuple[Side, int]] = {}
        self._partners: tuple[dict[int, Value], dict[int, Value]] = ({}, {})
        self._targets: dict[int, Value] = {}

    def close(self, target: Value, baseline: Value) -> Closeness:
        """Return the closeness of a pair of values."""
        key = target.id, baseline.id
        found = self._close.get(key)
        if found is None:
            found = self._close[key] = closeness(target, baseline, data=self.read_data, known=self._measured)
        return found

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
