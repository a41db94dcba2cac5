"""Compare one step and rank by distance: what cannot be evaluated, or shall be judged by rules or a control dump.

Theory of operation
    Whatever the pairs of calls say, what a step is for must agree: losses, gradients by their names, and what is left
    in memory. Most are results of paired calls and known by then; the others
    are compared by their numbers. A gradient of one side alone is a finding, and so is memory that one side alone
    changes. Which memory of one side is which of the other's is known by the calls that were given both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Mapping as MappingOf
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from ...dump import Call, RankDump, Value, rank_at, run_at
from ...dump.across_ranks.part_holders import Holders
from ...errors import MissingDataError
from ...store.damage_seen import damage_seen
from ...store.op_names import UNSCALE_GRADIENTS
from ..distance.value_distance import Factor, Level, closeness
from ..evidence.evidence_rows import Pair
from ..evidence.findings import Finding, FindingKind, Place, RankEvidence, Row, Status
from ..evidence.judgement import Judgement
from ..evidence.noise_floors import Limits
from ..evidence.row_summary import NOT_COMPARED
from ..evidence.run_settings import summed_otherwise
from ..explanation.cause_facts import explained
from ..explanation.precisions import precisions_of
from ..facts.loss_scales import ScaleRatio, scale_ratio
from ..flow.counterparts import Side
from ..flow.flat_memory import with_parts
from ..flow.left_memory import LeftMemory, LeftPlace
from ..flow.roots import roots_of
from ..meetings.evaluated_collectives import collectives_of
from ..meetings.meeting_points import attendance_of
from ..meetings.meeting_replays import MeetingReplays
from ..pairing.alignment import HOW_TEXTS
from ..pairing.call_keys import normal_module
from ..pairing.user_mapping import Mapping, found_modules
from ..rerun.allowed_ops import allowing
from ..tasks import RECOMPUTE, Task, incomplete, pair_calls, records_all_ops
from .result_judge import ResultJudge
from .sources import LeftBehind, Outside
from .walk import Walk

_NOTE = "differs by the loss scales alone"

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


def compare_by_distance(task: Task) -> RankEvidence:
    """Compare one step and rank; runs in any process.

    What a recording lacks that is not whole is said in the evidence, whatever the comparison itself made of it.
    """
    with allowing(task.settings.allow_ops), damage_seen() as damage:
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

    A result that is wrong for its own inputs is shown by them alone, or by an op that makes another one of the same.
    All else rests on which calls are counterparts, or on what is there at the end: what is missing may change both.
    """
    shown = tuple(finding for finding in found.findings if _is_shown(finding.row))
    known = {(finding.row.place.id, finding.row.slot) for finding in shown}
    rows = (
        row
        if row.status != "different" or _is_shown(row) or (row.place.id, row.slot) in known
        else replace(row, status="unknown", note=_NOT_WHOLE)
        for row in found.rows
    )
    notes = () if shown else tuple(map(_unproven, found.findings[:1]))
    return replace(found, rows=tuple(rows), findings=shown, notes=(*found.notes, *notes), leans=())


def _is_shown(row: Row) -> bool:
    is_replayed = row.floor_from == "replay" and (row.ratio or 0.0) > 1
    return row.target is not None and row.status == "different" and (is_replayed or row.how == "flow")


def _unproven(finding: Finding) -> str:
    named = [place.call for place in (finding.row.target, finding.row.baseline) if place is not None]
    return (
        f"not proven, as its counterpart may be missing: {' beside '.join(named)}, {finding.row.slot}: {finding.text}"
    )


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
    if target.index_lacks or baseline.index_lacks:
        walk.keep_to_contents()
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


def without_scales(
    sides: tuple[RankDump, RankDump], rows: list[Row], findings: list[Finding]
) -> tuple[list[Row], list[Finding]]:
    """Return rows and findings without what the ratio of both loss scales explains."""
    ratio = scale_ratio(*sides)
    if ratio is None:
        return rows, findings
    scaled = _Scaled(sides, ratio)
    left = [finding for finding in findings if not scaled.explains(finding.row)]
    return list(scaled.explained(rows, came_of_them=bool(findings) and not left)), left


