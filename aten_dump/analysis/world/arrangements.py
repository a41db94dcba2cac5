"""How pieces on several ranks make up one tensor: the place in the whole of each element of a piece.

Theory of operation
    A recording does not say how a plain tensor lies on ranks, so the usual arrangements are tried: all of it on each
    rank; consecutive pieces along one dimension, with replicas; the mesh and placements of a distributed tensor; rows
    anywhere in the whole. An arrangement is right if the pieces that it cuts out of the other side's whole are this
    side's pieces, on all ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...dump.across_ranks.part_grids import Grid
from ...errors import MissingDataError

Pieces = Mapping[int, Tensor]  # by rank


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Where the pieces of a tensor lie in the whole."""

    shape: tuple[int, ...]  # of the whole
    places: Mapping[int, Tensor]  # of each element in the row-major whole, i64, by rank

    def join(self, pieces: Pieces) -> Tensor:
        """Put the whole together."""
        whole = torch.full((math.prod(self.shape),), torch.nan, dtype=torch.float64)
        for rank, places in self.places.items():
            whole[places.reshape(-1)] = pieces[rank].reshape(-1).to(torch.float64)
        return whole.reshape(self.shape)

    def fits(self, pieces: Pieces) -> bool:
        """Return True if pieces have the shapes of this arrangement."""
        return self.places.keys() == pieces.keys() and all(
            pieces[rank].shape == places.shape for rank, places in self.places.items()
        )

    def cut(self, whole: Tensor, rank: int) -> Tensor:
        """Return the piece of a rank."""
        return whole.reshape(-1)[self.places[rank]]


def arrangements(pieces: Pieces, grids: Sequence[Grid] = ()) -> Iterator[Arrangement]:
    """Yield possible arrangements of pieces, the simplest first; `grids` are those of a distributed tensor."""
    ranks = list(pieces)
    shapes = [tuple(pieces[rank].shape) for rank in ranks]
    on_meshes = [_on_mesh({rank: pieces[rank] for rank in grid.ranks if rank in pieces}, grid) for grid in grids]
    placed = [found for found in on_meshes if found is not None]
    if placed and len(placed) == len(grids) and len({found.shape for found in placed}) == 1:
        places = {rank: tensor for found in placed for rank, tensor in found.places.items()}
        if places.keys() == pieces.keys():
            yield Arrangement(placed[0].shape, places)
    if len(set(shapes)) == 1:
        yield _whole(ranks, shapes[0])
    for teams in _teams(len(ranks)):
        firsts = [shapes[team[0]] for team in teams]
        if any(shapes[member] != shapes[team[0]] for team in teams for member in team):
            continue
        for dim in range(len(shapes[0])):
            if all(beside(shape, dim) == beside(shapes[0], dim) for shape in firsts):
                yield _along(dim, [[ranks[member] for member in team] for team in teams], firsts)


def arranged_rows(pieces: Pieces, whole: Tensor, allowed: float) -> Arrangement | None:
    """Return where the rows of pieces lie in a whole; None if they are not its rows."""
    shapes = {tuple(piece.shape) for piece in pieces.values()}
    for dim in range(whole.dim()):
        others = beside(tuple(whole.shape), dim)
        if any(len(shape) != whole.dim() or beside(shape, dim) != others for shape in shapes):
            continue
        rows = whole.movedim(dim, 0).reshape(whole.shape[dim], -1)
        numbers = torch.arange(whole.numel()).reshape(whole.shape).movedim(dim, 0)
        places: dict[int, Tensor] = {}
        for rank, piece in pieces.items():
            if not piece.numel():
                places[rank] = torch.empty(piece.shape, dtype=torch.int64)
                continue
            ours = piece.movedim(dim, 0).reshape(piece.shape[dim], -1).to(rows.dtype)
            distance = torch.cdist(ours, rows)
            nearest = distance.argmin(1)
            if float(distance.amin(1).max()) > allowed:
                break
            places[rank] = numbers[nearest].movedim(0, dim)
        covered = {int(n) for found in places.values() for n in found.reshape(-1)} if len(places) == len(pieces) else ()
        if len(covered) == whole.numel():
            return Arrangement(tuple(whole.shape), places)
    return None


def _whole(ranks: Sequence[int], shape: tuple[int, ...]) -> Arrangement:
    places = torch.arange(math.prod(shape)).reshape(shape)
    return Arrangement(shape, dict.fromkeys(ranks, places))


def _along(dim: int, teams: Sequence[Sequence[int]], shapes: Sequence[tuple[int, ...]]) -> Arrangement:
    """Return consecutive pieces, each held by all ranks of a team."""
    size = sum(shape[dim] for shape in shapes)
    whole = (*shapes[0][:dim], size, *shapes[0][dim + 1 :])
    pieces = torch.arange(math.prod(whole)).reshape(whole).split([shape[dim] for shape in shapes], dim)
    return Arrangement(whole, {rank: piece for team, piece in zip(teams, pieces, strict=True) for rank in team})


def _teams(count: int) -> Iterator[list[list[int]]]:
    """Yield how ranks may share pieces: each has its own, or neighbours share one, or ranks at equal distances."""
    for size in range(count, 1, -1):
        if count % size == 0:
            yield [[member for member in range(count) if member % size == team] for team in range(size)]
            if size < count:
                yield [[member for member in range(count) if member // (count // size) == team] for team in range(size)]


def _on_mesh(pieces: Pieces, grid: Grid) -> Arrangement | None:
    """Return where the pieces of a distributed tensor lie; None if they are terms of a sum."""
    if any(placement.kind not in ("shard", "strided", "replica") for placement in grid.placements):
        return None
    ids, begins = {}, {}
    begin = 0
    for rank, piece in pieces.items():
        begins[rank] = begin
        ids[rank] = torch.arange(begin, begin + piece.numel()).reshape(piece.shape)
        begin += piece.numel()
    places = torch.full((begin,), -1)
    shape: tuple[int, ...] = ()
    try:
        for variant in range(grid.variants):
            whole = grid.join(ids.__getitem__, variant)
            shape = tuple(whole.shape)
            places[whole.reshape(-1)] = torch.arange(whole.numel())
    except (MissingDataError, RuntimeError, KeyError, ValueError):
        return None
    if bool((places < 0).any()):
        return None
    found = {rank: places[begins[rank] : begins[rank] + p.numel()].reshape(p.shape) for rank, p in pieces.items()}
    return Arrangement(shape, found)


def beside(shape: tuple[int, ...], dim: int) -> tuple[int, ...]:
    """Return the sizes of all dimensions but one."""
    return (*shape[:dim], *shape[dim + 1 :])
