"""Finds tensors as blocks of larger ones, along one dimension, without making the blocks.

Theory of operation
    Of each tensor the sums over its last dimension are kept, weighted by ``exp(i * theta * k)`` for two angles, and the
    sums of squares. A block of it has the rows' sums, each turned by where the row lies in the block: so the
    projections of any block come from the sums kept, and a block is known by its norm and these.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from ..signatures.signature import TOLERANCE

_ANGLES: Final = (0.7390851, 1.9021605)
_MOST_DIMENSIONS: Final = 5
_SMALLEST: Final = 1e-12
_SPREAD: Final = 10.0  # times the norm's tolerance: what a projection may be off


@dataclass(frozen=True, slots=True)
class Block:
    """Where a tensor lies in a larger one."""

    dim: int
    start: int
    length: int
    size: int  # of the larger one, in that dimension

    def __str__(self) -> str:
        """Return where it lies, in words."""
        last = self.start + self.length - 1
        where = str(self.start) if self.length == 1 else f"{self.start} to {last}"
        return f"{where} of {self.size} along dimension {self.dim}"


class Rows:
    """What is kept of a tensor: sums over its last dimension."""

    __slots__ = ("last", "norm", "shape", "squares", "sums")

    def __init__(self, tensor: torch.Tensor) -> None:
        """Read a tensor, float[..., last]."""
        found = tensor.detach().to("cpu", torch.float64)
        self.shape = tuple(found.shape)
        self.last = self.shape[-1]
        columns = torch.arange(self.last, dtype=torch.float64)
        weights = torch.stack([f(angle * columns) for angle in _ANGLES for f in (torch.cos, torch.sin)], -1)
        sums = (found @ weights).unflatten(-1, (len(_ANGLES), 2)).contiguous()
        self.sums = torch.view_as_complex(sums).movedim(-1, 0)  # complex[angle, *leading]
        self.squares = found.square().sum(-1)
        self.norm = math.sqrt(float(self.squares.sum()))

    def projections(self) -> list[complex]:
        """Return the projections of the whole tensor."""
        return _projections(self.sums, self.last)

    def norms(self, dim: int, length: int) -> torch.Tensor:
        """Return the norm of each block of some length along a dimension, float[starts]."""
        along = self.squares.movedim(dim, 0).flatten(1).sum(1) if self.squares.dim() > 1 else self.squares
        ends = torch.cat((along.new_zeros(1), along.cumsum(0)))
        return (ends[length:] - ends[:-length]).clamp(min=0).sqrt()

    def has(self, wanted: Sequence[complex], norm: float, block: Block) -> bool:
        """Return True if a block of this tensor has these projections."""
        found = _projections(self.sums.narrow(block.dim + 1, block.start, block.length), self.last)
        allowed = _SPREAD * TOLERANCE * norm
        return all(abs(one - other) <= allowed for one, other in zip(found, wanted, strict=True))


def dimension_of(part: Sequence[int], whole: Sequence[int]) -> int | None:
    """Return the dimension in which a shape is smaller, all others being the same; None: it is no block's."""
    if len(part) != len(whole):
        return None
    differ = [dim for dim, (one, other) in enumerate(zip(part, whole, strict=True)) if one != other]
    return differ[0] if len(differ) == 1 and part[differ[0]] < whole[differ[0]] else None


class Blocks:
    """Some tensors, to be asked for blocks that are equal to others."""

    def __init__(self, wholes: Mapping[int, Rows]) -> None:
        """Take tensors by the ids of their values."""
        self._wholes = wholes
        self._by_shape: dict[tuple[int, ...], tuple[list[float], list[tuple[int, Block]]]] = {}

    def find(self, part: Rows) -> list[tuple[int, Block]]:
        """Return the id of each tensor that has a block of the same contents, and where it lies."""
        norms, places = self._of(part.shape)
        if not part.norm or not norms:
            return []
        allowed = 2 * TOLERANCE * part.norm + _SMALLEST
        first, past = bisect_left(norms, part.norm - allowed), bisect_right(norms, part.norm + allowed)
        wanted = part.projections() if first < past else []
        return [place for place in places[first:past] if self._wholes[place[0]].has(wanted, part.norm, place[1])]

    def _of(self, shape: tuple[int, ...]) -> tuple[list[float], list[tuple[int, Block]]]:
        """Return the norms of all blocks of a shape, ascending, and where each lies."""
        if shape not in self._by_shape:
            found: list[tuple[float, int, Block]] = []
            for number, whole in self._wholes.items():
                dim = dimension_of(shape, whole.shape)
                if dim is not None and dim < len(shape) - 1:
                    length, size = shape[dim], whole.shape[dim]
                    norms = enumerate(whole.norms(dim, length).tolist())
                    found += [(norm, number, Block(dim, start, length, size)) for start, norm in norms]
            found.sort(key=lambda one: one[0])
            self._by_shape[shape] = [norm for norm, _, _ in found], [(number, block) for _, number, block in found]
        return self._by_shape[shape]


def can_be_block(tensor: torch.Tensor, most_elements: int) -> bool:
    """Return True if a tensor can be looked for, or in."""
    return (
        tensor.layout is torch.strided
        and not (tensor.is_complex() or tensor.dtype is torch.bool)
        and 2 <= tensor.dim() <= _MOST_DIMENSIONS
        and 0 < tensor.numel() <= most_elements
        and not tensor.is_quantized
    )


def _projections(sums: torch.Tensor, last: int) -> list[complex]:
    leading = sums.shape[1:]
    places = torch.arange(math.prod(leading), dtype=torch.float64).reshape(leading) * last
    found = []
    for angle, one in zip(_ANGLES, sums, strict=True):
        turned = one * torch.polar(torch.ones_like(places), angle * places)
        found.append(complex(turned.sum()))
    return found