class _Scaled:
    """What is scaled: losses and gradients until they are unscaled, and the numbers that the scale itself is."""

    def __init__(self, sides: tuple[RankDump, RankDump], ratio: ScaleRatio) -> None:
        self._ratio = ratio
        self._unscaled = [_first_unscaling(rank) for rank in sides]

    def explained(self, rows: Sequence[Row], *, came_of_them: bool) -> Iterator[Row]:
        """Yield rows; `came_of_them`: nothing else was found, so what still differs is what those gradients led to."""
        for row in rows:
            is_scaled = row.status == "different" and (self.explains(row) or (came_of_them and self._is_applied(row)))
            yield replace(row, status="within", ratio=None, note=_NOTE) if is_scaled else row

    def explains(self, row: Row) -> bool:
        """True where the difference is that of the scales, or an unscaled gradient's that is rounded otherwise."""
        close = row.closeness
        if close is None or close.shape is not None or close.nonfinite:
            return False
        if row.place.op.startswith(UNSCALE_GRADIENTS) and self._ratio.explains_unscaled(close.error):
            return True
        measured = close.metrics or close.factor
        if measured is None:
            return False
        one_element = measured.count == 1
        if not (one_element or all(map(self._is_before, (row.target, row.baseline), self._unscaled, (row, row)))):
            return False
        if isinstance(measured, Factor):
            return self._ratio.explains_statistics(measured)
        return self._ratio.explains(close.error, measured.cosine, one_element=one_element)

    def _is_applied(self, row: Row) -> bool:
        close = row.closeness
        is_known = row.place.phase == "optimizer" and close is not None and not close.nonfinite
        return is_known and close is not None and self._ratio.explains_unscaled(close.error)

    @staticmethod
    def _is_before(place: Place | None, unscaled: int | None, row: Row) -> bool:
        if place is None:
            return True
        if unscaled is None:
            return place.phase != "optimizer"
        return place.id < unscaled or (place.id == unscaled and row.slot.startswith("input"))


def _first_unscaling(rank: RankDump) -> int | None:
    """Return the id of the call that unscales gradients first, None without one."""
    calls = rank.calls.filter(op=UNSCALE_GRADIENTS, kind="aten")
    return next((call.id for call in calls if call.op.startswith(UNSCALE_GRADIENTS)), None)


@dataclass(frozen=True, slots=True)
class End:
    """Something that a step is for, on both sides."""

    kind: FindingKind
    name: str
    target: Value
    baseline: Value


