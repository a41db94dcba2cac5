"""The tasks of a comparison, and the pairs of calls of two step-ranks.

A `Task` carries paths and settings and nothing that is open, so that it can run in any process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ..dump import RankDump
from ..store.records import CALL_KINDS
from .evidence.evidence_rows import Pair
from .evidence.user_rules import Rule
from .facts.loss_scales import scale_ratio
from .pairing.alignment import Match, align
from .pairing.call_keys import call_keys
from .pairing.user_mapping import Mapping

RECOMPUTE: Final = "<recompute>"  # in Task.control: compare recomputed calls with their originals


@dataclass(frozen=True, slots=True)
class Settings:
    """How to compare."""

    mapping: Mapping = field(default_factory=Mapping)
    rules: tuple[Rule, ...] = ()
    replay: bool = True
    data: bool = True
    allow_ops: tuple[str, ...] = ()  # patterns of ops to run beside those of torch
    precision_budget: float | None = None  # how far an end may be from its meaning, relative L2
    device: str = "cpu"  # where heavy ops of an evaluation run
    comparison: str = ""  # what tasks of one comparison have alike: they share what one of them found out


@dataclass(frozen=True, slots=True)
class Task:
    """One step and rank to compare; it carries paths, not tensors."""

    target: str
    baseline: str
    control: str | None
    steps: tuple[int, int]
    ranks: tuple[int, int]
    settings: Settings
    before: tuple[int, int] | None = None  # the steps before, where they are compared too
    after: tuple[int, int] | None = None  # the steps after, likewise
    together: bool = False  # all ranks of each side are put together; `ranks` has the leads
    with_all: bool = False  # the other ranks of both sides are compared as well

    @property
    def step(self) -> int:
        """The target's step."""
        return self.steps[0]

    @property
    def rank(self) -> int:
        """The target's rank."""
        return self.ranks[0]


def pair_calls(target: RankDump, baseline: RankDump, mapping: Mapping) -> list[Pair]:
    """Align the calls of two step-ranks; only kinds that both sides recorded take part."""
    return list(pairs_of(target, baseline, mapping))


def pairs_of(target: RankDump, baseline: RankDump, mapping: Mapping) -> Iterator[Pair]:
    """Yield what `pair_calls` returns; a large step has too many calls to keep handles of all."""
    kinds = target.calls_by_kind().keys() & baseline.calls_by_kind().keys()
    positions = [_in_recorded_calls(rank, positions_of_kinds(rank, kinds)) for rank in (target, baseline)]
    keys = call_keys(target, positions[0], mapping), call_keys(baseline, positions[1])
    matches = align(*keys, pinned=_pinned(target, baseline, positions, mapping))
    yield from (_pair(target, baseline, positions, match) for match in matches)


def positions_of_kinds(rank: RankDump, kinds: Iterable[str]) -> list[int]:
    """Return where calls of some kinds are in ``rank.calls``, without making a handle for each."""
    wanted = set(kinds)
    calls = rank.tables.calls
    codes = {op.id for op in rank.tables.ops.records() if CALL_KINDS[op.call_kind] in wanted}
    return [position for position in range(len(calls)) if calls[position].op in codes]


def _in_recorded_calls(rank: RankDump, positions: list[int]) -> list[int]:
    """Return the calls of a cut recording, without those whose caller is gone: nothing shows where they belong."""
    if not rank.index_lacks:
        return positions
    calls = rank.tables.calls
    is_known = np.isin(calls.column("parent"), np.append(calls.column("id"), 0))
    return [position for position in positions if is_known[position]]


def _pair(target: RankDump, baseline: RankDump, positions: list[list[int]], match: Match) -> Pair:
    return Pair(target.call_at(positions[0][match.target]), baseline.call_at(positions[1][match.baseline]), match.how)


def _pinned(
    target: RankDump, baseline: RankDump, positions: list[list[int]], mapping: Mapping
) -> list[tuple[int, int]]:
    found = []
    if mapping.calls:
        places = [{position: number for number, position in enumerate(side)} for side in positions]
        for one, other in mapping.calls.items():
            at = target.links.names.get(one), baseline.links.names.get(other)
            if at[0] in places[0] and at[1] in places[1]:
                found.append((places[0][at[0]], places[1][at[1]]))
    return found


def incomplete(target: RankDump, baseline: RankDump) -> Iterator[str]:
    """Yield notes on what two recordings lack, and on how their losses are scaled."""
    for rank, side in ((target, "target"), (baseline, "baseline")):
        if rank.why_no_calls is not None:
            yield f"the {side} {rank.why_no_calls}"
        if wrote_unseen(rank):
            text = "callbacks ran unseen; what they left in memory is compared where a call reads it"
            yield f"in the {side} {text}"
    ratio = scale_ratio(target, baseline)
    if ratio is not None:
        yield str(ratio)


def wrote_unseen(rank: RankDump) -> bool:
    """Return True if callbacks ran that nobody saw: memory may hold something else than was last seen there."""
    return any(note.code == "unseen" for note in rank.notes)


def records_all_ops(rank: RankDump) -> bool:
    """Return True if a recording has every op of its step: what none of them made is from outside."""
    config = rank.config
    if config.get("level", "mix") not in ("mix", "aten"):
        return False
    return not any(config.get(name) for name in ("ops", "exclude_ops", "modules"))
