"""Values that belong together on the ranks of one side, and whether they make up what those of the other side do."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...dump import Value
from ...dump.across_ranks.part_grids import Grid
from ..signatures.signature import TOLERANCE
from .arrangements import Arrangement, Pieces, arranged_rows, arrangements

_EXACT = 1e-10  # relative


@dataclass(slots=True)
class Group:
    """What is one tensor of the program, on the ranks that hold something of it.

    Attributes:
        name: what it is called.
        values: by rank.
        now: the tensors in float64, by rank.
        moved: the same after an evaluation in which every result was moved a little; empty if there was none.
        before: of memory, what it held before the step.
        grids: how a distributed tensor was placed, on each mesh.
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
        """Yield how the pieces may lie."""
        yield from arrangements(self.now, self.grids)


@dataclass(frozen=True, slots=True)
class Match:
    """Two groups that are the same tensor, and how each lies on its ranks."""

    target: Group
    baseline: Group
    ways: tuple[Arrangement, Arrangement]


def match(target: Group, baseline: Group) -> Match | None:
    """Return how two groups are the same tensor; None if they are not."""
    theirs = list(baseline.ways())
    for one in target.ways():
        for other in theirs:
            if one.shape == other.shape and _agree(target, baseline, (one, other)):
                return Match(target, baseline, (one, other))
    return _match_rows(target, baseline) or _match_rows(baseline, target, swapped=True)


def _match_rows(parts: Group, whole: Group, *, swapped: bool = False) -> Match | None:
    """Match pieces of which the rows lie anywhere in what each rank of the other side has."""
    other = next(iter(whole.ways()), None)
    if other is None or len(parts.now) < 2 or len(whole.now) > 1:
        return None
    (tensor,) = (whole.before or whole.now).values()
    allowed = TOLERANCE * norm(tensor) + sum(parts.noise(rank) for rank in parts.now)
    if tensor.dim() < 1 or tensor.numel() > 1 << 20:
        return None
    one = arranged_rows(parts.before or parts.now, tensor.to(torch.float64), allowed)
    if one is None:
        return None
    pair = (whole, parts) if swapped else (parts, whole)
    ways = (other, one) if swapped else (one, other)
    return Match(*pair, ways) if _agree(*pair, ways) else None


def _agree(target: Group, baseline: Group, ways: tuple[Arrangement, Arrangement]) -> bool:
    if target.before and baseline.before and not _same(target.before, baseline.before, ways, {}, _of_start):
        return False
    noise = {rank: target.noise(rank) for rank in target.now}, {rank: baseline.noise(rank) for rank in baseline.now}
    total = math.sqrt(sum(one**2 for side in noise for one in side.values()))
    return _same(target.now, baseline.now, ways, {0: total}, TOLERANCE)


_of_start = 1e-6


def _same(
    ours: Pieces, theirs: Pieces, ways: tuple[Arrangement, Arrangement], noise: Mapping[int, float], tolerance: float
) -> bool:
    wholes = ways[0].join(ours), ways[1].join(theirs)
    allowed = tolerance * norm(wholes[0]) + noise.get(0, 0.0) + 1e-300
    if wholes[0].shape != wholes[1].shape or not near(*wholes, allowed):
        return False
    return all(near(piece, ways[0].cut(wholes[1], rank), allowed) for rank, piece in ours.items()) and all(
        near(piece, ways[1].cut(wholes[0], rank), allowed) for rank, piece in theirs.items()
    )


def near(one: Tensor, other: Tensor, allowed: float) -> bool:
    """Return True if two tensors are no further apart, L2, and neither has numbers where the other has none."""
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
