"""Compare one step and rank by distance: what cannot be evaluated, or shall be judged by rules or a control dump."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from ...dump import Call, RankDump, rank_at, run_at
from ...errors import MissingDataError
from ...store.damage_seen import damage_seen
from ..distance.value_distance import Level, closeness
from ..evidence.evidence_rows import Pair
from ..evidence.findings import Finding, RankEvidence, Row, Status
from ..evidence.noise_floors import Limits
from ..evidence.row_summary import NOT_COMPARED
from ..evidence.run_settings import summed_otherwise
from ..explanation.cause_facts import explained
from ..explanation.precisions import precisions_of
from ..flow.flat_memory import with_parts
from ..meetings.evaluated_collectives import collectives_of
from ..meetings.meeting_points import attendance_of
from ..meetings.meeting_replays import MeetingReplays
from ..pairing.alignment import HOW_TEXTS
from ..pairing.call_keys import normal_module
from ..pairing.user_mapping import Mapping, found_modules
from ..rerun.allowed_ops import allowing
from ..tasks import RECOMPUTE, Task, incomplete, pair_calls, records_all_ops
from ..young_garbage import young_garbage_only
from .ends import Ends
from .result_judge import ResultJudge
from .scaled_losses import without_scales
from .sources import LeftBehind, Outside
from .walk import Walk

_LEVELS: Final[tuple[Level, ...]] = ("tensor", "statistic", "hash")
_KINDS: Final = ("aten", "api", "module")  # which is walked: the first that both sides have
_LED_TO: Final[dict[Status | None, str]] = {
    None: "nothing that has a counterpart reads what it made",
    "same": "what it leads to is bitwise equal",
    "within": "what it leads to agrees within noise",
    "different": "what it leads to differs",
}
_NOTHING_IN_COMMON: Final = "no call of the one side has a counterpart on the other: they are of other programs"
_MEETS: Final = "what comes of it is the same again"
_NOT_WHOLE: Final = "a side is not whole"
_OF_CALLS: Final = ("input", "output", "mutated")  # how slots begin that are of a call, and not of the end of a step


def compare_by_distance(task: Task) -> RankEvidence:
    """Compare one step and rank; runs in any process.

    What a recording lacks that is not whole is said in the evidence, whatever the comparison itself made of it.
    """
    with young_garbage_only(), allowing(task.settings.allow_ops), damage_seen() as damage:
        target = with_parts(rank_at(task.target, task.steps[0], task.ranks[0]))
        if task.control == RECOMPUTE:
            found = _evidence(task, target, target, recompute_pairs(target))
        else:
            baseline = with_parts(rank_at(task.baseline, task.steps[1], task.ranks[1]))
            found = _evidence(task, target, baseline, pair_calls(target, baseline, task.settings.mapping))
    return of_what_is_whole(found, (*_not_whole(task), *(f"a dump is damaged: {one}" for one in damage)))


def of_what_is_whole(found: RankEvidence, not_whole: tuple[str, ...]) -> RankEvidence:
    """Return what was found of recordings that lack what some sentences say; all of it if there are none."""
    return replace(_without_absences(found), not_whole=not_whole) if not_whole else found


def _not_whole(task: Task) -> Iterator[str]:
    """Yield what the indexes lack that a task compares; lost bytes that were asked for are in `damage_seen`."""
    sides = [("target", task.target, task.steps[0], task.ranks[0])]
    if task.control != RECOMPUTE:
        sides.append(("baseline", task.baseline, task.steps[1], task.ranks[1]))
        sides += [] if task.control is None else [("control", task.control, task.steps[1], task.ranks[1])]
    for side, path, step, rank in sides:
        lacks = rank_at(path, step, rank).index_lacks
        if lacks:
            yield f"the {side} is {lacks}"


def _without_absences(found: RankEvidence) -> RankEvidence:
    """Take back what may differ only because a side is not whole.

    What a pair of calls was given and made is shown. What one side has and the other has not, and what is there at the
    end (gradients, what is left behind), is not: the missing calls may make it.
    """
    rows = (
        row if row.status != "different" or _is_shown(row) else replace(row, status="unknown", note=_NOT_WHOLE)
        for row in found.rows
    )
    findings = tuple(finding for finding in found.findings if _is_shown(finding.row))
    return replace(found, rows=tuple(rows), findings=findings, leans=())


def _is_shown(row: Row) -> bool:
    return row.target is not None and row.baseline is not None and row.slot.partition(".")[0] in _OF_CALLS


def recompute_pairs(rank: RankDump) -> list[Pair]:
    """Return each recomputed call with its original."""
    found = ((call, call.forward) for call in rank.calls.filter(phase="recompute"))
    return [Pair(call, original, "recompute") for call, original in found if original is not None]


def _evidence(task: Task, target: RankDump, baseline: RankDump, pairs: list[Pair]) -> RankEvidence:
    settings, is_whole = task.settings, task.control != RECOMPUTE
    control = _control(baseline, task) if task.control is not None and is_whole else None
    replays = MeetingReplays(enabled=settings.replay, known=collectives_of(settings.comparison))
    primary, others = divide(pairs)
    kind = primary[0].target.kind if primary else ""
    judge, sources = ResultJudge(settings.rules, replays, control), _outside(task, target, baseline)
    walk = Walk((target, baseline), kind, judge, sources, read_data=settings.data)
    none = {pair.target.id for pair in walk.run(primary)}
    pairs = [pair for pair in pairs if pair.target.id not in none]
    modules = found_modules([(normal_module(p.target.module), normal_module(p.baseline.module)) for p in pairs])
    if is_whole and not pairs and target.calls_by_kind().keys() & baseline.calls_by_kind().keys():
        place = walk.evidence.place(target.calls[0])
        row = Row(place, None, "", "", "different", note=_NOTHING_IN_COMMON)
        walk.evidence.rows.append(row)
        walk.evidence.blame("region", row, _NOTHING_IN_COMMON, "", (place.id, 0))
    ends = Ends(walk, modules, read_data=settings.data)
    if is_whole and len(target.calls) and len(baseline.calls):
        ends.run()
    meets_again = ends.agree and walk.drop_what_meets_again() and not walk.evidence.findings
    for pair in others:
        if not walk.flows[0].is_apart(pair.target):
            walk.describe(pair)
    rows = [*walk.evidence.rows, *(_alone(walk, pairs) if is_whole else ())]
    if meets_again:
        rows = [replace(r, status="within", note=_MEETS) if r.status == "different" else r for r in rows]
    rows.sort(key=lambda row: (row.place.id, row.target is None))
    rows, findings, notes = _explained(walk, pairs, rows, cast=bool(sources.precisions), whole=is_whole)
    levels = Counter(row.closeness.level for row in rows if row.closeness is not None)
    return RankEvidence(
        task.target, task.baseline, task.steps, task.ranks,
        level=next((level for level in _LEVELS if levels[level]), "none"),
        levels={str(level): count for level, count in levels.items()},
        calls=(len(target.calls), len(baseline.calls)),
        pairs={HOW_TEXTS[how]: count for how, count in Counter(pair.how for pair in pairs).items()},
        rows=tuple(rows), findings=tuple(findings), modules=modules,
        paired={p.target.name: p.baseline.name for p in pairs},
        notes=(*incomplete(target, baseline), *notes), unknown_ends=(*ends.unknown, *walk.unknown),
        proven=len(walk.judged) - len(walk.unproven), judged=len(walk.judged),
        unproven=tuple(call.name for call in walk.unproven.values()),
        meets=tuple(attendance_of(target).parts), leans=() if task.with_all else replays.leans(),
    )  # fmt: skip


def divide(pairs: Sequence[Pair]) -> tuple[list[Pair], list[Pair]]:
    """Return the pairs that are walked, aten ops or else the innermost of the best kind, and all others."""
    kinds = {pair.target.kind for pair in pairs}
    kind = next((kind for kind in _KINDS if kind in kinds), "")
    outer = set() if kind == "aten" else {p.target.parent_id for p in pairs if p.target.kind == kind}
    primary = [p for p in pairs if p.target.kind == kind and p.target.id not in outer]
    chosen = {p.target.id for p in primary}
    return primary, [p for p in pairs if p.target.id not in chosen]


def _outside(task: Task, target: RankDump, baseline: RankDump) -> Outside:
    """Return what judges values from outside the step."""
    runs = run_at(task.target), run_at(task.baseline)
    exact = all(not rank.step and records_all_ops(rank) for rank in (target, baseline))
    before = None
    if task.before is not None and task.control != RECOMPUTE:
        sides = zip((task.target, task.baseline), task.before, task.ranks, strict=True)
        with suppress(MissingDataError):  # this rank did not record the step before
            target_before, baseline_before = (with_parts(rank_at(*side)) for side in sides)
            before = LeftBehind(target_before), LeftBehind(baseline_before)
    return Outside(task.steps, exact=exact, before=before, summed_otherwise=summed_otherwise(*runs))


def _explained(
    walk: Walk, pairs: Sequence[Pair], rows: list[Row], *, cast: bool, whole: bool
) -> tuple[list[Row], list[Finding], list[str]]:
    """Return the rows, the findings in order, and notes."""
    partners = {pair.baseline.id: pair.target.id for pair in pairs}
    last = walk.ranks[0].calls[-1].id if len(walk.ranks[0].calls) else 0

    def in_target_order(call: Call) -> int:
        return next((partners[number] for number in sorted(partners) if number > call.id), last)

    casts, notes = precisions_of(walk.ranks, cast_sources=cast, in_target_order=in_target_order)
    findings = sorted([*walk.evidence.findings, *casts], key=lambda finding: finding.order)
    rows, findings = without_scales(walk.ranks, rows, findings) if whole else (rows, findings)
    findings, more = explained(walk.ranks, pairs, rows, findings, whole=whole)
    return rows, findings, [*notes, *more]


def _alone(walk: Walk, pairs: Sequence[Pair]) -> Iterator[Row]:
    """Yield a row for each call without a counterpart, with what is known of what it led to."""
    for side, call in walk.alone(pairs):
        place = walk.evidence.place(call)
        note = _LED_TO.get(walk.led_to.get((side, call.id)), NOT_COMPARED)
        yield Row(None if side else place, place if side else None, "", "", "unmatched", note=note)


def _control(baseline: RankDump, task: Task) -> Callable[[Call, str], Limits | None]:
    """Return the distance of the control dump from the baseline, by call of the baseline and slot."""
    assert task.control is not None
    control = rank_at(task.control, task.steps[1], task.ranks[1])
    partners = {pair.target.id: pair.baseline for pair in pair_calls(baseline, control, Mapping())}

    def limits(call: Call, slot: str) -> Limits | None:
        partner = partners.get(call.id)
        if partner is None:
            return None
        ours, theirs = dict(call.result_values()), dict(partner.result_values())
        if slot not in ours or slot not in theirs:
            return None
        found = closeness(theirs[slot], ours[slot], data=task.settings.data)
        if found.error is None:
            return None
        return Limits(found.error, found.metrics.max_scaled if found.metrics is not None else found.error)

    return limits
