"""What the evidence of one rank has to do with other ranks, as plain values that travel between processes."""

from __future__ import annotations

from dataclasses import dataclass

from ...dump.shown.step_ranks import named

Key = tuple[object, ...]  # of all meetings of one kind: a group and its ranks; or sender and receiver, and a tag


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
