"""What is known of pairs of values while two recordings are walked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ...dump import Value
from ..distance.value_distance import Closeness, closeness
from .evidence import Status
from .pair_judge import Inputs

WORSE: Final = {"same": 0, "unknown": 0, "within": 1, "different": 2}


@dataclass(frozen=True, slots=True)
class State:
    """What is known of a pair of values."""

    status: Status
    error: float
    depth: int
    noise: float = 0.0  # root mean square of the difference


class States:
    """States by pair of values, and the counterpart of each value.

    Views of one memory at one moment share a state: what was judged through one view holds for the others.
    """

    def __init__(self, *, read_data: bool, before: States | None = None) -> None:
        self.partners: dict[int, Value] = {}  # the baseline's value by the target's id
        self.known_baseline: dict[int, int] = {}  # serial number in order of the walk, by the baseline's id
        self.precisions: set[tuple[str, str]] = set()  # dtypes in which sources differ
        self.depth = 0
        self._read_data = read_data
        self._states: dict[tuple[int, int], State] = {}
        self._moments: dict[tuple[int, int, int, int], State] = {}
        self._close: dict[tuple[int, int], Closeness] = {} if before is None else before._close

    def close(self, target: Value, baseline: Value) -> Closeness:
        """Return the closeness of a pair of values, computed once."""
        key = target.id, baseline.id
        found = self._close.get(key)
        if found is None:
            found = self._close[key] = closeness(target, baseline, data=self._read_data)
        return found

    def find(self, target: Value, baseline: Value) -> State | None:
        """Return the state of a pair of values; None where there is none yet."""
        state = self._states.get((target.id, baseline.id))
        if state is None and target.storage and baseline.storage and target.shape == baseline.shape:
            key = (target.storage, target.version, baseline.storage, baseline.version)
            state = self._moments.get(key)
            if state is not None and self.close(target, baseline).bitwise:
                return State("same", 0.0, state.depth)
        return state

    def keep(self, target: Value, baseline: Value, state: State) -> None:
        """Note the state of a pair; the two are each other's counterpart from now on."""
        self._states[target.id, baseline.id] = state
        self.partners[target.id] = baseline
        self.known_baseline.setdefault(baseline.id, len(self.known_baseline))
        self.depth = max(self.depth, state.depth)
        if target.storage and baseline.storage:
            key = (target.storage, target.version, baseline.storage, baseline.version)
            known = self._moments.get(key)
            if known is None or WORSE[state.status] > WORSE[known.status]:
                self._moments[key] = state


def inputs_of(states: Sequence[State], same_shapes: bool, same_dtypes: bool) -> Inputs:
    """Return the worst of some states."""
    worst: Status = "same"
    for state in states:
        if WORSE[state.status] > WORSE[worst]:
            worst = state.status
    error = max((state.error for state in states), default=0.0)
    depth = max((state.depth for state in states), default=0)
    noise = max((state.noise for state in states), default=0.0)
    return Inputs(worst, error, depth, same_shapes, same_dtypes, noise)
