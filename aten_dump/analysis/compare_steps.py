"""Compare the steps of one rank in turn: each is evaluated with what the step before left.

What has no bytes, or only some of its ops (statistics, hashes, a selection), is compared by distance (`judging`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ..dump import RankDump, open_dump
from ..store.damage_seen import damage_seen
from .evidence.findings import RankEvidence
from .explanation.rank_verdict import RankVerdict, evaluate, evidence_parts
from .flow.flat_memory import with_parts
from .judging.cause_facts import explained
from .judging.precisions import precisions_of
from .judging.rank_task import Task, incomplete, pair_calls
from .judging.sources import records_all_ops
from .layouts.compare_together import compare_task, of_what_is_whole
from .meetings.meeting_points import attendance_of
from .meetings.meeting_replays import MeetingReplays
from .pairing.call_keys import normal_module
from .pairing.user_mapping import found_modules
from .rerun.allowed_ops import allowing
from .sources.stand_ins import LeftBefore
from .young_garbage import young_garbage_only


def compare_steps(tasks: Sequence[Task]) -> Iterator[RankEvidence]:
    """Compare the steps of one pair of ranks, in order; runs in any process."""
    before: LeftBefore | None = None
    differed = False
    for task in tasks:
        why_not = _why_not_evaluated(task) if task.settings.evaluate else ""
        if why_not or not task.settings.evaluate:
            before, differed = None, False
            yield _with_note(compare_task(task), why_not)
            continue
        with young_garbage_only(), allowing(task.settings.allow_ops), damage_seen() as damage:
            found, before = _compared(task, before, differed)
        import os
        if os.environ.get("EVAL_MODE", "hybrid") == "hybrid" and found.findings:
            old = compare_task(task)
            if not old.findings:
                found = old
        differed = differed or bool(found.findings)
        yield of_what_is_whole(found, tuple(f"a dump is damaged: {one}" for one in damage))


def _why_not_evaluated(task: Task) -> str:
    """Return why a task cannot be evaluated, a clause; "" if it can."""
    settings = task.settings
    if task.together or task.control is not None or settings.rules or not (settings.replay and settings.data):
        return "it is compared by rules, a control, statistics or ranks put together"
    for side, path, step, rank in _sides(task):
        lacks = _lacks(open_dump(path).rank(step, rank))
        if lacks:
            return f"the {side} {lacks}"
    return ""


def _sides(task: Task) -> Iterator[tuple[str, str, int, int]]:
    yield from zip(("target", "baseline"), (task.target, task.baseline), task.steps, task.ranks, strict=True)


def _lacks(rank: RankDump) -> str:
    """Return what a recording lacks that an evaluation needs, a clause; "" for nothing."""
    config = rank.config
    if config.get("data") not in ("tensor", "full") or config.get("sample"):
        return 'was recorded without the bytes of its tensors (data="tensor" or "full")'
    if config.get("io", "all") != "all" or not records_all_ops(rank):
        return "was recorded with a selection of its ops or values"
    if rank.lacks:
        return f"is {rank.lacks}"
    return "" if any(call.kind == "aten" for call in rank.calls) else "has no ops"


def _with_note(found: RankEvidence, why_not: str) -> RankEvidence:
    """Add why a step was not evaluated, if that was asked for."""
    return replace(found, notes=(*found.notes, f"not evaluated, as {why_not}")) if why_not else found


def _compared(task: Task, before: LeftBefore | None, differed: bool) -> tuple[RankEvidence, LeftBefore]:
    target, baseline = (with_parts(open_dump(path).rank(step, rank)) for _, path, step, rank in _sides(task))
    found = evaluate((target, baseline), before, by_role=differed or (before is None and task.steps[0] > 0))
    pairs = pair_calls(target, baseline, task.settings.mapping)
    replays = MeetingReplays(enabled=True)
    verdict = RankVerdict(found, pairs, replays)
    verdict.run()
    cast_sources = any(how == "cast" for _, _, how in found.sources.pairs)
    casts, notes = precisions_of((target, baseline), cast_sources=cast_sources, in_target_order=verdict.in_target_order)
    findings = sorted([*verdict.findings, *casts], key=lambda finding: finding.order)
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
    parts: dict[str, Any] = evidence_parts(verdict, pairs)
    evidence = RankEvidence(
        task.target, task.baseline, task.steps, task.ranks,
        calls=(len(target.calls), len(baseline.calls)), rows=tuple(verdict.rows), findings=tuple(findings),
        modules=found_modules(modules), notes=(*incomplete(target, baseline), *notes, *told),
        proven=len(judged) - len(unproven), judged=len(judged), unproven=tuple(unproven),
        meets=tuple(attendance_of(target).parts), leans=tuple(replays.leans), **parts,
    )  # fmt: skip
    return evidence, LeftBefore(*found.sides, before)
