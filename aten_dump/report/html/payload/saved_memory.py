"""The section ``saved``: storages that forward keeps alive for backward, each once: how large, for whom, how long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ....dump import Call, RankDump, Value
from ....store.records import PHASES
from .columns import Interned, Section

_BACKWARD: Final = PHASES.index("backward")


@dataclass(slots=True)
class _Kept:
    """One storage: its first keeper, and the position of the last backward node that may need it."""

    nbytes: int
    keeper: int
    node: int
    outside: bool
    until: int


def saved_section(rank: RankDump) -> bytes | None:
    """Return the section of a step and rank; None where nothing was kept."""
    nodes: Interned[str] = Interned()
    kept: dict[int, _Kept] = {}
    for saved in rank.saved_for_backward():
        if saved.call is None:
            continue  # it was not selected: it has no place in the tree
        keeper = rank.tables.positions[saved.call.id]
        until = _released(rank, saved.call)
        for value in saved.values:
            for part in _stored(value):
                found = kept.get(part.storage)
                if found is None:
                    node = nodes.number(saved.node)
                    found = _Kept(part.storage_nbytes, keeper, node, value.from_outside, until)
                    kept[part.storage] = found
                found.until = max(found.until, until)
    if not kept:
        return None
    rows = sorted(kept.values(), key=lambda one: one.keeper)
    section = Section()
    section.add_json("nodes", nodes.items)
    section.add_integers("nbytes", [one.nbytes for one in rows])
    section.add_integers("keeper", [one.keeper for one in rows], delta=True)
    section.add_integers("node", [one.node for one in rows])
    section.add_integers("outside", [int(one.outside) for one in rows])
    section.add_integers("until", [one.until for one in rows], delta=True)
    return section.pack()


def _stored(value: Value) -> list[Value]:
    return [value] if value.storage else [part for part in value.parts.values() if part.storage]


def _released(rank: RankDump, call: Call) -> int:
    """Return the position of the last call of a forward call's backward; the number of calls where it has none."""
    positions = rank.links.belonging.get(call.id, ())
    phases = rank.tables.calls.column("phase")
    backward = [at for at in positions if phases[at] == _BACKWARD]
    return max(backward, default=len(rank.tables.calls))
