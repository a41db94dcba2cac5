"""A value that is put together of what several ranks hold."""

from __future__ import annotations

import math
from typing import Any

import torch

from ...store import records
from ..handles import Recording, Value
from ..value_statistics import Stats
from .assembly import Assembly


class AssembledValue(Value):
    """A tensor of all ranks."""

    __slots__ = ("assembly",)

    def __init__(self, rank: Recording, record: records.Value, assembly: Assembly) -> None:
        super().__init__(rank, record)
        self.assembly = assembly

    @property
    def shape(self) -> torch.Size:
        return torch.Size(self.assembly.shape)

    @property
    def stride(self) -> tuple[int, ...]:
        if self.assembly.shared:
            return tuple(self._record.stride)
        shape = self.assembly.shape
        return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))

    @property
    def undefined(self) -> bool:
        return any(part.undefined for part in self.assembly.parts.values())

    @property
    def unsettled(self) -> bool:
        return self.assembly.grid is None or self.assembly.open

    @property
    def composed(self) -> bool:
        return not self.assembly.shared

    @property
    def absence(self) -> str:
        if self.unsettled:
            return f"is in parts: {self.assembly.reason or 'how they fit together was not recorded'}"
        return super().absence

    @property
    def data(self) -> records.Data | None:
        return super().data if self.assembly.shared else None

    @property
    def has_data(self) -> bool:
        grid = self.assembly.grid
        if grid is None or not self.assembly.settled:
            return False
        parts = [self.assembly.parts.get(rank) for rank in grid.members(self.assembly.variant).values()]
        return all(part is not None and (part.has_data or part.numel == 0) for part in parts)

    @property
    def hash(self) -> str | None:
        return next(iter(self.assembly.parts.values())).hash if self.assembly.shared else None

    @property
    def stats(self) -> Stats | None:
        grid = self.assembly.grid
        if grid is None or not self.assembly.settled or grid.scale != 1.0:
            return None
        kinds = {p.kind for p, size in zip(grid.placements, grid.shape, strict=True) if size > 1}
        members = [self.assembly.parts.get(rank) for rank in grid.members(self.assembly.variant).values()]
        parts = [(part.numel, part.stats) for part in members if part is not None]
        if kinds <= {"replica"} and parts:
            return parts[0][1]
        found = [(count, stats) for count, stats in parts if stats is not None]
        if not kinds <= {"replica", "shard", "strided"} or len(found) != len(members):
            return None
        return _together([(count, stats) for count, stats in found if count])

    def tensor(self) -> torch.Tensor:
        return super().tensor() if self.data is not None else self.assembly.tensor()

    def shared_tensor(self) -> torch.Tensor:
        return self.tensor()  # how parts lie may be settled later


def _together(parts: list[tuple[int, Stats]]) -> Stats | None:
    """Return the statistics of shards together, as far as they follow from those of each."""
    found: dict[str, Any] = {}
    for name in dict(parts[0][1]) if parts else ():
        numbers: list[Any] = [stats.get(name) for _, stats in parts]
        if any(number is None or isinstance(number, complex) for number in numbers):
            continue
        if name in ("min", "max"):
            found[name] = (min if name == "min" else max)(numbers)
        elif name == "mean":
            total = sum(count for count, _ in parts)
            found[name] = sum(count * number for (count, _), number in zip(parts, numbers, strict=True)) / total
        elif name == "l2norm":
            found[name] = math.sqrt(sum(number * number for number in numbers))  # inf where ``**`` raises an error
        elif name in ("count", "nan", "posinf", "neginf", "zero", "negative", "positive"):
            found[name] = sum(numbers)
    return Stats(found) if found else None
