"""Decides if two steps ran in the same parallel layout.

Theory of operation
    Layouts written by hand have no DTensors. They differ if a parameter has fewer elements on one side, or if ranks
    communicate at different times: one side reduces gradients in the backward, the other after it. If one side only
    lacks some of the other's collectives, the layout is the same, and there may be a mistake.
"""

from __future__ import annotations

from collections import Counter

from ...dump import RankDump, Step
from ...store.op_names import is_collective
from ..pairing.call_keys import normal_module


def layouts_differ(target: Step, baseline: Step) -> bool:
    """Return True if the number of ranks of two steps differs, or the placement of tensors on them."""
    if not target.ranks or not baseline.ranks:
        return False
    leads = target.rank(target.ranks[0]), baseline.rank(baseline.ranks[0])
    sizes = [_world_size(lead) for lead in leads]
    if sizes[0] != sizes[1]:
        return max(sizes) > 1
    if sizes[0] == 1:
        return False
    return _placements(leads[0]) != _placements(leads[1]) or _parts_differ(*leads) or _talk_elsewhere(*leads)


def _world_size(rank: RankDump) -> int:
    header = rank.summary().header
    return max(1, header.world_size) if header is not None else 1


def _placements(rank: RankDump) -> Counter[str]:
    """Count the layouts of the DTensors from outside the step: parameters, buffers, data."""
    found: Counter[str] = Counter()
    producers = rank.links.producers
    for value in rank.tables.values.records():
        extra = value.extra or {}
        if "placements" in extra and value.id not in producers:
            found[repr((extra["mesh"]["shape"], extra["placements"], value.shape))] = 1
    return found


def _parts_differ(target: RankDump, baseline: RankDump) -> bool:
    """Return True if gradients of one name have different shapes."""
    ours, theirs = (
        {normal_module(g.name): tuple(rank.tables.values[g.value].shape) for g in rank.tables.gradients}
        for rank in (target, baseline)
    )
    return any(ours[name] != theirs[name] for name in ours.keys() & theirs.keys())


def _talk_elsewhere(target: RankDump, baseline: RankDump) -> bool:
    """Return True if each side has collectives of a kind and phase that the other lacks."""
    ours, theirs = map(_collectives, (target, baseline))
    return not (ours <= theirs or theirs <= ours)


def _collectives(rank: RankDump) -> set[tuple[str, int]]:
    tables = rank.tables
    ops = {op.id: op.op for op in tables.ops.records() if is_collective(op.op)}
    return {(ops[call.op], call.phase) for call in tables.calls if call.op in ops} if ops else set()
