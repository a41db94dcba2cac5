"""The groups of ranks of a run, in words: data, tensor and pipeline parallel groups are a line each.

Theory of operation
    A tree of groups is what the recorded groups show by themselves: groups that one maker calls by one name and that
    lie in the same sizes and strides are one dimension of it, however many there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ...dump.handles import Recording
from ...dump.shown.rank_strides import Strides, strides_of, strides_text
from ...dump.shown.step_ranks import named
from ...plain_text import counted
from .meeting_points import RankGroup, group_of, transfers


def groups_of(rank: Recording) -> set[RankGroup]:
    """Return the groups whose collectives or messages a rank began in a step."""
    found: set[RankGroup] = set()
    seen: set[object] = set()
    for call in transfers(rank):
        given = tuple(tree for tree in call.record.args if type(tree) is tuple and "ranks" in tree)
        if not given or given not in seen:  # a step has few groups and many collectives
            seen.add(given)
            group = group_of(call)
            found.update([] if group is None else [group])
    return found


def group_rows(groups: Iterable[RankGroup]) -> list[dict[str, Any]]:
    """Return the kinds of groups as plain values; ``docs/json/ls.schema.json`` describes them."""
    return [
        {"name": name, "groups": len(alike), "ranks": len(alike[0]), "strides": [list(one) for one in strides],
         "first": list(alike[0])}
        for (name, strides, _), alike in _kinds(groups)
    ]  # fmt: skip


def group_lines(groups: Iterable[RankGroup]) -> Iterator[str]:
    """Yield a line for each kind of groups: ``tp: 128 groups of 8 ranks next to one another, as ranks 0-7``."""
    for (name, strides, size), alike in _kinds(groups):
        text = strides_text(strides) if strides else counted(size, "rank")
        one = named("rank", alike[0])
        yield f"{name}: {text}, {one}" if len(alike) == 1 else f"{name}: {len(alike)} groups of {text}, as {one}"


def _kinds(groups: Iterable[RankGroup]) -> list[tuple[tuple[str, Strides, int], list[tuple[int, ...]]]]:
    """Return the ranks of groups by name, strides and size, the innermost dimension first."""
    found: dict[tuple[str, Strides, int], set[tuple[int, ...]]] = {}
    for group in groups:
        ranks = tuple(sorted(group.ranks))
        name = group.description or "unnamed"
        found.setdefault((name, strides_of(ranks), len(ranks)), set()).add(ranks)
    ordered = sorted(found.items(), key=_order)
    return [(kind, sorted(alike)) for kind, alike in ordered]


def _order(kind: tuple[tuple[str, Strides, int], set[tuple[int, ...]]]) -> tuple[bool, list[int], str, int]:
    name, strides, size = kind[0]
    return not strides, [number for size_stride in strides for number in reversed(size_stride)], name, size
