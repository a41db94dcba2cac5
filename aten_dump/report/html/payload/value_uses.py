"""Sections ``uses/K``: who made and who reads each value of the K-th chunk, as positions of calls."""

from __future__ import annotations

from ....dump import RankDump
from .chunks import chunk_range
from .columns import Integers, Section


def uses_section(rank: RankDump, value_ids: Integers, chunk: int) -> bytes:
    """Return the section of a chunk of values; `value_ids` are the ids of all, ascending."""
    section = Section()
    links = rank.links
    positions = chunk_range(chunk, len(value_ids))
    ids = value_ids[positions.start : positions.stop].tolist()
    section.add_integers("producer", [links.producers.get(id, -1) for id in ids], delta=True)
    consumers = [links.consumers.get(id, ()) for id in ids]
    section.add_integers("count", [len(found) for found in consumers])
    steps = (at - before for found in consumers for before, at in zip((0, *found), found, strict=False))
    section.add_integers("consumer", list(steps))
    return section.pack()
