"""Compare one step and rank: pair the calls, walk the pairs, collect the evidence.

Theory of operation
    A `Task` carries paths and settings and nothing that is open, so that it can run in any process; what comes back is
    `RankEvidence`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from ...dump import Call, RankDump, open_dump
from ...store.records import CALL_KINDS
from ..distance.value_distance import Level, closeness
from ..evidence.evidence_rows import Pair
from ..evidence.findings import Finding, RankEvidence, Row
from ..evidence.noise_floors import Limits
from ..evidence.place_of_call import place_of
from ..evidence.row_summary import NOT_COMPARED
from ..evidence.run_settings import summed_otherwise
from ..evidence.user_rules import Rule
from ..facts.loss_scales import scale_ratio
from ..flow.flat_memory import with_parts
from ..meetings.meeting_points import attendance_of
from ..meetings.meeting_replays import MeetingReplays
from ..pairing.alignment import HOW_TEXTS, Match, align
from ..pairing.call_keys import call_keys, normal_module
from ..pairing.user_mapping import Mapping, found_modules
from ..young_garbage import young_garbage_only
from .cause_facts import explained
from .cut_gradients import named_at_the_cut
from .ends import wrote_unseen
from .knowledge import Knowledge
from .pair_walk import Walk
from .precisions import precisions_of
from .result_judge import ResultJudge
from .scaled_losses import without_scales
from .sources import Contents, LeftContents, Sources, read_contents, records_all_ops

_LEVELS: Final[tuple[Level, ...]] = ("tensor", "statistic", "hash")
_KINDS: Final = ("aten", "api", "module")  # which is walked: the first that both sides have
RECOMPUTE: Final = "<recompute>"  # in Task.control: compare recomputed calls with their originals


@dataclass(frozen=True, slots=True)
class Settings:
    """How to compare."""

    mapping: Mapping = field(default_factory=Mapping)
    rules: tuple[Rule, ...] = ()
    replay: bool = True
    data: bool = True
    batch_dim: int | None = None  # ranks hold consecutive slices of the batch along it
    allow_ops: tuple[str, ...] = ()  # patterns of ops to run beside those of torch
    precision_budget: float | None = None  # how far an end may be from its meaning, relative L2


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

    @property
    def step(self) -> int:
        """The target's step."""
        return self.steps[0]

    @property
    def rank(self) -> int:
        """The target's rank."""
        return self.ranks[0]


def compare_rank(task: Task) -> RankEvidence:
    """Compare one step and rank; runs in any process."""
    with young_garbage_only():
        target = with_parts(open_dump(task.target).rank(task.steps[0], task.ranks[0]))
        if task.control == RECOMPUTE:
            return _evidence(target, target, recompute_pairs(target), task)
        baseline = with_parts(open_dump(task.baseline).rank(task.steps[1], task.ranks[1]))
        return _evidence(target, baseline, pair_calls(target, baseline, task.settings.mapping), task)


def pair_calls(target: RankDump, baseline: RankDump, mapping: Mapping) -> list[Pair]:
    """Align the calls of two step-ranks; only kinds that both sides recorded take part."""
    kinds = target.calls_by_kind().keys() & baseline.calls_by_kind().keys()
    positions = [positions_of_kinds(rank, kinds) for rank in (target, baseline)]
    keys = call_keys(target, positions[0], mapping), call_keys(baseline, positions[1])
    matches = align(*keys, pinned=_pinned(target, baseline, positions, mapping))
    return [_pair(target, baseline, positions, match) for match in matches]


def positions_of_kinds(rank: RankDump, kinds: Iterable[str]) -> list[int]:
    """Return where calls of some kinds are in ``rank.calls``, without making a handle for each."""
    wanted = set(kinds)
    calls = rank.tables.calls
    codes = {op.id for op in rank.tables.ops.records() if CALL_KINDS[op.call_kind] in wanted}
    return [position for position in range(len(calls)) if calls[position].op in codes]


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


def recompute_pairs(rank: RankDump) -> list[Pair]:
    """Return each recomputed call with its original."""
    found = []
    for call in rank.calls.filter(phase="recompute"):
        original = call.forward
        if original is not None:
            found.append(Pair(call, original, "recompute"))
    return found


