"""Did two steps run in the same parallel layout?"""

from __future__ import annotations

from collections import Counter

from ...dump import RankDump, Step


def layouts_differ(target: Step, baseline: Step) -> bool:
    """Tell whether two steps were recorded by unlike numbers of ranks, or with DTensors that lie otherwise."""
    if not target.ranks or not baseline.ranks:
        return False
    leads = target.rank(target.ranks[0]), baseline.rank(baseline.ranks[0])
    sizes = [_world_size(lead) for lead in leads]
    if sizes[0] != sizes[1]:
        return max(sizes) > 1
    return sizes[0] > 1 and _placements(leads[0]) != _placements(leads[1])


def _world_size(rank: RankDump) -> int:
    header = rank.summary().header
    return max(1, header.world_size) if header is not None else 1


def _placements(rank: RankDump) -> Counter[str]:
    """Count the layouts of the DTensors that came from outside: parameters, buffers, data."""
    found: Counter[str] = Counter()
    producers = rank.links.producers
    for value in rank.tables.values.records():
        extra = value.extra or {}
        if "placements" in extra and value.id not in producers:
            found[repr((extra["mesh"]["shape"], extra["placements"], value.shape))] = 1
    return found
