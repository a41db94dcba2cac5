"""Compare two dumps: pair their calls, judge every result, name the first cause.

Theory of operation
    Each (step, rank) pair is one task that carries paths and settings, so that any ``concurrent.futures.Executor`` can
    run it; what comes back is `RankEvidence`, plain values. `Comparison` puts the ranks together and answers.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Mapping as MappingOf
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from ..dump import Call, Dump, RankDump, open_dump
from ..errors import ConfigError, MissingDataError
from ..store.records import CALL_KINDS
from .align import HOW_TEXTS, Match, align
from .answer import cause_sentences, counts, travel
from .closeness import Level, closeness
from .evidence import Finding, Place, RankEvidence, Row
from .floors import Limits, Replays
from .keys import call_keys, normal_module
from .mapping import Mapping, found_modules
from .rules import Predicate, Rule, make_rules
from .walk import Pair, Walk, place_of

Verdict = Literal["same", "within", "different", "incomparable"]
Progress = Callable[[int, int], None]
Path = str | os.PathLike[str]

VERDICT_TEXTS: Final[dict[Verdict, str]] = {
    "same": "The dumps are the same: every compared tensor is bitwise equal.",
    "within": "The dumps agree: no result is further off than the noise floor allows.",
    "different": "The dumps differ.",
    "incomparable": "The dumps could not be compared.",
}
EXIT_CODES: Final[dict[Verdict, int]] = {"same": 0, "within": 0, "different": 1, "incomparable": 2}
_LEVELS: Final[tuple[Level, ...]] = ("tensor", "statistic", "hash")
_KINDS: Final = ("aten", "api", "module")  # which is walked: the first that both sides have


@dataclass(frozen=True, slots=True)
class Settings:
    """How to compare."""

    mapping: Mapping = field(default_factory=Mapping)
    rules: tuple[Rule, ...] = ()
    replay: bool = True
    data: bool = True


@dataclass(frozen=True, slots=True)
class Task:
    """One step and rank to compare; it carries paths, not tensors."""

    target: str
    baseline: str
    control: str | None
    steps: tuple[int, int]
    ranks: tuple[int, int]
    settings: Settings


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came of comparing two dumps."""

    target: str
    baseline: str
    ranks: tuple[RankEvidence, ...]
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        statuses: Counter[str] = Counter()
        for row in self.rows:
            if row.closeness is None or row.closeness.level != "none" or row.status == "different":
                statuses[row.status] += 1
        if statuses["different"] or any(evidence.findings for evidence in self.ranks):
            return "different"
        if not (statuses["same"] or statuses["within"]):
            return "incomparable"
        if any(row.status == "unmatched" and row.note == NOT_COMPARED for e in self.ranks for row in e.rows):
            return "incomparable"
        return "within" if statuses["within"] or statuses["unmatched"] else "same"

    @property
    def exit_code(self) -> int:
        """0 same or within noise, 1 different, 2 could not be compared."""
        return EXIT_CODES[self.verdict]

    @property
    def first(self) -> tuple[RankEvidence, Finding] | None:
        """The first cause over all ranks, and the step and rank it is in."""
        found = [(evidence, evidence.findings[0]) for evidence in self.ranks if evidence.findings]
        return min(found, key=lambda pair: (pair[0].steps[0], pair[1].order, pair[0].ranks[0]), default=None)

    @property
    def cause(self) -> Finding | None:
        """The first cause: the first op, in execution order, whose inputs agree and whose result does not."""
        return None if self.first is None else self.first[1]

    @property
    def rows(self) -> Iterator[Row]:
        """All rows, by step and rank, in execution order."""
        return (row for evidence in self.ranks for row in evidence.rows)

    @property
    def mapping(self) -> Mapping:
        """What was found, as a mapping: renamed modules, and the pairs of calls whose names differ."""
        modules: dict[str, str] = {}
        calls: dict[str, str] = {}
        for evidence in self.ranks:
            modules |= evidence.modules
            calls |= {one: other for one, other in evidence.paired.items() if one != other}
        return Mapping(modules=modules, calls=calls)

    def answer(self) -> str:
        """Return the verdict, the first cause and how the error travels, as a paragraph and lines."""
        lines = [" ".join(self._paragraph())]
        if self.first is not None:
            evidence, finding = self.first
            steps = travel(evidence.rows, finding)
            lines += ["How the error travels:", *(f"  {step}" for step in steps)] if steps else []
            causes = [(e, e.findings[0]) for e in self.ranks if e.findings]
            if len(self.ranks) > 1:
                lines += [f"  {_where(e)}: first cause {cause.row.place.call} {cause.row.slot}" for e, cause in causes]
                clean = [_where(e) for e in self.ranks if not e.findings]
                lines += [f"  no cause in {', '.join(clean)}"] if clean else []
        lines += [f"{_where(evidence)}: {counts(evidence)}" for evidence in self.ranks]
        lines += [f"Note: {note}" for note in (*self.notes, *(n for e in self.ranks for n in e.notes))]
        return "\n".join(lines)

    def _paragraph(self) -> Iterator[str]:
        yield VERDICT_TEXTS[self.verdict]
        if self.first is not None:
            evidence, finding = self.first
            if len(self.ranks) > 1:
                yield f"In {_where(evidence)}, the first of {len(self.ranks)}:"
            yield from cause_sentences(finding, evidence)
        elif self.verdict == "different":
            first = next(row for row in self.rows if row.status == "different")
            yield f"No op is to blame by itself; the first difference is {first.place.call} {first.slot}."

    def __repr__(self) -> str:
        return f"<Comparison {self.verdict}: {self.target} against {self.baseline}, {len(self.ranks)} step-ranks>"


