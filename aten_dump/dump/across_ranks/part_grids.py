"""How the parts of a tensor lie over ranks, and how to put them together.

Theory of operation
    A `Grid` is a mesh of ranks with a placement for each of its dimensions, as DTensor has it: a part is a shard along
    a dimension of the tensor, a replica, or a term of a sum. Sharding is applied from the first mesh dimension to the
    last, so it is undone from the last to the first; ``_StridedShard`` says that its mesh dimension was applied after
    those behind it, so it is undone before them. Uneven and empty shards need no care: they are concatenated as
    they are. Where a mesh dimension holds replicas there are several ways to put the tensor together, one for each
    replica: the variants.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final, Literal

import torch

from ...errors import MissingDataError

Coordinates = tuple[int, ...]
Kind = Literal["shard", "strided", "replica", "sum", "avg", "product", "max", "min", "other"]

_SHARD: Final = re.compile(r"(_Strided)?Shard\(dim=(\d+)(?:, sf=\d+)?\)")
_PARTIAL: Final = re.compile(r"Partial\((sum|avg|product|max|min)\)")
_REDUCE: Final[Mapping[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "sum": lambda stacked: stacked.sum(0),
    "avg": lambda stacked: stacked.mean(0),
    "product": lambda stacked: stacked.prod(0),
    "max": lambda stacked: stacked.amax(0),
    "min": lambda stacked: stacked.amin(0),
}
_WIDER: Final = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.bool: torch.uint8}


@dataclass(frozen=True, slots=True)
class Placement:
    """What one dimension of a mesh does to a tensor."""

    kind: Kind
    dim: int = 0  # of the tensor, of a shard
    blocks: int = 1  # a shard holds a part of each of so many blocks: of heads that were folded into the batch
    text: str = ""  # as it was recorded

    @classmethod
    def parse(cls, text: str) -> Placement:
        """Read a placement as torch prints it: ``Shard(dim=0)``, ``Replicate()``, ``Partial(sum)``."""
        shard, partial = _SHARD.fullmatch(text), _PARTIAL.fullmatch(text)
        if shard:
            return cls("strided" if shard[1] else "shard", int(shard[2]), text=text)
        if partial:
            return cls(partial[1], text=text)  # type: ignore[arg-type]
        return cls("replica" if text == "Replicate()" else "other", text=text)

    def __str__(self) -> str:
        if self.text:
            return self.text
        inside = f", in each of {self.blocks} blocks" if self.blocks > 1 else ""
        names = {"replica": "replicas", "avg": "mean", "shard": f"shards along dimension {self.dim}{inside}"}
        return names.get(self.kind, self.kind)

    def join(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Put parts along this mesh dimension together."""
        if self.kind in ("shard", "strided"):
            return _concatenated(parts, self.dim, self.blocks)
        if len(parts) == 1:
            return parts[0]
        if self.kind not in _REDUCE:
            raise MissingDataError(f"parts that are {self.text or self.kind} cannot be put together")
        dtype = parts[0].dtype
        wide = torch.stack(list(parts)).to(_WIDER.get(dtype, dtype))
        return _REDUCE[self.kind](wide).to(dtype)


def _concatenated(parts: Sequence[torch.Tensor], dim: int, blocks: int) -> torch.Tensor:
    if blocks == 1:
        return torch.cat(list(parts), dim)
    folded = [part.unflatten(dim, (blocks, part.shape[dim] // blocks)) for part in parts]
    return torch.cat(folded, dim + 1).flatten(dim, dim + 1)


@dataclass(frozen=True, slots=True)
class Grid:
    """A mesh of ranks, and what each of its dimensions does to a tensor."""

    shape: tuple[int, ...]
    ranks: tuple[int, ...]  # in row-major order
    placements: tuple[Placement, ...]
    scale: float = 1.0  # what is put together is multiplied by it

    @property
    def recorded(self) -> bool:
        """True when no placement was inferred."""
        return all(p.text or n == 1 for p, n in zip(self.placements, self.shape, strict=True))

    @property
    def variants(self) -> int:
        """In how many ways replicas allow to put the tensor together."""
        return math.prod(self.shape[dim] for dim in self._replica_dims)

    @property
    def _replica_dims(self) -> list[int]:
        return [dim for dim, placement in enumerate(self.placements) if placement.kind == "replica"]

    def members(self, variant: int) -> dict[Coordinates, int]:
        """Return the ranks whose parts make up a variant, by their coordinates."""
        dims = self._replica_dims
        wanted = list(product(*(range(self.shape[dim]) for dim in dims)))[variant]
        found = {}
        for at, rank in zip(product(*(range(size) for size in self.shape)), self.ranks, strict=True):
            if all(at[dim] == chosen for dim, chosen in zip(dims, wanted, strict=True)):
                found[at] = rank
        return found

    def join(self, part: Callable[[int], torch.Tensor], variant: int = 0) -> torch.Tensor:
        """Put a tensor together from the parts of the ranks in a variant."""
        current = {at: part(rank) for at, rank in self.members(variant).items()}
        for mesh_dim in self._order():
            groups: dict[Coordinates, list[torch.Tensor]] = {}
            for at in sorted(current):
                groups.setdefault((*at[:mesh_dim], -1, *at[mesh_dim + 1 :]), []).append(current[at])
            placement = self.placements[mesh_dim]
            if placement.kind == "replica":
                current = {at: parts[0] for at, parts in groups.items()}
            else:
                current = {at: placement.join(parts) for at, parts in groups.items()}
        (whole,) = current.values()
        return whole if self.scale == 1.0 else whole * self.scale

    def owners(self, part: Callable[[int], torch.Size], variant: int = 0) -> torch.Tensor:
        """Return the rank that each element of a tensor comes from; -1 where it is a sum of several ranks'."""
        if any(placement.kind in _REDUCE for placement in self.placements):
            return torch.full((1,), -1, device="cpu")
        plain = Grid(self.shape, self.ranks, self.placements)
        return plain.join(lambda rank: torch.full(part(rank), rank, dtype=torch.int32, device="cpu"), variant)

    def _order(self) -> Iterator[int]:
        """Yield the mesh dimensions in the order in which they are undone."""
        dims = range(len(self.shape) - 1, -1, -1)
        yield from (dim for dim in dims if self.placements[dim].kind == "strided")
        yield from (dim for dim in dims if self.placements[dim].kind != "strided")

    def __str__(self) -> str:
        texts = [str(p) for p, size in zip(self.placements, self.shape, strict=True) if size > 1]
        scaled = f", times {self.scale:.3g}" if self.scale != 1.0 else ""
        return f"{', '.join(texts) or 'whole'} over ranks {', '.join(map(str, self.ranks))}{scaled}"
