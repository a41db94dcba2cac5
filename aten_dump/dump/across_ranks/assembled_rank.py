"""One step as one program: what all its ranks recorded, put together.

Theory of operation
    Ranks of a parallel program run the same calls on parts of the tensors. `AssembledRank` shows the calls of the
    lead (the least rank that is there), without those that only serve the layout, and its values are whole: a value
    is an `Assembly` of what each rank held at the same place of the same call. Of a DTensor the recorded mesh and
    placements say how the parts lie. Of a plain tensor nobody recorded it: its grid stays open until somebody who
    knows the whole tensor (a comparison) settles it. Tensors are put together when they are read, and not kept.

    A DTensor and its local tensor are one value here, as are a collective's result before and after the wait: the
    program passes from one to the other (``to_local``, ``from_local``) without an op that could be compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import torch

from ...errors import MissingDataError
from ...store import records
from ...store.records import TREE_DICT, TREE_LIST, TREE_TUPLE, TREE_VALUE, Tree
from ..index.tables import Tables
from ..rank import RankDump
from ..values import Stats, Value
from .part_grids import Grid, Placement
from .part_holders import Holders, Spec, spec_of

_OPEN: Final = Placement("other", text="")  # how groups of ranks share a tensor is not known yet


@dataclass(frozen=True, slots=True)
class Correspondence:
    """What belongs together in the lead and another rank, by the lead's ids."""

    calls: Mapping[int, int]
    values: Mapping[int, int]


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


class AssembledValue(Value):
    """A tensor of all ranks."""

    __slots__ = ("assembly",)

    def __init__(self, rank: RankDump, record: records.Value, assembly: Assembly) -> None:
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
            found[name] = math.sqrt(sum(abs(number) ** 2 for number in numbers))
        elif name in ("count", "nan", "posinf", "neginf", "zero", "negative", "positive"):
            found[name] = sum(numbers)
    return Stats(found) if found else None


class AssembledRank(RankDump):
    """All ranks of one step, as one."""

    def __init__(
        self,
        ranks: Mapping[int, RankDump],
        matched: Mapping[int, Correspondence],
        aside: Mapping[int, str],
        world_size: int,
    ) -> None:
        """Put ranks together.

        Args:
            ranks: what was recorded, by rank.
            matched: for each rank but the lead, what belongs to the lead's calls and values.
            aside: ids of calls of the lead that only serve the layout, and what each is.
            world_size: ranks of the run; some may be missing.
        """
        self.lead = ranks[min(ranks)]
        super().__init__(self.lead.directory, self.lead.step, self.lead.rank)
        self._source = self.lead._source
        self.ranks = dict(ranks)
        self.matched = matched
        self.aside = aside
        self.missing_ranks = sorted(set(range(world_size)) - set(ranks))
        self.holders = {rank: Holders(dump) for rank, dump in ranks.items()}
        self.ids, self._origins = self._canonical()
        self._assemblies: dict[int, Assembly] = {}

    @property
    def where(self) -> str:
        """Path, step and ranks, as errors name them."""
        ranks = ", ".join(map(str, self.ranks))
        return f"{self.directory.parent.parent} (step {self.step}, ranks {ranks} together)"

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

    @cached_property
    def tables(self) -> Tables:
        lead = self.lead.tables
        changed: list[tuple[Any, ...]] = [_renamed(call, self.ids) for call in lead.calls if call.id not in self.aside]
        changed += [self._value(record) for record in lead.values.records()]
        changed += [g._replace(value=self.ids.get(g.value, g.value)) for g in lead.gradients]
        return self._source.changed_tables(
            self.where, changed, (records.CALL, records.OPEN, records.VALUE, records.GRADIENT)
        )

    def _value(self, record: records.Value) -> records.Value:
        """Return the record of a value as a whole; under a canonical id it has the storage of what holds its bytes."""
        origin = self.lead.tables.values[self._origins.get(record.id, record.id)]
        holder = self.holders[self.lead.rank].of(self.lead.value_by_id(origin.id))._record
        flags = (holder.flags | origin.flags & records.REQUIRES_GRAD) & ~records.OPAQUE
        extra = None if spec_of(origin.extra) else holder.extra
        return holder._replace(id=record.id, shape=origin.shape, flags=flags, extra=extra)

    def value_by_id(self, id: int) -> Value:
        value = super().value_by_id(id)
        return AssembledValue(self, value._record, self.assembly(id))

    def assembly(self, id: int) -> Assembly:
        """Return what the ranks hold of a value."""
        found = self._assemblies.get(id)
        if found is None:
            found = self._assemblies[id] = self._assemble(self._origins.get(id, id))
        return found

    @property
    def settled(self) -> list[Assembly]:
        """What was put together so far."""
        return [found for found in self._assemblies.values() if found.settled]

    def raw_parts(self, origin: int) -> dict[int, Value]:
        """Return what corresponds to a value of the lead on each rank."""
        found = {self.lead.rank: self.lead.value_by_id(origin)}
        for rank, matched in self.matched.items():
            number = matched.values.get(origin)
            if number is not None:
                found[rank] = self.ranks[rank].value_by_id(number)
        return found

    def _assemble(self, origin: int) -> Assembly:
        raw = self.raw_parts(origin)
        parts = {rank: self.holders[rank].of(value) for rank, value in raw.items()}
        shape = tuple(raw[self.lead.rank].shape)
        specs = {rank: spec_of(value._record.extra) for rank, value in raw.items()}
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

    def rename(self, aliases: Mapping[int, int]) -> None:
        """Give values the ids of others that hold the same; handles that were made before are stale."""
        self.ids = {number: aliases.get(id, id) for number, id in self.ids.items()}
        for name in ("tables", "links", "calls", "values", "gradients"):
            self.__dict__.pop(name, None)

    def local_calls(self, call_id: int) -> dict[int, int]:
        """Return the id of a call of the lead's on each rank."""
        found = {self.lead.rank: call_id}
        found |= {rank: m.calls[call_id] for rank, m in self.matched.items() if call_id in m.calls}
        return found

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return hash(id(self))


def _enough(grid: Grid, present: set[int]) -> bool:
    """Tell whether some variant can be put together from the ranks that are there."""
    return any(set(grid.members(variant).values()) <= present for variant in range(grid.variants))


def _renamed(call: records.Call, ids: Mapping[int, int]) -> records.Call:
    """Return a call with the ids of its values replaced."""
    kwargs = call.kwargs and {name: _renamed_tree(tree, ids) for name, tree in call.kwargs.items()}
    written = None
    if call.written is not None:
        written = [tree if at % 2 == 0 else _renamed_tree(tree, ids) for at, tree in enumerate(call.written)]
    return call._replace(
        args=[_renamed_tree(tree, ids) for tree in call.args],
        kwargs=kwargs,
        outputs=_renamed_tree(call.outputs, ids),
        written=written,
    )


def _renamed_tree(tree: Tree, ids: Mapping[int, int]) -> Tree:
    if not isinstance(tree, tuple):
        return tree
    if tree[0] == TREE_VALUE:
        return (TREE_VALUE, ids.get(tree[1], tree[1]))
    if tree[0] in (TREE_LIST, TREE_TUPLE):
        return (tree[0], *(_renamed_tree(item, ids) for item in tree[1:]))
    if tree[0] == TREE_DICT:
        return (TREE_DICT, *(x if n % 2 == 0 else _renamed_tree(x, ids) for n, x in enumerate(tree[1:])))
    return tree
