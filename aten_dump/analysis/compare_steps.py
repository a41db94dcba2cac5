"""Compare the steps of one rank in turn: each is evaluated with what the step before left.

What has no bytes, or only some of its ops (statistics, hashes, a selection), is compared by distance (`by_distance`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..dump import RankDump, Step, open_dump, rank_at
from ..store.damage_seen import damage_seen
from .by_distance.rank_evidence import compare_by_distance, of_what_is_whole
from .evaluation.evaluation import Evaluation
from .evidence.findings import RankEvidence
from .explanation.both_sides import evaluate
from .explanation.cause_facts import explained
from .explanation.equal_step import is_equal_step, rows_of_equal
from .explanation.near_ties import near_ties
from .explanation.precisions import precisions_of
from .explanation.rank_verdict import RankVerdict, counted, counts_of
from .explanation.state_names import begins_otherwise
from .explanation.unshown import unshown
from .flow.data_flow import DataFlow
from .flow.flat_memory import with_parts
from .layers.between import layer_notes
from .meetings.evaluated_collectives import collectives_of
from .meetings.meeting_points import attendance_of
from .meetings.meeting_replays import MeetingReplays
from .pairing.call_keys import normal_module
from .pairing.same_lines import name_lines_alike
from .pairing.user_mapping import found_modules
from .precision.lost_precision import BUDGET
from .rerun.allowed_ops import allowing
from .rerun.on_device import evaluating_on
from .sources.stand_ins import LeftBefore
from .tasks import Task, incomplete, pair_calls, pairs_of, records_all_ops
from .world.compare_world import WorldBefore, compare_world

_RANKS_APART: Final = (
    "the ranks of both sides share the work in different ways. To compare them, "
    'record both with data="tensor" and all ops, copy all ranks, and give no rules and no control dump; '
    "or compare one rank with one: --rank"
)


def compare_steps(tasks: Sequence[Task]) -> Iterator[RankEvidence]:
    """Compare the steps of one pair of ranks, in order; runs in any process."""
    state = _Before(unknown=bool(tasks) and tasks[0].steps[0] > 0)
    for task in tasks:
        if not is_evaluated(task):
            yield _of_ranks_apart(task) if task.together else compare_by_distance(task)
            continue
        settings = task.settings
        with allowing(settings.allow_ops), evaluating_on(settings.device), damage_seen() as damage:
            found = _evidence(task, state)
        told = dict.fromkeys((*found.not_whole, *(f"a dump is damaged: {one}" for one in damage)))
        yield of_what_is_whole(found, tuple(told))


@dataclass(slots=True)
class _Before:
    """What is known of the steps before one."""

    unknown: bool  # nobody knows what the step before left
    left: LeftBefore | None = None
    equal: tuple[RankDump, RankDump] | None = None  # the step before, if it was the same to the bit
    world: WorldBefore | None = None  # the step before, of all ranks
    differed: bool = False


def _evidence(task: Task, state: _Before) -> RankEvidence:
    """Compare one step, and note what it leaves to the next one."""
    if task.together:
        return _of_world(task, state)
    sides = zip((task.target, task.baseline), task.steps, task.ranks, strict=True)
    target, baseline = (rank_at(path, step, rank) for path, step, rank in sides)
    if not (has_all(target) and has_all(baseline)):
        state.left, state.equal, state.unknown, state.differed = None, None, True, False
        return compare_by_distance(task)
    ranks = with_parts(target), with_parts(baseline)
    if is_equal_step(*ranks):
        state.left, state.equal, state.unknown = None, ranks, False
        return _equal(task, *ranks)
    if state.equal is not None:
        state.left, state.equal = LeftBefore(*evaluate(state.equal, None, by_role=False).sides), None
    by_role = state.differed or (state.left is None and state.unknown)
    found, state.left = _compared(task, ranks, state.left, by_role=by_role, is_first=not state.differed)
    state.differed, state.unknown = state.differed or bool(found.findings), False
    return found


def _of_world(task: Task, state: _Before) -> RankEvidence:
    """Compare one step of all ranks of each side."""
    steps = [open_dump(path).step(step) for path, step in zip((task.target, task.baseline), task.steps, strict=True)]
    ranks = [step.rank(number) for step in steps for number in step.ranks]
    is_there = all(set(step.ranks) == set(range(step.rank(step.ranks[0]).header.world_size)) for step in steps)
    if not (is_there and all(map(has_all, ranks))):
        state.world = None
        return _of_ranks_apart(task)
    found, state.world = compare_world(task, state.world)
    return found


def _of_ranks_apart(task: Task) -> RankEvidence:
    """Return the evidence of ranks in unlike layouts that cannot be evaluated: nobody knows whether they agree."""
    steps = open_dump(task.target).step(task.steps[0]), open_dump(task.baseline).step(task.steps[1])
    missing = [text for step, side in zip(steps, ("target", "baseline"), strict=True) if (text := _missing(step, side))]
    return RankEvidence(
        task.target, task.baseline, task.steps, task.ranks,
        level="none", levels={}, calls=(0, 0), pairs={}, rows=(), findings=(), modules={}, paired={},
        together=(len(steps[0].ranks), len(steps[1].ranks)), incomplete=True,
        not_whole=(*missing, *([] if missing else [_RANKS_APART])),
    )  # fmt: skip


def _missing(step: Step, side: str) -> str:
    """Return which ranks of a step are missing, as a sentence; "" if none is."""
    world_size = step.rank(step.ranks[0]).header.world_size
    missing = sorted(set(range(world_size)) - set(step.ranks))
    if not missing:
        return ""
    names = ", ".join(map(str, missing))
    return (
        f"rank {names} of the {side}'s {world_size} is missing in step {step.step}; what it held was not compared: "
        f"copy step{step.step}/rank{missing[0]}"
    )


def is_evaluated(task: Task) -> bool:
    """Return True if the settings of a task ask for an evaluation, which needs what the step before left."""
    settings = task.settings
    is_plain = task.control is None and not settings.rules
    return is_plain and settings.replay and settings.data


def has_all(rank: RankDump) -> bool:
    """Return True if a recording has all that an evaluation needs: the bytes of all ops."""
    config = rank.config
    if config.get("source"):
        return False  # other tools do not keep all arguments
    if config.get("data") not in ("tensor", "full") or config.get("sample"):
        return False
    if config.get("io", "all") != "all" or not records_all_ops(rank) or rank.lacks:
        return False
    return any(call.kind == "aten" for call in rank.calls)


def _equal(task: Task, target: RankDump, baseline: RankDump) -> RankEvidence:
    """Return the evidence of steps that are the same to the bit."""
    found = rows_of_equal(DataFlow(target, "aten"), pairs_of(target, baseline, task.settings.mapping))
    notes = (
        *incomplete(target, baseline),
        *precisions_of((target, baseline), cast_sources=False, in_target_order=id)[1],
    )
    return RankEvidence(
        task.target, task.baseline, task.steps, task.ranks,
        calls=(len(target.calls), len(baseline.calls)), rows=tuple(found.rows), findings=(),
        modules=found_modules(found.modules.elements()),
        notes=notes, proven=found.judged, judged=found.judged, meets=tuple(attendance_of(target).parts),
        **counted(found.rows, found.hows, found.paired),
    )  # fmt: skip


def _of_compiled(sides: tuple[Evaluation, Evaluation]) -> Iterator[str]:
    """Yield what is not known of compiled code, in sentences."""
    for side, name in zip(sides, ("target", "baseline"), strict=True):
        if side.has_unseen:
            yield (
                f"the {name} ran compiled code: what that made is taken as it was recorded and compared up to rounding "
                "in its dtype; what it changed in memory is not compared"
            )


def _compared(
    task: Task, ranks: tuple[RankDump, RankDump], before: LeftBefore | None, *, by_role: bool, is_first: bool
) -> tuple[RankEvidence, LeftBefore]:
    """Evaluate a step; return what was found, and what the step leaves to the next one.

    Args:
        task: the step.
        ranks: of the target and the baseline.
        before: what the step before left.
        by_role: sources that differ stand for each other where they are read in the same role.
        is_first: no step before differed.
    """
    target, baseline = ranks
    pairs = pair_calls(target, baseline, task.settings.mapping)
    name_lines_alike(target, baseline, ((pair.target, pair.baseline) for pair in pairs))
    found = evaluate(ranks, before, by_role=by_role)
    replays = MeetingReplays(enabled=True, known=collectives_of(task.settings.comparison))
    verdict = RankVerdict(found, pairs, replays, task.settings.precision_budget or BUDGET)
    verdict.corrects = is_first
    verdict.run()
    cast_sources = any(how == "cast" for _, _, how in found.sources.pairs)
    casts, notes = precisions_of((target, baseline), cast_sources=cast_sources, in_target_order=verdict.in_target_order)
    findings = sorted([*verdict.findings, *casts], key=lambda finding: finding.order)
    if findings and before is None and not found.reordered:
        notes = [*notes, *begins_otherwise(found.sides, (found.sources.target, found.sources.baseline))]
    notes = [*near_ties(found.sides, pairs), *layer_notes(ranks, findings), *notes]
    hidden = () if findings else unshown(found.sides, pairs)
    findings, told = explained((target, baseline), pairs, verdict.rows, findings, whole=True)
    side = found.sides[0]
    # An op on distributed tensors is judged by the ops on what the rank holds of them.
    judged = [call for call in side.flow.calls() if not all(value.opaque for _, value in side.flow.results(call))]
    drawn, known = target.tables.random, found.sides[1].holders
    unproven = [
        call.name
        for call in judged
        if call.id in side.unproven
        and not verdict.is_met(call)
        and not (call.id in drawn and all(side.numbers.get(v.id) in known for _, v in side.flow.results(call)))
    ]
    modules = [(normal_module(p.target.module), normal_module(p.baseline.module)) for p in pairs]
    parts: dict[str, Any] = {**counts_of(verdict.rows, pairs), "unknown_ends": verdict.unknown_ends}
    evidence = RankEvidence(
        task.target, task.baseline, task.steps, task.ranks,
        calls=(len(target.calls), len(baseline.calls)), rows=tuple(verdict.rows), findings=tuple(findings),
        modules=found_modules(modules),
        notes=(*incomplete(target, baseline), *_of_compiled(found.sides), *found.notes, *hidden, *notes, *told),
        unshown=hidden, proven=len(judged) - len(unproven), judged=len(judged), unproven=tuple(unproven),
        meets=tuple(attendance_of(target).parts), leans=() if task.with_all else replays.leans(), **parts,
    )  # fmt: skip
    return evidence, LeftBefore(*found.sides, found.covered)
