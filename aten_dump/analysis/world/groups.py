"""Groups values that belong together on the ranks of one side, and compares their wholes with the other side's."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from ...dump import Value
from ...dump.across_ranks.part_grids import Grid
from ..signatures.signature import TOLERANCE
from .arrangements import Arrangement, Pieces, arranged_rows, arrangements

_MOST_ELEMENTS: Final = 1 << 20  # most elements of a tensor whose rows are looked for


@dataclass(slots=True)
class Group:
    """One tensor of the program, on the ranks that hold parts of it.

    Attributes:
        name: its name.
        values: by rank.
        now: the tensors in float64, by rank.
        moved: the same from an evaluation with every result moved a little; empty if there was none.
        before: of memory, what it held before the step.
        grids: the placements of a distributed tensor, on each mesh.
    """

    name: str
    values: dict[int, Value] = field(default_factory=dict)
    now: dict[int, Tensor] = field(default_factory=dict)
    moved: dict[int, Tensor] = field(default_factory=dict)
    before: dict[int, Tensor] = field(default_factory=dict)
    grids: tuple[Grid, ...] = ()

    def noise(self, rank: int) -> float:
        """Return how far rounding moves what a rank holds, L2."""
        other = self.moved.get(rank)
        if other is None or other.shape != self.now[rank].shape:
            return 0.0
        return 10 * norm(self.now[rank].nan_to_num() - other.nan_to_num())

    def ways(self) -> Iterator[Arrangement]:
        """Yield the possible arrangements of the pieces."""
        yield from arrangements(self.now, self.grids)


@dataclass(frozen=True, slots=True)
class Match:
    """Two groups that are the same tensor, and the arrangement of each on its ranks."""

    target: Group
    baseline: Group
    ways: tuple[Arrangement, Arrangement]


Ways = tuple[Arrangement, Arrangement]


def match(target: Group, baseline: Group, known: Iterable[Ways] = ()) -> Match | None:
    """Return the arrangements in which two groups are the same tensor; None if there are none.

    Args:
        target: of the target's ranks.
        baseline: of the baseline's.
        known: arrangements of other tensors: those of the same shapes may have the same.
    """
    theirs = list(baseline.ways())
    for one in target.ways():
        for other in theirs:
            if one.shape == other.shape and _agree(target, baseline, (one, other)):
                return Match(target, baseline, (one, other))
    for ways in known:
        if ways[0].fits(target.now) and ways[1].fits(baseline.now) and _agree(target, baseline, ways):
            return Match(target, baseline, ways)
    for ways in _with_rows(target, baseline):
        if _agree(target, baseline, ways):
            return Match(target, baseline, ways)
    return None


def right_ranks(group: Group, other: Group) -> list[int]:
    """Return the ranks that hold the right part of the other group's tensor, in the arrangement of most ranks."""
    best: list[int] = []
    for way in group.ways():
        for whole in (theirs.join(other.now) for theirs in other.ways() if theirs.shape == way.shape):
            allowed = TOLERANCE * norm(whole)
            right = [
                rank
                for rank, piece in group.now.items()
                if norm(piece) and near(piece, way.cut(whole, rank), allowed + group.noise(rank))
            ]
            best = max(best, right, key=len)
    return best


def _with_rows(target: Group, baseline: Group) -> Iterator[Ways]:
    """Yield arrangements of one side's pieces whose rows lie anywhere in the other side's whole."""
    for parts, whole in ((target, baseline), (baseline, target)):
        for other in whole.ways() if len(parts.now) > 1 else ():
            tensor = other.join(whole.before or whole.now)
            allowed = TOLERANCE * norm(tensor) + sum(parts.noise(rank) for rank in parts.now)
            if tensor.dim() > 0 and tensor.numel() <= _MOST_ELEMENTS:
                found = arranged_rows(parts.before or parts.now, tensor, allowed)
                if found is not None:
                    yield (found, other) if parts is target else (other, found)


def _agree(target: Group, baseline: Group, ways: Ways) -> bool:
    if target.before and baseline.before and not _same(target.before, baseline.before, ways, 0.0, TOLERANCE):
        return False
    noise = {rank: target.noise(rank) for rank in target.now}, {rank: baseline.noise(rank) for rank in baseline.now}
    total = math.sqrt(sum(one**2 for side in noise for one in side.values()))
    return _same(target.now, baseline.now, ways, total, TOLERANCE)


def _same(ours: Pieces, theirs: Pieces, ways: Ways, noise: float, tolerance: float) -> bool:
    wholes = ways[0].join(ours), ways[1].join(theirs)
    allowed = tolerance * norm(wholes[0]) + noise
    if wholes[0].shape != wholes[1].shape or not near(*wholes, allowed):
        return False
    return all(near(piece, ways[0].cut(wholes[1], rank), allowed) for rank, piece in ours.items()) and all(
        near(piece, ways[1].cut(wholes[0], rank), allowed) for rank, piece in theirs.items()
    )


def near(one: Tensor, other: Tensor, allowed: float) -> bool:
    """Return True if two tensors are no further apart, L2, and are finite at the same elements."""
    if one.shape != other.shape:
        return False
    one, other = one.to(torch.float64), other.to(torch.float64)
    finite = one.isfinite()
    if not torch.equal(finite, other.isfinite()):
        return False
    return norm(torch.where(finite, one - other, torch.zeros_like(one))) <= allowed


def norm(tensor: Tensor) -> float:
    """Return the L2 norm of the finite elements."""
    return float(torch.linalg.vector_norm(torch.nan_to_num(tensor.to(torch.float64), posinf=0.0, neginf=0.0)))