NOT_COMPARED: Final = "what it made was read, and could not be compared"


def _where(evidence: RankEvidence) -> str:
    steps, ranks = evidence.steps, evidence.ranks
    step = str(steps[0]) if steps[0] == steps[1] else f"{steps[0]} against {steps[1]}"
    rank = str(ranks[0]) if ranks[0] == ranks[1] else f"{ranks[0]} against {ranks[1]}"
    return f"step {step} rank {rank}"


def compare(
    target: Path | Dump,
    baseline: Path | Dump,
    *,
    step: str | int | None = None,
    rank: str | int | None = None,
    control: Path | Dump | None = None,
    mapping: Mapping | Path | MappingOf[str, MappingOf[str, str]] | None = None,
    rules: Iterable[Rule | tuple[str, Predicate]] = (),
    replay: bool = True,
    data: bool = True,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare two dumps and name the first op that is wrong.

    Args:
        target: the dump in question.
        baseline: the dump that is trusted.
        step: ``"3:0"`` compares step 3 of the target with step 0 of the baseline, ``3`` the same step of both;
            None takes the steps that both have, or the only one of each.
        rank: the same for ranks.
        control: a dump of an honest repeat of the baseline; its distance is a noise floor.
        mapping: renames and pairs that the user knows, or a YAML file of them.
        rules: `Rule`s, or pairs of a regular expression and a predicate, tried in order.
        replay: measure noise floors by float64 replays.
        data: read tensors; False compares hashes and statistics only.
        executor: runs one task for each step and rank.
        progress: told how many of how many tasks are done.

    Raises:
        MissingDataError: there is no such step or rank, or none in common.
    """
    one, other = _opened(target), _opened(baseline)
    noise = None if control is None else _opened(control)
    settings = Settings(_mapping(mapping), make_rules(rules), replay, data)
    notes: list[str] = []
    tasks = []
    for steps in _pairs("step", step, one.steps, other.steps, notes):
        ranks = one.step(steps[0]).ranks, other.step(steps[1]).ranks
        for pair in _pairs("rank", rank, *ranks, notes):
            path = None if noise is None else str(noise.path)
            tasks.append(Task(str(one.path), str(other.path), path, steps, pair, settings))
    return Comparison(str(one.path), str(other.path), _run(tasks, executor, progress), tuple(dict.fromkeys(notes)))


def compare_recompute(
    dump: Path | Dump, *, replay: bool = True, executor: Executor | None = None, progress: Progress | None = None
) -> Comparison:
    """Compare every call that checkpointing ran again with its original, within one dump."""
    opened = _opened(dump)
    settings = Settings(replay=replay)
    path = str(opened.path)
    tasks = [
        Task(path, path, RECOMPUTE, (step, step), (rank, rank), settings)
        for step in opened.steps
        for rank in opened.step(step).ranks
    ]
    return Comparison(path, path, _run(tasks, executor, progress))


RECOMPUTE: Final = "<recompute>"  # in Task.control: compare recomputed calls with their originals


def _run(tasks: Sequence[Task], executor: Executor | None, progress: Progress | None) -> tuple[RankEvidence, ...]:
    results = map(compare_rank, tasks) if executor is None else executor.map(compare_rank, tasks)
    found = []
    for evidence in results:
        found.append(evidence)
        if progress is not None:
            progress(len(found), len(tasks))
    return tuple(found)


def _opened(dump: Path | Dump) -> Dump:
    return dump if isinstance(dump, Dump) else open_dump(dump)


def _mapping(given: Mapping | Path | MappingOf[str, MappingOf[str, str]] | None) -> Mapping:
    if given is None or isinstance(given, Mapping):
        return given or Mapping()
    if isinstance(given, (str, os.PathLike)):
        return Mapping.read(given)
    return Mapping.from_dict({name: dict(table) for name, table in given.items()}, "mapping")


def _pairs(
    what: str, given: str | int | None, target: list[int], baseline: list[int], notes: list[str]
) -> list[tuple[int, int]]:
    """Return the pairs of steps or ranks to compare."""
    if given is not None:
        return [_parsed(what, given)]
    common = [number for number in target if number in baseline]
    if common:
        alone = sorted(set(target) ^ set(baseline))
        if alone:
            notes.append(f"{what}s {', '.join(map(str, alone))} are in one dump only and were not compared")
        return [(number, number) for number in common]
    if len(target) == len(baseline) == 1:
        notes.append(f"{what} {target[0]} of the target was compared with {what} {baseline[0]} of the baseline")
        return [(target[0], baseline[0])]
    raise MissingDataError(
        f"the dumps have no {what} in common: {', '.join(map(str, target)) or 'none'} against "
        f"{', '.join(map(str, baseline)) or 'none'}; name a pair with --{what} TARGET:BASELINE"
    )


def _parsed(what: str, given: str | int) -> tuple[int, int]:
    one, colon, other = str(given).partition(":")
    try:
        return int(one), int(other if colon else one)
    except ValueError:
        raise ConfigError(f"{what} is {given!r}; allowed: a number, or TARGET:BASELINE such as '3:0'") from None


def compare_rank(task: Task) -> RankEvidence:
    """Compare one step and rank; runs in any process."""
    target = open_dump(task.target).rank(task.steps[0], task.ranks[0])
    if task.control == RECOMPUTE:
        return _evidence(target, target, recompute_pairs(target), task)
    baseline = open_dump(task.baseline).rank(task.steps[1], task.ranks[1])
    return _evidence(target, baseline, pair_calls(target, baseline, task.settings.mapping), task)


def pair_calls(target: RankDump, baseline: RankDump, mapping: Mapping) -> list[Pair]:
    """Align the calls of two step-ranks; only kinds that both sides recorded take part."""
    kinds = target.calls_by_kind().keys() & baseline.calls_by_kind().keys()
    positions = [_positions(rank, kinds) for rank in (target, baseline)]
    keys = call_keys(target, positions[0], mapping), call_keys(baseline, positions[1])
    matches = align(*keys, pinned=_pinned(target, baseline, positions, mapping))
    return [_pair(target, baseline, positions, match) for match in matches]


def _positions(rank: RankDump, kinds: Iterable[str]) -> list[int]:
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
    primary, others = divide(pairs)
    walk = Walk(
        target, baseline, settings.rules, Replays(enabled=settings.replay), control, settings.data,
        exact_sources=_exact_sources(target, baseline),
    )  # fmt: skip
    walk.run(primary, others)
    gone = {pair.target.id for pair in walk.dissolved}
    pairs = [pair for pair in pairs if pair.target.id not in gone]
    rows = [*walk.rows, *([] if is_recompute else unmatched_rows(walk, target, baseline, pairs))]
    rows.sort(key=lambda row: (row.place.id, row.target is None))
    findings = sorted(walk.findings, key=lambda finding: finding.order)
    if findings:
        findings[0] = _with_partners(findings[0], target)
    levels = Counter(row.closeness.level for row in rows if row.closeness is not None)
    best: Level = next((level for level in _LEVELS if levels[level]), "none")
    modules = [(normal_module(p.target.module), normal_module(p.baseline.module)) for p in pairs]
    return RankEvidence(
        task.target, task.baseline, task.steps, task.ranks, best,
        {str(level): count for level, count in levels.items()},
        (len(target.calls), len(baseline.calls)),
        {HOW_TEXTS[how]: count for how, count in Counter(pair.how for pair in pairs).items()},
        tuple(rows), tuple(findings), found_modules(modules),
        {p.target.name: p.baseline.name for p in pairs}, tuple(_incomplete(target, baseline)),
    )  # fmt: skip


def _incomplete(target: RankDump, baseline: RankDump) -> Iterator[str]:
    for rank, side in ((target, "target"), (baseline, "baseline")):
        if not rank.complete:
            yield f"the {side} {rank.where} was interrupted; calls after its end have no counterpart"


def _exact_sources(target: RankDump, baseline: RankDump) -> bool:
    """Tell whether what comes from outside must be equal: at the first step, and if all calls were recorded."""
    for rank in (target, baseline):
        config = rank.config
        if rank.step or config.get("level", "mix") not in ("mix", "aten"):
            return False
        if any(config.get(name) for name in ("ops", "exclude_ops", "modules")):
            return False
    return True


def divide(pairs: Sequence[Pair]) -> tuple[list[Pair], list[Pair]]:
    """Return the pairs that are walked, aten ops or else the innermost of the best kind, and all others."""
    kinds = {pair.target.kind for pair in pairs}
    kind = next((kind for kind in _KINDS if kind in kinds), "")
    outer = set() if kind == "aten" else {p.target.parent_id for p in pairs if p.target.kind == kind}
    primary = [p for p in pairs if p.target.kind == kind and p.target.id not in outer]
    chosen = {p.target.id for p in primary}
    return primary, [p for p in pairs if p.target.id not in chosen]


def unmatched_rows(walk: Walk, target: RankDump, baseline: RankDump, pairs: Sequence[Pair]) -> Iterator[Row]:
    """Yield a row for each call without a counterpart, with what is known of the region it is in."""
    sides = ("target", target, {p.target.id for p in pairs}), ("baseline", baseline, {p.baseline.id for p in pairs})
    for side, rank, taken in sides:
        for call in rank.calls:
            if call.id in taken:
                continue
            known = walk.region_status.get((side, call.id))
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


def _with_partners(finding: Finding, rank: RankDump) -> Finding:
    """Name the backward partner of the cause."""
    place = finding.row.target
    call = None if place is None else rank.find(place.id)
    if place is None or call is None or not call.backward:
        return finding
    named: Place = replace(place, backward=", ".join(partner.name for partner in call.backward[:3]))
    return replace(finding, row=replace(finding.row, target=named))


def _control(baseline: RankDump, task: Task) -> Callable[[Call, str], Limits | None]:
    """Return the distance of the control dump from the baseline, by call of the baseline and slot."""
    assert task.control is not None
    control = open_dump(task.control).rank(task.steps[1], task.ranks[1])
    partners = {pair.target.id: pair.baseline for pair in pair_calls(baseline, control, Mapping())}

    def limits(call: Call, slot: str) -> Limits | None:
        partner = partners.get(call.id)
        if partner is None:
            return None
        ours = dict([*call.output_values(), *call.written_values()])
        theirs = dict([*partner.output_values(), *partner.written_values()])
        if slot not in ours or slot not in theirs:
            return None
        found = closeness(theirs[slot], ours[slot], data=task.settings.data)
        if found.error is None:
            return None
        element = found.metrics.max_scaled if found.metrics is not None else found.error
        return Limits(found.error, element)

    return limits
