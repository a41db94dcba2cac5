"""Which value of a rank holds the bytes of a tensor that is made of another one, and how that lies over ranks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from ...store import records
from ...store.argument_trees import collect
from ...store.op_names import WAIT_TENSOR
from ..handles import Value
from ..rank import RankDump
from .part_grids import Placement

_SEEN_AS: Final = records.CONJUGATE | records.NEGATIVE


@dataclass(frozen=True, slots=True)
class Spec:
    """The mesh and placements of a DTensor."""

    mesh: tuple[int, ...]
    ranks: tuple[int, ...]  # in row-major order
    placements: tuple[Placement, ...]


class Holders:
    """Follows DTensors, and results of collectives that were not waited for yet, to what holds their bytes."""

    def __init__(self, rank: RankDump) -> None:
        self._rank = rank

    def of(self, value: Value) -> Value:
        """Return the value with the bytes: a DTensor's local tensor, the result of the wait; else the value itself."""
        seen = set()
        number = value.id
        while number not in seen:
            seen.add(number)
            record = self._rank.tables.values[number]
            number = (record.extra or {}).get("local") or self._waited.get(number, number)
        return self._rank.value_by_id(number)

    @cached_property
    def _waited(self) -> dict[int, int]:
        """What a wait returned, by what it was given; and other views on that memory, by what they were before.

        An op on a result that was not waited for may be a view: then the program waits with the view, for all of it.
        """
        tables = self._rank.tables
        waits = {op.id for op in tables.ops.records() if op.op == WAIT_TENSOR}
        found: dict[int, int] = {}
        for call in tables.calls:
            if call.op in waits:
                ids: list[int] = []
                for tree in (*call.args, call.outputs):
                    collect(tree, ids)
                if len(ids) == 2 and ids[0] != ids[1]:
                    found[ids[0]] = ids[1]
        return self._views_before(found) | found

    def _views_before(self, waited: dict[int, int]) -> dict[int, int]:
        values = self._rank.tables.values
        versions = {(values[a].storage, values[a].version): values[b].version for a, b in waited.items()}
        storages = {storage for storage, _ in versions} - {0}
        views = [view for view in values.records() if view.storage in storages]
        places = {(view.version, *_geometry(view)): view.id for view in views}
        found = {}
        for view in views:
            after = places.get((versions.get((view.storage, view.version)), *_geometry(view)))
            if after is not None and view.flags & records.UNDEFINED:
                found[view.id] = after
        return found


def _geometry(value: records.Value) -> tuple[object, ...]:
    return *value.place, value.flags & _SEEN_AS


def spec_of(extra: dict[str, Any] | None) -> Spec | None:
    """Return how a DTensor lies over ranks, from ``Value.extra``; None for another tensor."""
    if not extra or "placements" not in extra or "mesh" not in extra:
        return None
    mesh = extra["mesh"]
    placements = tuple(Placement.parse(str(text)) for text in extra["placements"])
    return Spec(tuple(mesh["shape"]), tuple(mesh["ranks"]), placements)
