"""What came of replaying calls: the local error of each op, the worst first, and what could not be run again."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from ..dump import Call
from .layers.layer_fault import LayerFault
from .notebook_view import replay_html
from .rerun.rounding_error import SUSPECT, LocalError


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """One call run again."""

    call: Call
    outputs: Any  # tree of tensors and plain values, as the op returned it; None where there is a reason
    mutated: dict[str, Any]  # arguments written in place, after the write, by name
    reason: str | None  # why it could not be run; None where it was


@dataclass(frozen=True, slots=True)
class ReplayedOp:
    """The local error of one op; plain values, so that it travels between processes."""

    name: str
    call_id: int
    op: str
    phase: str
    module: str
    source: str  # "file:line in function" of the user's code, "" where unknown
    forward: str  # name of the forward call that it belongs to, "" for none
    reference: str  # "float64", or the recorded dtype where the op has no float64 form
    results: tuple[LocalError, ...]
    drew: bool  # it drew random numbers

    @property
    def worst(self) -> LocalError:
        """The result that is furthest off."""
        return max(self.results, key=lambda result: result.ratio)

    @property
    def ratio(self) -> float:
        """Error against the floor of an honest implementation; up to 1 is as good as one."""
        return self.worst.ratio

    @property
    def bit_equal(self) -> bool:
        """True when recorded and replayed in the recorded dtype are the same bit by bit."""
        return all(result.bit_equal for result in self.results)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A call that could not be replayed, and why."""

    name: str
    op: str
    phase: str
    reason: str


@dataclass(frozen=True, slots=True)
class Replay:
    """What came of replaying the aten ops of one step and rank."""

    path: str
    step: int
    rank: int
    device: str
    dtype: str  # "float64", or "recorded"
    ops: tuple[ReplayedOp, ...]  # the worst first
    skipped: tuple[Skipped, ...]  # in execution order
    lacks: str = ""  # what the recording lacks, of which an op may be off too; "" for a whole one
    layers: tuple[LayerFault, ...] = ()  # of a compiler that made another function; of a whole step and rank alone

    @property
    def suspects(self) -> tuple[ReplayedOp, ...]:
        """The ops with a larger error than a correct implementation, the worst first."""
        return tuple(op for op in self.ops if op.ratio > SUSPECT)

    @property
    def guilty(self) -> ReplayedOp | None:
        """The worst suspect."""
        return next(iter(self.suspects), None)

    @property
    def unequal(self) -> tuple[ReplayedOp, ...]:
        """The ops whose replay in the recorded dtype is not the same bit by bit, in execution order."""
        return tuple(sorted((op for op in self.ops if not op.bit_equal), key=lambda op: op.call_id))

    @property
    def reasons(self) -> Counter[str]:
        """How many calls were left out for which reason."""
        return Counter(call.reason for call in self.skipped)

    def _repr_html_(self) -> str:
        ops = ((op.name, op.module, op.phase, op.worst) for op in self.ops)
        sentence = (
            f"{len(self.ops)} ops replayed on {self.device} in {self.dtype}, {len(self.skipped)} not; "
            f"{len(self.suspects)} have larger errors than a correct implementation."
        )
        if self.lacks:
            sentence = f"Not whole: {self.lacks}. {sentence}"
        return replay_html(f"{self.path} (step {self.step}, rank {self.rank})", sentence, ops)
