"""Compare one step of two dumps of different parallel layouts: all ranks of each side as one graph.

Theory of operation
    1. The ranks of each side are joined at their collectives and evaluated in float64 (`side`). The baseline gets the
       tensors with which the target's ranks begin (`carried`).
    2. Ends are compared as wholes (`matching`): their arrangement on the ranks is found, not configured.
    3. If ends differ, values without a counterpart are looked for among the parts of the other side's (`shares`).
       The cause is the first call behind the cut, on any rank.
    4. Kernels are checked rank by rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...dump import Call, open_dump
from ...store.op_names import WAIT_TENSOR, is_collective
from ..evaluation.evaluation import JITTER, Shared
from ..evidence.evidence_rows import Pair
from ..evidence.findings import Finding, RankEvidence
from ..explanation.both_sides import Evaluated
from ..explanation.cause_facts import explained
from ..explanation.rank_verdict import RankVerdict, counts_of
from ..explanation.repair import Repair
from ..meetings.meeting_replays import MeetingReplays
from ..pairing.call_keys import normal_module
from ..pairing.user_mapping import Mapping, found_modules
from ..rerun.rounding_error import LocalError
from ..sources.stand_ins import Recorded, Sources
from ..tasks import Task, incomplete, pair_calls
from .carried import Carried, Carrying
from .groups import Match
from .joined_rank import JoinedRank, origin_of
from .matching import Matched, Matching
from .shares import Shares
from .side import Side
from .world_causes import WorldCauses, WorldFound, foreign_source

Sides = tuple[Side, Side]


@dataclass(slots=True)
class WorldBefore:
    """The step before, of all ranks."""

    sides: Sides
    left: Sequence[Match]
    agreed: bool


def compare_world(task: Task, before: WorldBefore | None) -> tuple[RankEvidence, WorldBefore]:
    """Compare one step, with all ranks of each side; return the result, and what the step leaves to the next one."""
    sides = (Side(open_dump(task.target).step(task.steps[0])), Side(open_dump(task.baseline).step(task.steps[1])))
    carried, matched, more = _evaluate(sides, before)
    evaluations = sides[0].evaluation, sides[1].evaluation
    sources = Sources(target=[], baseline=carried.unknown)
    ends = list(sides[0].ends), list(sides[1].ends)
    found = Evaluated(evaluations, sources, ends, matched.odd, (sides[0].step, sides[1].step), [], _unknown(matched))
    pairs = _pairs(sides, task.settings.mapping)
    replays = RankedReplays(enabled=task.settings.replay)
    verdict = WorldVerdict(found, pairs, replays)
    verdict.more = more
    verdict.run()
    ranks = sides[0].rank, sides[1].rank
    findings = [finding for finding in verdict.findings if not _is_inherited(finding, sides, before)]
    unknown: tuple[str, ...] = ()
    if verdict.findings and not findings:
        unknown = (f"what step {task.step} began with",)
        verdict.rows = [replace(row, status="unknown") if row.status == "different" else row for row in verdict.rows]
    findings, told = explained(ranks, pairs, verdict.rows, findings, whole=True)
    findings = [_with_ranks(finding, ranks) for finding in findings]
    modules = found_modules([(normal_module(p.target.module), normal_module(p.baseline.module)) for p in pairs])
    judged = [call for call in sides[0].flow.calls() if sides[0].flow.results(call)]
    unproven = [call.name for call in judged if call.id in evaluations[0].unproven and not verdict.is_met(call)]
    parts: dict[str, Any] = {**counts_of(verdict.rows, pairs), "unknown_ends": (*verdict.unknown_ends, *unknown)}
    evidence = RankEvidence(
        task.target, task.baseline, task.steps, task.ranks,
        calls=(len(ranks[0].calls), len(ranks[1].calls)), rows=tuple(verdict.rows), findings=tuple(findings),
        modules=modules, notes=(*incomplete(*ranks), *told), together=(len(ranks[0].ranks), len(ranks[1].ranks)),
        proven=len(judged) - len(unproven), judged=len(judged), unproven=tuple(unproven), **parts,
    )  # fmt: skip
    return evidence, WorldBefore(sides, matched.left, not evidence.findings)


def _evaluate(sides: Sides, before: WorldBefore | None) -> tuple[Carried, Matched, WorldFound]:
    """Evaluate both sides; if ends differ, once more with what rounding leaves of all values."""
    shared = Shared()
    sides[0].run(shared, {}, leads=True)
    known = None if before is None else (*before.sides, before.left)
    carried = Carrying(*sides, known).run(by_role=before is not None or sides[0].rank.step > 0)
    sides[1].run(shared, carried.stand_ins, leads=False)
    matched = Matching(sides).run()
    if not matched.differs:
        return carried, matched, WorldFound()
    noise = [
        side.evaluation.noise_beside(side.run_moved(contents, JITTER))
        for side, contents in zip(sides, ({}, carried.stand_ins), strict=True)
    ]
    shared = Shared()
    for side, one in zip(sides, noise, strict=True):
        side.renumber(shared, one)
    matched = Matching(sides).run()
    shares = Shares(sides, shared.numbering)
    if not matched.differs or not (before is None or before.agreed):  # the step after one that differs also differs
        return carried, matched, WorldFound()
    shares.find(({}, carried.stand_ins), matched.odd)
    foreign = foreign_source(sides, carried.stand_ins, matched.odd)
    return carried, matched, WorldFound(shares.terms, shares.sums, foreign)


def _unknown(matched: Matched) -> tuple[str, ...]:
    """Return the ends that were not compared: gradients that only lead to results which were not recorded."""
    if not matched.compared and not matched.differs:
        return ("all ends of the step: none was found that both sides have",)
    return () if matched.left or not matched.means else tuple(f"gradient of {name}" for name in matched.means)


def _pairs(sides: Sides, mapping: Mapping) -> list[Pair]:
    """Pair the calls of each target rank with those of the baseline rank of the same number, or of its last rank."""
    target, baseline = sides[0].rank, sides[1].rank
    found: list[Pair] = []
    for number, rank in target.ranks.items():
        other = number if number in baseline.ranks else max(baseline.ranks)
        for pair in pair_calls(rank, baseline.ranks[other], mapping):
            one = target.call(target.id_of(number, pair.target.id))
            two = baseline.call(baseline.id_of(other, pair.baseline.id))
            found.append(Pair(_computing(sides[0], one), _computing(sides[1], two), pair.how))
    return found


def _computing(side: Side, call: Call) -> Call:
    """Return the op on local tensors that an op on distributed tensors runs, if it is only one."""
    if call.kind != "aten" or not side.flow.is_apart(call):
        return call
    inner = [child for child in call.children if child.op == call.op]
    return inner[0] if len(inner) == 1 else call


class RankedReplays(MeetingReplays):
    """Replays of calls of joined ranks: collectives are looked up on their ranks."""

    def errors(self, call: Call) -> dict[str, LocalError] | str:
        origin = origin_of(call)
        if call.op == WAIT_TENSOR:
            return self.errors_of_wait(origin)
        return super().errors(origin if is_collective(call.op) else call)


class WorldVerdict(RankVerdict):
    """Makes the rows and findings of all ranks."""

    more: WorldFound

    def _causes(self, found: Evaluated, repair: Repair) -> WorldCauses:
        return WorldCauses(found, self._pairs, self.more)

    def _is_far_apart(self) -> bool:
        return False  # its ends are pieces

    def _of_pair(self, pair: Pair) -> None:
        """Add rows of a pair of Python calls if both return tensors of equal size: shares prove nothing."""
        theirs = dict(pair.baseline.output_values())
        both = [(value, theirs[slot]) for slot, value in pair.target.output_values() if slot in theirs]
        if all(one.shape == other.shape and not (one.opaque or other.opaque) for one, other in both):
            super()._of_pair(pair)

    def _lean(self, call: Call, maker: Call) -> None:
        """Do nothing, as all ranks are part of the comparison."""


def _is_inherited(finding: Finding, sides: Sides, before: WorldBefore | None) -> bool:
    """Return True if a finding is about memory that the step before, which agreed, left: its counterpart is unknown."""
    if before is None or not before.agreed or finding.kind != "source":
        return False
    side = 0 if finding.row.target is not None else 1
    call = sides[side].rank.call(finding.row.place.id)
    value = dict(call.input_values()).get(finding.row.slot)
    recorded = Recorded()
    wanted = None if value is None else recorded.contents(value)
    others = (v for v in before.sides[side].rank.values if value is not None and v.numel == value.numel)
    return wanted is not None and any(recorded.contents(v) == wanted for v in others if not (v.undefined or v.opaque))


def _with_ranks(finding: Finding, ranks: tuple[JoinedRank, JoinedRank]) -> Finding:
    """Return the rank of a finding in words, if several ranks exist."""
    rank = ranks[0 if finding.row.target is not None else 1]
    if len(rank.ranks) < 2:
        return finding
    return replace(finding, text=f"on rank {finding.row.place.rank}: {finding.text}")
