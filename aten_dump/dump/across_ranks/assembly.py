"""One tensor as all ranks hold it, and how its parts make it up."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ...errors import MissingDataError
from ..handles import Value
from .part_grids import Grid, Placement


@dataclass(slots=True)
class Assembly:
    """One tensor as all ranks hold it."""

    parts: dict[int, Value]  # by rank: what holds the bytes
    shape: tuple[int, ...]  # of the whole; while the grid is open, of the lead's part
    grid: Grid | None = None  # None: the parts cannot be put together
    variant: int = 0  # which replica is read
    shared: bool = False  # all ranks hold the same bits
    reason: str = ""  # why it cannot be read
    groups: tuple[tuple[int, ...], ...] = ()  # ranks that hold a whole between them
    group_shapes: tuple[tuple[int, ...], ...] = ()
    settled: bool = field(default=False)

    @property
    def open(self) -> bool:
        """True while it is not known how groups of ranks share the tensor."""
        return self.grid is not None and not self.settled

    def across(self, placement: Placement, shape: tuple[int, ...], scale: float = 1.0) -> None:
        """Say how groups of ranks share the tensor."""
        assert self.grid is not None
        self.grid = Grid(self.grid.shape, self.grid.ranks, (placement, *self.grid.placements[1:]), scale)
        self.shape, self.settled = shape, True

    def leave_open(self) -> None:
        """Take back how groups of ranks share the tensor: it was tried, and does not fit."""
        self.shape, self.settled = self.group_shapes[0], False

    def give_up(self, reason: str, shape: tuple[int, ...]) -> None:
        """Say that the parts cannot be put together."""
        self.grid, self.reason, self.shape, self.settled = None, reason, shape, True

    def tensor(self, variant: int | None = None) -> torch.Tensor:
        """Put the tensor together.

        Raises:
            MissingDataError: a part is missing, or the parts do not fit.
        """
        if self.grid is None or not self.settled:
            raise MissingDataError(self.reason or "it is not known how the parts of the ranks fit together")
        whole = self.grid.join(lambda rank: self._part(rank).tensor(), self.variant if variant is None else variant)
        if tuple(whole.shape) != self.shape:
            raise MissingDataError(f"the parts make up {list(whole.shape)}, the whole tensor is {list(self.shape)}")
        return whole

    def _part(self, rank: int) -> Value:
        found = self.parts.get(rank)
        if found is None:
            raise MissingDataError(f"the part of rank {rank} is missing")
        return found
