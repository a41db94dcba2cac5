"""Compare one step of two dumps of different parallel layouts: all ranks of each side together.

Theory of operation
    1. Each side's ranks are aligned with its lead, call by call, and put together (`AssembledRank`). Calls that only
       serve the layout are set aside; they get rows that say what they are, and count for nothing.
    2. The calls that are left are aligned as any two recordings are.
    3. How the parts of plain tensors fit together is found by their counterparts (`Settler`).
    4. A value that calls of the layout made of another one is that one, if it holds the same (`Moves`); if it does
       not, moving it went wrong: a finding. So data flow does not end at an all-gather or a reduce-scatter.
    5. The pairs are walked as usual. Whether an op is right is asked of each rank for itself: its own call, on its own
       parts, is run in float64.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ...dump import Call, Dump, RankDump, Value, open_dump
from ...dump.across_ranks.assembled_rank import AssembledRank
from ...dump.across_ranks.whole_values import Correspondence, WholeValues
from ...errors import MissingDataError
from ...store.damage_seen import damage_seen
from ..evidence.evidence_rows import Pair
from ..evidence.findings import Finding, Place, RankEvidence, Row
from ..evidence.place_of_call import place_of
from ..judging.rank_task import (
    compare_rank,
    evidence_of,
    exact_sources,
    walked_kind,
)
from ..judging.sources import LeftOnRanks, Sources
from ..pairing.alignment import CallKey, align
from ..pairing.call_keys import call_keys, normal_module
from ..pairing.user_mapping import Mapping
from ..rerun.allowed_ops import allowing
from ..tasks import RECOMPUTE, Task, pair_calls, positions_of_kinds
from .fused_loss import LayoutWalk
from .layout_calls import LAYOUT_TEXTS, LayoutKind, layout_calls
from .layout_pair_walk import LayoutJudge, LayoutKnowledge, RankExplainer, sizes_of
from .moved_findings import moved_finding
from .moved_values import Moves
from .part_arrangement import Settler
from .rank_replays import RankReplays
from .reduced_values import settle_reduced
from .unreduced_gradients import told_where_reduced, unreduced_findings

_MOST_REPLICAS: Final = 3  # that are described
_NOT_WHOLE: Final = "a side is not whole"
_OF_CALLS: Final = ("input", "output", "mutated")  # how slots begin that are of a call, and not of the end of a step


@dataclass(slots=True)
class Side:
    """One side of a comparison across ranks."""

    name: str  # target or baseline
    rank: AssembledRank
    aside: dict[int, LayoutKind]
    lone: dict[int, list[Call]]  # calls that a rank made and the lead did not, or the other way round, by rank


def assemble(dump: Dump, step: int, name: str) -> Side:
    """Put the ranks of a step together.

    Raises:
        MissingDataError: no rank recorded the step.
    """
    ranks = {number: dump.rank(step, number) for number in dump.step(step).ranks}
    if not ranks:
        raise MissingDataError(f"no rank recorded step {step} of {dump.path}")
    lead = ranks[min(ranks)]
    kinds = {number: layout_calls(rank) for number, rank in ranks.items()}
    matched, lone = {}, {}
    for number, rank in ranks.items():
        if rank is not lead:
            matched[number] = correspondence(lead, rank)
            ours = {*matched[number].calls, *kinds[lead.rank]}
            theirs = {*matched[number].calls.values(), *kinds[number]}
            lone[number] = [c for c in lead.calls if c.id not in ours] + [c for c in rank.calls if c.id not in theirs]
    aside = kinds[lead.rank]
    missing = sorted(set(range(max(lead.header.world_size, max(ranks) + 1))) - set(ranks))
    whole = AssembledRank(WholeValues(ranks, matched, missing), aside)
    return Side(name, whole, aside, {number: calls for number, calls in lone.items() if calls})


def correspondence(lead: RankDump, other: RankDump) -> Correspondence:
    """Align the calls of two ranks of one program, and with them the values at the same places."""
    sides = lead, other
    keys = [call_keys(rank, range(len(rank.calls))) for rank in sides]
    calls: dict[int, int] = {}
    made: dict[int, int] = {}
    read: dict[int, int] = {}
    for match in align(keys[0], keys[1]):
        one, two = lead.call_at(match.target), other.call_at(match.baseline)
        calls[one.id] = two.id
        for found, slots, others in (
            (read, one.input_slots(), two.input_slots()),
            (made, one.output_slots(), two.output_slots()),
            (made, one.written_slots(), two.written_slots()),
        ):
            there = dict(others)
            for slot, number in slots:
                if slot in there:
                    found.setdefault(number, there[slot])
    values = made | read  # of a tensor that was divided, each rank goes on with another piece
    theirs = {record.name: record.value for record in other.tables.gradients}
    for record in lead.tables.gradients:
        if record.name in theirs:
            values.setdefault(record.value, theirs[record.name])
    return Correspondence(calls, values)


def slots_of(pair: Pair) -> list[tuple[str, Value, Value]]:
    """Return (slot, target's value, baseline's value) of what both calls of a pair have."""
    found = []
    for ours, theirs in (
        (pair.target.input_values(), pair.baseline.input_values()),
        (pair.target.output_values(), pair.baseline.output_values()),
        (pair.target.written_values(), pair.baseline.written_values()),
    ):
        there = dict(theirs)
        found += [(slot, value, there[slot]) for slot, value in ours if slot in there]
    return found


def settle(pairs: Sequence[Pair], settler: Settler) -> None:
    """Settle the grids of all values of some pairs, ops first: they know most."""
    for pair in sorted(pairs, key=lambda pair: pair.target.kind != "aten"):
        for _, target, baseline in slots_of(pair):
            settler.settle(target, baseline, is_gradient=pair.target.phase == "backward")


def pairs_out_of_order(target: RankDump, baseline: RankDump, pairs: Sequence[Pair], mapping: Mapping) -> list[Pair]:
    """Return pairs of ops that alignment left alone on both sides, which nothing else that was left is like.

    Alignment keeps the order, and layouts change it: gradients are added up before or after others are accumulated.
    """
    alone: list[dict[CallKey, list[Call]]] = []
    for rank, names in ((target, mapping), (baseline, None)):
        taken = {(pair.target if rank is target else pair.baseline).id for pair in pairs}
        left = [at for at in positions_of_kinds(rank, ("aten",)) if rank.tables.calls[at].id not in taken]
        alone.append({})
        for at, key in zip(left, call_keys(rank, left, names), strict=True):
            alone[-1].setdefault(key, []).append(rank.call_at(at))
    ours, theirs = alone
    keys = [key for key in ours if len(ours[key]) == len(theirs.get(key, ())) == 1]
    return [Pair(ours[key][0], theirs[key][0], "order") for key in keys]


def renewed(pairs: Iterable[Pair], target: RankDump, baseline: RankDump) -> list[Pair]:
    """Return pairs with handles on what the recordings hold now."""
    return [Pair(target.call(pair.target.id), baseline.call(pair.baseline.id), pair.how) for pair in pairs]


def compare_task(task: Task) -> RankEvidence:
    """Compare one step, of one rank or of all ranks together; runs in any process.

    What a recording lacks that is not whole is told here, whatever the comparison itself made of it.
    """
    with allowing(task.settings.allow_ops), damage_seen() as damage:
        found = compare_together(task) if task.together else compare_rank(task)
    return of_what_is_whole(found, (*_not_whole(task), *(f"a dump is damaged: {one}" for one in damage)))


def of_what_is_whole(found: RankEvidence, not_whole: tuple[str, ...]) -> RankEvidence:
    """Return what was found of recordings that lack what some sentences say; all of it if there are none."""
    return replace(without_absences(found), not_whole=not_whole) if not_whole else found


def _not_whole(task: Task) -> Iterator[str]:
    """Yield what the indexes lack that a task compares; lost bytes that were asked for are in `damage_seen`."""
    sides = [("target", task.target, task.steps[0], task.ranks[0])]
    if task.control != RECOMPUTE:
        sides.append(("baseline", task.baseline, task.steps[1], task.ranks[1]))
        sides += [] if task.control is None else [("control", task.control, task.steps[1], task.ranks[1])]
    for side, path, number, rank in sides:
        step = open_dump(path).step(number)
        for one in step.ranks if task.together else (rank,):
            lacks = step.rank(one).index_lacks
            if lacks:
                yield f"rank {one} of the {side} is {lacks}" if task.together else f"the {side} is {lacks}"


def without_absences(found: RankEvidence) -> RankEvidence:
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


def compare_together(task: Task) -> RankEvidence:
    """Compare one step of two dumps, all ranks of each put together."""
    settings = task.settings
    one = assemble(open_dump(task.target), task.steps[0], "target")
    other = assemble(open_dump(task.baseline), task.steps[1], "baseline")
    target, baseline = one.rank, other.rank
    pairs = pair_calls(target, baseline, settings.mapping)
    likely = [*pairs, *pairs_out_of_order(target, baseline, pairs, settings.mapping)]
    settler = Settler(settings.batch_dim, settings.data)
    settle(likely, settler)
    _settle_gradients(target, baseline, settler)
    for side in (one, other):
        settle_reduced(side.rank, settler)
    settler.pair_off()
    settler.give_up_misfits()
    replays = RankReplays(enabled=settings.replay)
    moved = list(unreduced_findings(pairs, settings.data))
    for side in (one, other):
        paired = frozenset((p.target if side is one else p.baseline).id for p in likely)
        moves = Moves(side.rank, paired, settings.data)
        moves.run(side.rank.calls.filter(kind="aten"))
        side.rank = side.rank.renamed(moves.aliases)
        moved += [moved_finding(side.rank, fault, replays, is_baseline=side is other) for fault in moves.faults]
    target, baseline = one.rank, other.rank
    pairs = renewed(pairs, target, baseline)
    sizes = sizes_of(target) | {(whole, part) for part, whole in sizes_of(baseline)}
    judge = LayoutJudge(settings.rules, replays, None)
    judge.ranks = max(len(target.ranks), len(baseline.ranks))
    before = None if task.before is None else (_left(task.target, task.before[0]), _left(task.baseline, task.before[1]))
    sources = Sources(task.steps, exact=exact_sources(target, baseline), before=before)
    knows = LayoutKnowledge((target, baseline), walked_kind(pairs), judge, sources, read_data=settings.data)
    knows.sizes = frozenset(sizes)
    found = evidence_of(LayoutWalk(knows), pairs, task, before=lambda: _before(knows, pairs, moved))
    return _with_layout(found, (one, other), settler)


def _left(path: str, step: int) -> LeftOnRanks:
    found = open_dump(path).step(step)
    return LeftOnRanks({rank: found.rank(rank) for rank in found.ranks})


def _settle_gradients(target: AssembledRank, baseline: AssembledRank, settler: Settler) -> None:
    for _, ours, theirs in gradients(target, baseline):
        settler.settle(ours, theirs, is_gradient=True)


def gradients(target: RankDump, baseline: RankDump) -> Iterator[tuple[str, Value, Value]]:
    """Yield (parameter, target's gradient, baseline's gradient), wrapper names apart."""
    there = {normal_module(name): value for name, value in baseline.gradients.items()}
    for name, value in target.gradients.items():
        if normal_module(name) in there:
            yield name, value, there[normal_module(name)]


def _before(knows: LayoutKnowledge, pairs: Sequence[Pair], moved: Sequence[Finding]) -> None:
    """Add what no pair of calls shows, and say which ranks the first findings are of."""
    findings, target = knows.evidence.findings, knows.target
    findings += moved
    RankExplainer(knows).explain(pairs)
    if findings and isinstance(target, AssembledRank):
        findings[0] = told_where_reduced(findings[0], target)


def _with_layout(found: RankEvidence, sides: tuple[Side, Side], settler: Settler) -> RankEvidence:
    incomplete = any(side.rank.missing_ranks for side in sides)
    if incomplete:
        found = _doubted(found)
    if any(map(is_pipeline, sides)):
        found, incomplete = _taken_back(found), True
    rows = [*found.rows, *(row for side in sides for row in _aside_rows(side))]
    notes = [note for side in sides for note in layout_notes(side)]
    if settler.unfitting:
        notes.append(
            f"{settler.unfitting} tensors are in parts on several ranks that do not make up their counterparts, and "
            "were not compared; if ranks took consecutive slices of one batch, name its dimension with --batch-shard, "
            "and what differs counts"
        )
    return replace(
        found,
        rows=tuple(rows),
        findings=tuple(_with_who_lacks_it(finding, sides) for finding in found.findings),
        notes=(*found.notes, *notes),
        together=(len(sides[0].rank.ranks), len(sides[1].rank.ranks)),
        incomplete=incomplete,
        aside={LAYOUT_TEXTS[kind]: count for kind, count in sum((count_aside(s) for s in sides), Counter()).items()},
        replicas=tuple(_replica_texts(sides[0].rank, settler)),
    )


def _with_who_lacks_it(finding: Finding, sides: tuple[Side, Side]) -> Finding:
    """Say which ranks did not make the call that is named, which their lead made."""
    side = sides[0 if finding.row.target else 1]
    lead, id = side.rank.lead, finding.row.place.id
    lacking = [str(n) for n, calls in side.lone.items() if any(c.rank.rank == lead.rank and c.id == id for c in calls)]
    if not lacking:
        return finding
    return replace(finding, text=f"{finding.text}; rank {lead.rank} made this call, rank {', '.join(lacking)} did not")


def _doubted(found: RankEvidence) -> RankEvidence:
    """Take back what nobody can know where ranks are missing: that tensors differ which some of them had a share in."""
    findings = tuple(finding for finding in found.findings if finding.kind not in ("rewired", "gradient"))
    if findings:
        return replace(found, findings=findings)
    rows = (
        replace(r, status="unknown", note="ranks are missing") if r.status == "different" else r for r in found.rows
    )
    return replace(found, findings=(), rows=tuple(rows))


def is_pipeline(side: Side) -> bool:
    """Tell whether ranks hold gradients of other parameters than the lead: each runs a part of its own."""
    named = [{record.name for record in rank.tables.gradients} for rank in side.rank.ranks.values()]
    return any(one and named[0] and one.isdisjoint(named[0]) for one in named[1:])


def _taken_back(found: RankEvidence) -> RankEvidence:
    """Take all differences back: calls of one stage of a pipeline are no counterparts of the whole program's."""
    rows = (replace(r, status="unknown", note="a stage of it") if r.status == "different" else r for r in found.rows)
    return replace(found, findings=(), leans=(), rows=tuple(rows))


