"""What is said of one result or input: its status, whether it is wrong here, and against which floor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from ...dump import Value
from ..distance.value_distance import Closeness
from ..rerun.op_errors import OwnError
from .findings import Status
from .noise_floors import FloorFrom

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
    seen: str = ""  # what the calls differ in, a clause, where no data tell what comes of it

    @property
    def proven(self) -> bool:
        """True where it was shown, not estimated."""
        return self.floor_from in _PROOFS and self.status != "unknown"
