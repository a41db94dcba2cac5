"""What a comparison of one step and rank finds: rows and findings, as plain values that travel between processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ...choices import Status as Status
from ...dump import Call
from ...dump.shown.step_ranks import named
from ..distance.value_distance import Closeness, Level
from ..pairing.alignment import How
from .noise_floors import FloorFrom

Key = tuple[object, ...]  # of all meetings of one kind: a group and its ranks; or sender and receiver, and a tag

FindingKind = Literal[
    "source",
    "op",
    "argument",
    "dtype",
    "shape",
    "nonfinite",
    "random",
    "region",
    "rewired",
    "moved",
    "loss",
    "gradient",
    "left",
    "result",
    "precision",
]


@dataclass(frozen=True, slots=True)
class Place:
    """A call as evidence names it."""

    step: int
    rank: int
    id: int
    call: str
    op: str
    kind: str
    phase: str
    module: str
    source: str  # "file.py:12 in f", "" unknown
    forward: str  # names of partners, "" none
    backward: str


def place_of(call: Call) -> Place:
    """Return a call as evidence names it."""
    forward = call.forward
    rank = call.rank
    return Place(
        rank.step, rank.number_of(call.id), call.id, call.name, call.op, call.kind, call.phase, call.module, call.where,
        forward.name if forward else "", "",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One slot of one pair of calls, or one call without a counterpart."""

    target: Place | None
    baseline: Place | None
    how: How | Literal[""]
    slot: str
    status: Status
    closeness: Closeness | None = None
    floor: float | None = None  # as a relative L2
    floor_from: FloorFrom | Literal[""] = ""
    ratio: float | None = None  # error over the floor; above 1 is different
    own_error: float | None = None  # of the target's result against a float64 replay, relative L2
    amplification: float | None = None  # error of the output over the greatest error of an input
    note: str = ""
    floor_reason: str = ""  # why the floor is what it is; the rule that gave it
    seen: str = ""  # a clause: what the calls differ in, where no data show the effect

    @property
    def place(self) -> Place:
        found = self.target or self.baseline
        assert found is not None
        return found


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong here and not because of what came in."""

    kind: FindingKind
    row: Row
    text: str  # one sentence
    inputs: str  # what is known of the inputs, a clause
    order: tuple[int, int]  # id of the target's call, and 0 for its inputs, 1 for itself
    calls: tuple[str, ...] = ()  # of a region: the target's calls in it, then the baseline's
    facts: tuple[str, ...] = ()  # sentences: what makes the difference understandable

    @property
    def side(self) -> str:
        """The side whose call it is, where no call of the other side is its counterpart; else ""."""
        if self.row.target is not None and self.row.baseline is not None:
            return ""
        return "target" if self.row.baseline is None else "baseline"


@dataclass(frozen=True, slots=True)
class RankEvidence:
    """All that was found in one step and rank."""

    target: str
    baseline: str
    steps: tuple[int, int]
    ranks: tuple[int, int]
    level: Level  # the best data that was compared
    levels: dict[str, int]  # comparisons by data level
    calls: tuple[int, int]
    pairs: dict[str, int]  # pairs of calls by how they were found
    rows: Sequence[Row]
    findings: tuple[Finding, ...]  # in execution order
    modules: dict[str, str]  # renames of modules that were found
    paired: dict[str, str]  # names of calls: target to baseline
    notes: tuple[str, ...] = ()
    together: tuple[int, int] | None = None  # ranks of both sides that were put together; None: rank by rank
    incomplete: bool = False  # ranks are missing, so that nothing is the same
    proven: int = 0  # calls of the target that were shown to be right
    judged: int = 0  # calls of the target that make something, and were judged
    unproven: tuple[str, ...] = ()  # names of those that could only be estimated
    meets: tuple[Part, ...] = ()  # the target's collectives and messages
    leans: tuple[Leaning, ...] = ()  # on other ranks
    not_whole: tuple[str, ...] = ()  # what a side lacks, so that nothing is said to agree
    unshown: tuple[str, ...] = ()  # calls that are given other numbers, and no end shows it
    unknown_ends: tuple[str, ...] = ()  # losses, gradients and memory left behind that could not be compared

    def count(self, status: Status) -> int:
        return sum(row.status == status for row in self.rows)

    @property
    def cause(self) -> Finding | None:
        return self.findings[0] if self.findings else None


@dataclass(frozen=True, slots=True)
class Part:
    """What one rank has to do with a collective or a message."""

    key: Key
    number: int  # among those with the same key
    call: int
    sends: bool
    receives: bool


@dataclass(frozen=True, slots=True)
class Leaning:
    """A collective that is right, and brought what other ranks sent, which differs: the proof rests on those ranks."""

    call: str
    id: int
    ranks: tuple[int, ...]  # of the target's, whose share differs
    error: float  # greatest relative L2 between what they sent in both dumps
    limit: float  # what noise explains where those ranks are not compared

    def __str__(self) -> str:
        return (
            f"{self.call} brings what {named('rank', self.ranks)} sent, which differs by {self.error:.3g} (relative L2)"
        )
