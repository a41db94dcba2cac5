"""What is said of one result or input: its status, whether it is wrong here, and against which floor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ...dump import Value
from ..distance.value_distance import Closeness
from ..rerun.op_errors import OwnError
from .findings import Status
from .noise_floors import FloorFrom

WORSE: Final = {"same": 0, "within": 1, "unknown": 2, "different": 3}

_PROOFS: Final = ("exact", "replay", "semantics")
Compared = tuple[Value, Value, Closeness]  # the target's value, the baseline's, and how close they are


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is to be said of one pair of values."""

    status: Status
    guilty: bool = False  # wrong here, whatever came in
    floor: float | None = None
    floor_from: FloorFrom | Literal[""] = ""
    ratio: float | None = None
    own: OwnError | None = None
    note: str = ""
    reason: str = ""  # why the floor is what it is
    seen: str = ""  # a clause: what the calls differ in, where no data show the effect

    @property
    def proven(self) -> bool:
        """True where it was shown, not estimated."""
        return self.floor_from in _PROOFS and self.status != "unknown"


@dataclass(frozen=True, slots=True)
class State:
    """What is known of a pair of counterparts."""

    status: Status
    error: float = 0.0  # relative L2 between them
    depth: int = 0  # ops that it went through, for what has to be estimated
    noise: float = 0.0  # root mean square of the difference
    undefined: bool = False  # all of it depends on memory that nothing had written


@dataclass(frozen=True, slots=True)
class Inputs:
    """What is known of all inputs of a pair of calls together."""

    worst: Status  # same, within, unknown or different
    error: float  # greatest relative L2 among them
    depth: int
    same_shapes: bool
    same_dtypes: bool
    noise: float = 0.0  # greatest root mean square of a difference among them
    undefined: bool = False  # one depends on memory that nothing had written, and so does all that is made of them

    @property
    def agree(self) -> bool:
        return self.worst in ("same", "within")


def inputs_of(states: Sequence[State], *, same_shapes: bool = True, same_dtypes: bool = True) -> Inputs:
    """Return what is known of some states together."""
    worst: Status = "same"
    for state in states:
        worst = max(worst, state.status, key=lambda status: WORSE[status])
    return Inputs(
        worst,
        max((state.error for state in states), default=0.0),
        max((state.depth for state in states), default=0),
        same_shapes,
        same_dtypes,
        max((state.noise for state in states), default=0.0),
        any(state.undefined for state in states),
    )