def _aside_rows(side: Side) -> Iterator[Row]:
    for id, kind in side.aside.items():
        call = side.rank.lead.call(id)
        place = place_of(call)
        inside = call.parent
        note = LAYOUT_TEXTS[kind] + (f", in {inside.name}" if kind == "local op" and inside else "")
        places: tuple[Place | None, Place | None] = (place, None) if side.name == "target" else (None, place)
        yield Row(*places, "", "", "layout", note=note)


def _replica_texts(rank: AssembledRank, settler: Settler) -> Iterator[str]:
    """Yield what is to be said about replicas that differ, the first in execution order first."""
    found = sorted(settler.replicas.values(), key=lambda difference: difference.value)
    for difference in found[:_MOST_REPLICAS]:
        value = rank.value_by_id(difference.value)
        used = next(iter(value.consumers), None)
        made = value.producer or used
        where = f"{made[0].name} {made[1]}" if made else f"value {value.id}"
        ranks = ", ".join(map(str, difference.ranks))
        numbers = "the bits differ"
        if difference.error is not None:
            at = list(difference.at or ())
            numbers = f"relative L2 {difference.error:.3g}, greatest difference {difference.max_abs:.3g} at {at}"
        yield f"{where} {value.dtype_name}{list(value.shape)} on rank {ranks}: {numbers}"
    if len(found) > _MOST_REPLICAS:
        yield f"and {len(found) - _MOST_REPLICAS} more"


def layout_notes(side: Side) -> list[str]:
    """Return what is to be said about the ranks of a side."""
    notes = []
    rank = side.rank
    if rank.missing_ranks:
        missing = ", ".join(map(str, rank.missing_ranks))
        notes.append(
            f"rank {missing} of the {side.name}'s {len(rank.ranks) + len(rank.missing_ranks)} is missing in step "
            f"{rank.step}; what it held was not compared, so the answer is not whole; copy "
            f"step{rank.step}/rank{missing}"
        )
    if is_pipeline(side):
        notes.append(
            f"the ranks of the {side.name} hold unlike parameters, as stages of a pipeline do; stages are not put "
            "together, so that nothing is said of them: compare runs of one layout, or replay each rank"
        )
    for number, calls in side.lone.items():
        first = f"{calls[0].name} of rank {calls[0].rank.rank}"
        notes.append(
            f"{len(calls)} calls of rank {rank.lead.rank} or rank {number} of the {side.name} have none in the other, "
            f"the first is {first}"
        )
    return notes


def count_aside(side: Side) -> Counter[LayoutKind]:
    """Count the calls that were set aside, by what they are."""
    return Counter(side.aside.values())
