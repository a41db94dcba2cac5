"""Which value of a rank holds the bytes of a tensor that is made of another one, and how that lies over ranks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...store.argument_trees import collect
from ...store.op_names import WAIT_TENSOR
from ..handles import Value
from ..rank import RankDump
from .part_grids import Placement


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
        """What a wait returned, by what it was given."""
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
        return found


def spec_of(extra: dict[str, Any] | None) -> Spec | None:
    """Return how a DTensor lies over ranks, from ``Value.extra``; None for another tensor."""
    if not extra or "placements" not in extra or "mesh" not in extra:
        return None
    mesh = extra["mesh"]
    placements = tuple(Placement.parse(str(text)) for text in extra["placements"])
    return Spec(tuple(mesh["shape"]), tuple(mesh["ranks"]), placements)