class Ends:
    """Compares the ends of two recordings after they were walked; `unknown` names those that could not be compared."""

    def __init__(self, walk: Walk, modules: MappingOf[str, str], *, read_data: bool) -> None:
        """Prepare to compare; `modules` are the target's that go by other names in the baseline."""
        self._modules = modules
        self._walk = walk
        self._read_data = read_data
        self._memory = tuple(LeftMemory(flow, read_data=read_data) for flow in walk.flows)
        self.unknown: list[str] = []
        self.agree = False  # all ends that are known do

    def run(self) -> None:
        before = len(self._walk.evidence.findings)
        says_memory = not any(rank.config.get("source") for rank in self._walk.ranks)  # other tools do not
        found = [*self._losses(), *self._gradients(), *(self._left() if says_memory else ())]
        for end in found:
            self._judge(end)
        if says_memory:
            self._left_alone()
        is_new = len(self._walk.evidence.findings) > before
        self.agree = not is_new and all(map(self._agrees, found))

    def _agrees(self, end: End) -> bool:
        state, close = self._walk.state(end.target, end.baseline), self._walk.known.close(end.target, end.baseline)
        if state is not None and state.status in ("same", "unknown"):
            return True
        return self._walk.is_near(end.target, end.baseline, close)

    def _losses(self) -> Iterator[End]:
        ours, theirs = map(roots_of, self._walk.ranks)
        if len(ours) == len(theirs):  # else one side takes it in parts, which gradients show
            for number, both in enumerate(zip(ours, theirs, strict=True)):
                yield End("loss", f"loss {number}" if len(ours) > 1 else "loss", *both)

    def _gradients(self) -> Iterator[End]:
        ours, theirs = map(_gradients_of, self._walk.ranks)
        ours = {self._renamed(name): value for name, value in ours.items()}
        for name, value in ours.items() if theirs else ():
            if name in theirs:
                yield End("gradient", f"gradient of {name}", value, theirs[name])
        if ours and theirs and ours.keys() & theirs.keys():
            for side, gradients, others in ((0, ours, theirs), (1, theirs, ours)):
                for name in (one for one in gradients if one not in others):
                    self._lacks(side, name, gradients[name])

    def _renamed(self, name: str) -> str:
        """Return a parameter's name as the baseline has it."""
        module, _, own = name.rpartition(".")
        return f"{self._modules[module]}.{own}" if module in self._modules else name

    def _lacks(self, side: int, name: str, value: Value) -> None:
        evidence = self._walk.evidence
        place = evidence.place(_last_call(self._walk.ranks[side], value))
        row = Row(None if side else place, place if side else None, "", f"gradient of {name}", "different")
        evidence.rows.append(row)
        where = "baseline" if side else "target"
        evidence.blame("gradient", row, f"{name} has a gradient in the {where} only", "", self._at_end)

    @property
    def _at_end(self) -> tuple[int, int]:
        return self._walk.ranks[0].calls[-1].id + 1, 0

    def _left(self) -> Iterator[End]:
        """Yield what memory that both sides were given holds at the end, where both wrote it."""
        theirs = self._places[1]
        for found in self._places[0].values():
            other = self._partner(0, found.before)
            if other is not None and other.record.place in theirs and self._memory[0].outlives(found):
                yield End("left", "left behind", found.last, theirs[other.record.place].last)

    @cached_property
    def _places(self) -> tuple[dict[tuple[object, ...], LeftPlace], dict[tuple[object, ...], LeftPlace]]:
        one, other = ({place.before.record.place: place for place in memory.places} for memory in self._memory)
        return one, other

    def _partner(self, side: Side, value: Value) -> Value | None:
        """Return the counterpart of what stood somewhere before the step."""
        found = self._walk.from_outside[side]
        seen = (value, *self._walk.flows[side].of_moment(value))
        return next((found[one.record.place] for one in seen if one.record.place in found), None)

    def _left_alone(self) -> None:
        """Report memory from outside that one side alone changes; all that a call writes goes together."""
        found: dict[tuple[Side, int], list[LeftPlace]] = {}
        for side in (0, 1):
            for place in self._memory[side].places:
                other = self._partner(side, place.before)
                if other is None or self._is_written(1 - side, other) or not self._memory[side].is_state(place):
                    continue
                both = (place.last, other) if side == 0 else (other, place.last)
                if not closeness(*both, data=self._read_data).bitwise:
                    found.setdefault((side, place.writer.id), []).append(place)
        for (side, _), places in found.items():
            self._changes_alone(side, places)

    def _is_written(self, side: int, value: Value) -> bool:
        """Return True if a side writes the memory that a value lies in, or makes a tensor like it anew at its end."""
        written = {place.last.storage for place in self._memory[side].places}
        return value.storage in written or value.storage in self._memory[side].flat

    def _changes_alone(self, side: Side, places: list[LeftPlace]) -> None:
        evidence, memory = self._walk.evidence, self._memory[side]
        call = places[0].writer
        place = evidence.place(call)
        more = f" and {len(places) - 1} more" if len(places) > 1 else ""
        names = ("target", "baseline")
        text = (
            f"only the {names[side]} changes {call.module or call.name}{more}, there before the step; "
            f"the {names[1 - side]} has no such write"
        )
        row = Row(None if side else place, place if side else None, "", "left behind", "different", note=text)
        evidence.rows.append(row)
        if any(map(memory.belongs_to_model, places)):
            evidence.blame("left", row, text, "", self._at_end)

    def _judge(self, end: End) -> None:
        walk = self._walk
        target, baseline = end.target, end.baseline
        close, state = walk.known.close(target, baseline), walk.state(target, baseline)
        pair = Pair(_last_call(walk.ranks[0], target), _last_call(walk.ranks[1], baseline), "order")
        if state is None:
            said, text, behind = walk.compare(target, baseline)
            row = walk.evidence.judged(pair, end.name, close, said)
            if said.status == "unknown":
                self.unknown.append(end.name)
            if said.guilty:
                walk.blame_behind(end.kind, row, f"the {end.name} is not the same: {text}", behind)
        elif state.status == "unknown":
            self.unknown.append(end.name)
            walk.evidence.judged(pair, end.name, close, Judgement("unknown", note=close.reason))
        elif state.status in ("same", "within") and close.nonfinite:
            row = walk.evidence.judged(pair, end.name, close, Judgement("different", True, floor_from="exact"))
            text = f"the {end.name} is not the same: NaN or Inf stand at other places"
            walk.evidence.blame(end.kind, row, text, "", (row.place.id, 1))


def _gradients_of(rank: RankDump) -> dict[str, Value]:
    """Return each parameter's gradient when backward ended, by the parameter's path without wrappers."""
    holders = Holders(rank)
    return {normal_module(name): holders.of(value) for name, value in rank.gradients.items()}


def _last_call(rank: RankDump, value: Value) -> Call:
    # `value.producer` looks for the slot as well, among the thousands of an optimizer's call.
    position = rank.links.producers.get(value.id)
    return rank.calls[-1] if position is None else rank.call_at(position)
