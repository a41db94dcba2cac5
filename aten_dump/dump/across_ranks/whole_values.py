"""Which values of which ranks are one tensor: the values of a step as wholes.

Theory of operation
    A whole goes under an id of the lead's. A DTensor goes under the id of what holds its bytes, unless another DTensor
    of another layout does; the value whose placements and shape are those of the whole is its origin. What each rank
    holds of it (`Assembly`) is found when it is asked for, and kept, as others settle how the parts lie.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ...store import records
from ..handles import Value
from ..rank import RankDump
from .assembly import Assembly
from .part_grids import Grid, Placement
from .part_holders import Holders, Spec, spec_of

_OPEN: Final = Placement("other", text="")  # how groups of ranks share a tensor is not known yet


@dataclass(frozen=True, slots=True)
class Correspondence:
    """What belongs together in the lead and another rank, by the lead's ids."""

    calls: Mapping[int, int]
    values: Mapping[int, int]


class WholeValues:
    """The values of one step as all ranks hold them, by ids of the lead's."""

    def __init__(
        self, ranks: Mapping[int, RankDump], matched: Mapping[int, Correspondence], missing_ranks: list[int]
    ) -> None:
        """Find the wholes.

        Args:
            ranks: what was recorded, by rank.
            matched: for each rank but the lead, what belongs to the lead's calls and values.
            missing_ranks: ranks of the run that recorded nothing.
        """
        self.lead = ranks[min(ranks)]
        self.ranks = dict(ranks)
        self.missing_ranks = missing_ranks
        self.holders = {rank: Holders(dump) for rank, dump in ranks.items()}
        self._matched = matched
        self._assemblies: dict[int, Assembly] = {}
        self.ids, self._origins = self._canonical()

    def _canonical(self) -> tuple[dict[int, int], dict[int, int]]:
        """Return the id under which each of the lead's values goes, and by such an id the value that it was taken from.

        A DTensor goes under the id of what holds its bytes, unless another DTensor of another layout does.
        """
        holders = self.holders[self.lead.rank]
        ids: dict[int, int] = {}
        origins: dict[int, int] = {}
        specs: dict[int, Spec] = {}
        waiting = []
        for record in self.lead.tables.values.records():
            spec = spec_of(record.extra)
            holder = holders.of(self.lead.value_by_id(record.id)).id
            if spec is None:
                waiting.append((record.id, holder))
            elif specs.setdefault(holder, spec) == spec:
                ids[record.id] = holder
                origins.setdefault(holder, record.id)
            else:
                ids[record.id] = record.id
                origins[record.id] = record.id
        for number, holder in waiting:
            ids[number] = holder
            origins.setdefault(holder, number)
        return ids, origins

    def record(self, id: int) -> records.Value:
        """Return the record of a whole; it has the storage of what holds its bytes."""
        origin = self.lead.tables.values[self._origins.get(id, id)]
        holder = self.holders[self.lead.rank].of(self.lead.value_by_id(origin.id)).record
        flags = (holder.flags | origin.flags & records.REQUIRES_GRAD) & ~records.OPAQUE
        extra = None if spec_of(origin.extra) else holder.extra
        return holder._replace(id=id, shape=origin.shape, flags=flags, extra=extra)

    def assembly(self, id: int) -> Assembly:
        """Return what the ranks hold of a whole."""
        found = self._assemblies.get(id)
        if found is None:
            found = self._assemblies[id] = self._assemble(self._origins.get(id, id))
        return found

    @property
    def settled(self) -> list[Assembly]:
        """What was put together so far."""
        return [found for found in self._assemblies.values() if found.settled]

    def _raw_parts(self, origin: int) -> dict[int, Value]:
        """Return what corresponds to a value of the lead on each rank."""
        found = {self.lead.rank: self.lead.value_by_id(origin)}
        for rank, matched in self._matched.items():
            number = matched.values.get(origin)
            if number is not None:
                found[rank] = self.ranks[rank].value_by_id(number)
        return found

    def _assemble(self, origin: int) -> Assembly:
        raw = self._raw_parts(origin)
        parts = {rank: self.holders[rank].of(value) for rank, value in raw.items()}
        shape = tuple(raw[self.lead.rank].shape)
        specs = {rank: spec_of(value.record.extra) for rank, value in raw.items()}
        lead = specs[self.lead.rank]
        if lead is None:
            ranks = tuple(sorted(parts))
            grid = Grid((len(ranks),), ranks, (_OPEN,))
            shapes = tuple(tuple(parts[rank].shape) for rank in ranks)
            found = Assembly(parts, shape, grid, groups=tuple((rank,) for rank in ranks), group_shapes=shapes)
            if len(self.ranks) == 1 and not self.missing_ranks:
                found.across(Placement("replica"), shape)
                found.shared = True
            return found
        meshes = {spec.ranks: tuple(raw[rank].shape) for rank, spec in specs.items() if spec is not None}
        if any(s is not None and (s.mesh, s.placements) != (lead.mesh, lead.placements) for s in specs.values()):
            return Assembly(parts, shape, None, reason="the ranks recorded different placements", settled=True)
        groups = tuple(sorted(meshes))
        grid = Grid((len(groups), *lead.mesh), tuple(r for group in groups for r in group), (_OPEN, *lead.placements))
        found = Assembly(parts, shape, grid, groups=groups, group_shapes=tuple(meshes[group] for group in groups))
        lacking = sorted(set(grid.ranks) - set(parts))
        unknown = [p.text for p in lead.placements if p.kind == "other"]
        if unknown:
            found.give_up(f"its placement is {unknown[0]}, which cannot be put together", shape)
        elif lacking and not _enough(grid, set(parts)):
            found.give_up(f"the part of rank {', '.join(map(str, lacking))} is missing", shape)
        elif len(groups) == 1:
            found.across(Placement("replica"), shape)
        return found

    def local_calls(self, call_id: int) -> dict[int, int]:
        """Return the id of a call of the lead's on each rank."""
        found = {self.lead.rank: call_id}
        found |= {rank: m.calls[call_id] for rank, m in self._matched.items() if call_id in m.calls}
        return found


def _enough(grid: Grid, present: set[int]) -> bool:
    """Tell whether some variant can be put together from the ranks that are there."""
    return any(set(grid.members(variant).values()) <= present for variant in range(grid.variants))