def _evidence(target: RankDump, baseline: RankDump, pairs: list[Pair], task: Task) -> RankEvidence:
    settings = task.settings
    is_recompute = task.control == RECOMPUTE
    control = None if task.control is None or is_recompute else _control(baseline, task)
    replays = MeetingReplays(enabled=settings.replay)
    judge = ResultJudge(settings.rules, replays, control)
    sources = sources_of(task, target, baseline)
    knows = Knowledge((target, baseline), walked_kind(pairs), judge, sources, read_data=settings.data)
    knows.numbers.set_before(lambda: _beside(task, task.before))
    found = evidence_of(Walk(knows), pairs, task, whole=not is_recompute)
    return replace(found, meets=tuple(attendance_of(target).parts), leans=tuple(replays.leans))


def sources_of(task: Task, target: RankDump, baseline: RankDump) -> Sources:
    """Return what judges values from outside the step."""
    ranks = _beside(task, task.before)
    before = None if ranks is None else (LeftContents(with_parts(ranks[0])), LeftContents(with_parts(ranks[1])))

    def after() -> tuple[Contents, Contents] | None:
        found = _beside(task, task.after)
        return None if found is None else (read_contents(with_parts(found[0])), read_contents(with_parts(found[1])))

    otherwise = summed_otherwise(open_dump(task.target).run, open_dump(task.baseline).run)
    exact = exact_sources(target, baseline)
    return Sources(task.steps, exact=exact, before=before, after=after, summed_otherwise=otherwise)


def _beside(task: Task, beside: tuple[int, int] | None) -> tuple[RankDump, RankDump] | None:
    """Return what both sides recorded of the steps before or after, where these are compared too."""
    if beside is None:
        return None
    steps = [open_dump(path).step(step) for path, step in zip((task.target, task.baseline), beside, strict=True)]
    if any(rank not in step.ranks for step, rank in zip(steps, task.ranks, strict=True)):
        return None
    return steps[0].rank(task.ranks[0]), steps[1].rank(task.ranks[1])


def evidence_of(
    walk: Walk,
    pairs: list[Pair],
    task: Task,
    *,
    whole: bool = True,
    before: Callable[[], None] = lambda: None,
) -> RankEvidence:
    """Walk pairs of calls and return what was found.

    Args:
        walk: not run yet.
        pairs: all that were aligned, of every kind.
        task: what is compared.
        whole: both recordings are the same part of a program; calls without a counterpart and ends count.
        before: is called when the pairs were walked.
    """
    knows = walk.knows
    target, baseline = knows.target, knows.baseline
    primary, others = divide(pairs)
    walk.run(primary, pairs)
    ends = walk.ends() if whole and len(target.calls) and len(baseline.calls) else ()
    for pair in others:
        if not knows.flows[0].is_apart(pair.target) and pair.target.id not in walk.given_up:
            knows.describe(pair)
    before()
    kept = {pair.target.id: pair for pair in (*pairs, *walk.found_by_flow) if pair.target.id not in walk.given_up}
    pairs = list(kept.values())
    rows = [*knows.evidence.rows, *(unmatched_rows(walk, pairs) if whole else ())]
    rows.sort(key=lambda row: (row.place.id, row.target is None))
    rows, findings, notes = _told(knows, pairs, rows, whole=whole)
    best, levels = levels_of(rows)
    modules = [(normal_module(p.target.module), normal_module(p.baseline.module)) for p in pairs]
    proofs, estimated = knows.proofs, sorted(knows.proofs.estimated - knows.proofs.proven)
    return RankEvidence(
        task.target, task.baseline, task.steps, task.ranks, best,
        levels,
        (len(target.calls), len(baseline.calls)),
        {HOW_TEXTS[how]: count for how, count in Counter(pair.how for pair in pairs).items()},
        tuple(rows), tuple(findings), found_modules(modules),
        {p.target.name: p.baseline.name for p in pairs},
        (*incomplete(target, baseline), *notes),
        proven=len(proofs.proven), judged=len(proofs.proven | proofs.estimated),
        unproven=tuple(target.call(number).name for number in estimated), unknown_ends=tuple(ends),
    )  # fmt: skip


def _told(
    knows: Knowledge, pairs: Sequence[Pair], rows: list[Row], *, whole: bool
) -> tuple[list[Row], list[Finding], list[str]]:
    """Return the rows, the findings in order, and notes."""
    sides = knows.target, knows.baseline
    casts, notes = precisions_of(
        sides, cast_sources=bool(knows.sources.precisions), in_target_order=partial(_in_target_order, knows)
    )
    findings = named_at_the_cut(knows, sorted([*knows.evidence.findings, *casts], key=lambda finding: finding.order))
    rows, findings = without_scales(sides, rows, findings) if whole else (rows, findings)
    findings, told = explained(sides, pairs, rows, findings, whole=whole)
    return rows, findings, [*notes, *told]


def levels_of(rows: Iterable[Row]) -> tuple[Level, dict[str, int]]:
    """Return the best data level of some rows, and how many were compared by each."""
    levels = Counter(row.closeness.level for row in rows if row.closeness is not None)
    best: Level = next((level for level in _LEVELS if levels[level]), "none")
    return best, {str(level): count for level, count in levels.items()}


def _in_target_order(knows: Knowledge, call: Call) -> int:
    """Return the id of the target's call at which one of the baseline's stands."""
    behind = [(other.id, number) for number, other in knows.wiring.pairs.items() if other.id > call.id]
    return min(behind)[1] if behind else knows.target.calls[-1].id


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


def exact_sources(target: RankDump, baseline: RankDump) -> bool:
    """Return True if what comes from outside must be equal: at the first step, and if all calls were recorded."""
    return all(not rank.step and records_all_ops(rank) for rank in (target, baseline))


def walked_kind(pairs: Sequence[Pair]) -> str:
    """Return the kind of calls that is walked: the best that both sides have."""
    kinds = {pair.target.kind for pair in pairs}
    return next((kind for kind in _KINDS if kind in kinds), "")


def divide(pairs: Sequence[Pair]) -> tuple[list[Pair], list[Pair]]:
    """Return the pairs that are walked, aten ops or else the innermost of the best kind, and all others."""
    kind = walked_kind(pairs)
    outer = set() if kind == "aten" else {p.target.parent_id for p in pairs if p.target.kind == kind}
    primary = [p for p in pairs if p.target.kind == kind and p.target.id not in outer]
    chosen = {p.target.id for p in primary}
    return primary, [p for p in pairs if p.target.id not in chosen]


def unmatched_rows(walk: Walk, pairs: Sequence[Pair]) -> Iterator[Row]:
    """Yield a row for each call without a counterpart, with what is known of the region it is in."""
    knows = walk.knows
    taken = {p.target.id for p in pairs}, {p.baseline.id for p in pairs}
    sides = ("target", knows.target, taken[0]), ("baseline", knows.baseline, taken[1])
    for side, rank, paired in sides:
        for call in rank.calls:
            if call.id in paired:
                continue
            known = knows.proofs.region_status.get((side, call.id))
            note = {
                None: "nothing that has a counterpart reads what it made",
                "same": "what it leads to is bitwise equal",
                "within": "what it leads to agrees within noise",
                "different": "what it leads to differs",
            }.get(known, NOT_COMPARED)
            place = place_of(call)
            yield Row(
                place if side == "target" else None, None if side == "target" else place, "", "", "unmatched", note=note
            )


def _control(baseline: RankDump, task: Task) -> Callable[[Call, str], Limits | None]:
    """Return the distance of the control dump from the baseline, by call of the baseline and slot."""
    assert task.control is not None
    control = open_dump(task.control).rank(task.steps[1], task.ranks[1])
    partners = {pair.target.id: pair.baseline for pair in pair_calls(baseline, control, Mapping())}

    def limits(call: Call, slot: str) -> Limits | None:
        partner = partners.get(call.id)
        if partner is None:
            return None
        ours = dict(call.result_values())
        theirs = dict(partner.result_values())
        if slot not in ours or slot not in theirs:
            return None
        found = closeness(theirs[slot], ours[slot], data=task.settings.data)
        if found.error is None:
            return None
        element = found.metrics.max_scaled if found.metrics is not None else found.error
        return Limits(found.error, element)

    return limits
