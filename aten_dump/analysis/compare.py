"""Compare two dumps: pair their calls, judge every result, name the first cause.

Theory of operation
    Each (step, rank) pair is one task that carries paths and settings, so that any ``concurrent.futures.Executor`` can
    run it; what comes back is `RankEvidence`, plain values. `Comparison` puts the ranks together and answers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Mapping as MappingOf
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Final, Literal

from ..dump import Dump
from ..errors import ConfigError, MissingDataError
from ..store.run_json import ranges_of
from .evidence.answer import cause_sentences, compared, let_through, travel
from .evidence.findings import Finding, RankEvidence, Row
from .evidence.row_summary import MOST_WHOLE, PackedRows, RowSummary, summary_of
from .evidence.run_settings import set_otherwise
from .evidence.step_ranks import told_together, where, where_all
from .evidence.user_rules import Predicate, Rule, make_rules
from .given_dumps import Given, Path, chosen, opened
from .host_default import made_on_the_host
from .judging.rank_task import RECOMPUTE, Settings, Task
from .layouts.compare_together import compare_task
from .layouts.same_layout import layouts_differ
from .meetings.first_cause import brought_by, first_cause, unfounded
from .notebook_view import comparison_html
from .pairing.user_mapping import Mapping
from .rerun.allowed_ops import allowed_patterns

Verdict = Literal["same", "within", "different", "incomparable"]
Progress = Callable[[int, int], None]

VERDICT_TEXTS: Final[dict[Verdict, str]] = {
    "same": "The dumps are the same: every compared tensor is bitwise equal.",
    "within": "The dumps agree: both compute the same, and what differs is rounding.",
    "different": "The dumps differ.",
    "incomparable": "The dumps could not be compared.",
}
_MOST_ENDS: Final = 5  # losses, gradients and the like that are named
EXIT_CODES: Final[dict[Verdict, int]] = {"same": 0, "within": 0, "different": 1, "incomparable": 2}


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came of comparing two dumps."""

    target: str
    baseline: str
    ranks: tuple[RankEvidence, ...]
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        summary = self._summary()
        statuses = summary.judged
        if statuses["different"] or any(evidence.findings for evidence in self.ranks) or any(unfounded(self.ranks)):
            return "different"
        if not (statuses["same"] or statuses["within"]) or summary.not_compared:
            return "incomparable"
        if any(evidence.incomplete or evidence.unknown_ends for evidence in self.ranks):
            return "incomparable"
        return "within" if statuses["within"] or statuses["unmatched"] else "same"

    @property
    def exit_code(self) -> int:
        """0 same or within noise, 1 different, 2 could not be compared."""
        return EXIT_CODES[self.verdict]

    @property
    def first(self) -> tuple[RankEvidence, Finding] | None:
        """The first cause over all ranks, and the step and rank it is in."""
        return first_cause(self.ranks)

    @property
    def cause(self) -> Finding | None:
        """The first cause: the first op, in execution order, whose inputs agree and whose result does not."""
        return None if self.first is None else self.first[1]

    @property
    def rows(self) -> Iterator[Row]:
        """All rows, by step and rank, in execution order."""
        return (row for evidence in self.ranks for row in evidence.rows)

    def _summary(self) -> RowSummary:
        whole = RowSummary()
        for evidence in self.ranks:
            whole.add_all(summary_of(evidence.rows))
        return whole

    @property
    def mapping(self) -> Mapping:
        """What was found, as a mapping: renamed modules, and the pairs of calls whose names differ."""
        modules: dict[str, str] = {}
        calls: dict[str, str] = {}
        for evidence in self.ranks:
            modules |= evidence.modules
            calls |= {one: other for one, other in evidence.paired.items() if one != other}
        return Mapping(modules=modules, calls=calls)

    @property
    def headline(self) -> str:
        """The verdict as a sentence, and what the user's rules kept out of it."""
        passed = let_through(self._summary())
        if passed and self.verdict == "within":
            return f"The dumps agree but for what was let through: by {passed}."
        text = VERDICT_TEXTS[self.verdict]
        return f"{text} Let through: by {passed}." if passed else text

    def answer(self) -> str:
        """Return the verdict, the first cause and how the error travels, in lines."""
        lines = [" ".join(self._verdict())]
        if self.first is not None:
            evidence, finding = self.first
            first, *others = cause_sentences(finding, evidence)
            lines = [f"{lines[0]} {first}", *(f"  {sentence}" for sentence in others)]
            steps = travel(evidence.rows, finding)
            lines += ["How the error travels:", *(f"  {step}" for step in steps)] if steps else []
            lines += self._causes_of_ranks() if len(self.ranks) > 1 else []
        lines += [f"{at}: {text}" for at, text in told_together((e, compared(e)) for e in self.ranks)]
        return "\n".join([*lines, *(f"Note: {note}" for note in self.all_notes)])

    @property
    def all_notes(self) -> list[str]:
        """The notes on the dumps and on steps and ranks, where each of those holds."""
        told = told_together((evidence, note) for evidence in self.ranks for note in evidence.notes)
        return [*self.notes, *(note if len(self.ranks) == 1 else f"{at}: {note}" for at, note in told)]

    def _verdict(self) -> Iterator[str]:
        yield self.headline
        if self.first is not None:
            if len(self.ranks) > 1:
                yield f"In {where(self.first[0])}, the first of {len(self.ranks)}:"
        elif self.verdict == "incomparable":
            unknown = told_together((e, _listed(e.unknown_ends)) for e in self.ranks if e.unknown_ends)
            yield from (f"{at}: nobody knows {ends}." for at, ends in unknown)
        elif self.verdict == "different":
            first = self._summary().first_different
            if first is not None:
                why = f": {first.note}" if first.note else ""
                yield f"No op is to blame by itself; the first difference is {first.place.call} {first.slot}{why}."
            leaning = told_together((evidence, str(one)) for evidence, one in unfounded(self.ranks))
            yield from (f"{at}: {text}, and was not compared." for at, text in leaning)

    def _causes_of_ranks(self) -> Iterator[str]:
        assert self.first is not None
        origin, place = self.first[0], self.first[1].row.place
        brought = brought_by(self.first, self.ranks)
        clean, told = [], []
        for evidence in self.ranks:
            call = brought.get(evidence.ranks[0]) if evidence.steps == origin.steps else None
            meeting = None if call is None else _apart_at(evidence, call)
            if evidence.findings:
                cause = evidence.findings[0].row
                told.append((evidence, f"first cause {cause.place.call} {cause.slot}"))
            elif meeting is not None:
                by = f"{place.call} of rank {origin.ranks[0]}"
                told.append((evidence, f"no cause of its own; what differs from {meeting} on was brought by {by}"))
            else:
                clean.append(evidence)
        yield from (f"  {at}: {text}" for at, text in told_together(told))
        if clean:
            yield f"  no cause in {where_all(clean)}"

    def __repr__(self) -> str:
        return f"<Comparison {self.verdict}: {self.target} against {self.baseline}, {len(self.ranks)} step-ranks>"

    def _repr_html_(self) -> str:
        ranks = [(where(evidence), evidence) for evidence in self.ranks]
        return comparison_html(f"{self.target} against {self.baseline}", self.answer(), ranks)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MOST_ENDS])
    return shown if len(names) <= _MOST_ENDS else f"{shown} and {len(names) - _MOST_ENDS} more"


def _apart_at(evidence: RankEvidence, call: int) -> str | None:
    """Return the name of a call of the target if the sides have other numbers there."""
    rows = (row for row in evidence.rows if row.target is not None and row.target.id == call)
    return next((row.place.call for row in rows if row.closeness is not None and not row.closeness.bitwise), None)


@made_on_the_host
def compare(
    target: Given,
    baseline: Given,
    *,
    step: str | int | None = None,
    rank: str | int | None = None,
    control: Path | Dump | None = None,
    mapping: Mapping | Path | MappingOf[str, MappingOf[str, str]] | None = None,
    rules: Iterable[Rule | tuple[str, Predicate]] = (),
    replay: bool = True,
    data: bool = True,
    together: bool | None = None,
    batch_shard: int | None = None,
    allow_ops: Sequence[str] = (),
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare two dumps and name the first op that is wrong.

    Args:
        target: the dump in question: a path, a `Dump`, a `Step` or a `RankDump`.
        baseline: the dump that is trusted, given likewise.
        step: ``"3:0"`` compares step 3 of the target with step 0 of the baseline, ``3`` the same step of both;
            None takes the steps that both have, or the only one of each.
        rank: the same for ranks.
        control: a dump of an honest repeat of the baseline; its distance is a noise floor.
        mapping: renames and pairs that the user knows, or a YAML file of them.
        rules: `Rule`s, or pairs of a regular expression and a predicate, tried in order.
        replay: measure noise floors by float64 replays.
        data: read tensors; False compares hashes and statistics only.
        together: put the ranks of each dump together before comparing; None does where their layouts differ.
        batch_shard: each rank of one dump took a consecutive slice of the other's batch along this dimension.
        allow_ops: ops of libraries to run again beside those of torch, as patterns: ``["mylib::*"]``.
        executor: runs one task for each step and rank.
        progress: told how many of how many tasks are done.

    Raises:
        MissingDataError: there is no such step or rank, or none in common.
    """
    (one, *named), (other, *others) = opened(target), opened(baseline)
    step, rank = chosen("step", step, (named[0], others[0])), chosen("rank", rank, (named[1], others[1]))
    settings = Settings(_mapping(mapping), make_rules(rules), replay, data, batch_shard, allowed_patterns(allow_ops))
    if rank is not None and (together or batch_shard is not None):
        raise ConfigError("ranks are put together (together, batch_shard), or one is named (rank): give one of both")
    plan = _Plan(one, other, None if control is None else str(opened(control)[0].path), settings)
    plan.fill(step, rank, batch_shard is not None if together is None else together, together is None)
    found = _run(plan.tasks, executor, progress)
    notes = dict.fromkeys((*plan.notes, *set_otherwise(one.run, other.run)))
    return Comparison(str(one.path), str(other.path), found, tuple(notes))


class _Plan:
    """The tasks of a comparison, step by step; each knows the step before."""

    def __init__(self, target: Dump, baseline: Dump, control: str | None, settings: Settings) -> None:
        self.tasks: list[Task] = []
        self.notes: list[str] = []
        self._dumps = target, baseline
        self._paths = str(target.path), str(baseline.path)
        self._control = control
        self._settings = settings
        self._before: tuple[int, int] | None = None

    def fill(self, step: str | int | None, rank: str | int | None, together: bool, by_layout: bool) -> None:
        """Add the steps that were asked for.

        Args:
            step: as `compare` takes it.
            rank: the same.
            together: put ranks together.
            by_layout: put them together where their layouts differ.
        """
        for steps in _pairs("step", step, self._dumps[0].steps, self._dumps[1].steps, self.notes):
            sides = self._dumps[0].step(steps[0]), self._dumps[1].step(steps[1])
            if together or (by_layout and rank is None and layouts_differ(*sides)):
                self.add_together(steps, (sides[0].ranks[0], sides[1].ranks[0]))
            else:
                self.add(steps, _pairs("rank", rank, sides[0].ranks, sides[1].ranks, self.notes))

    def add(self, steps: tuple[int, int], ranks: Iterable[tuple[int, int]]) -> None:
        """Compare a step rank by rank."""
        for pair in ranks:
            self.tasks.append(Task(*self._paths, self._control, steps, pair, self._settings, self._before))
        self._before = steps

    def add_together(self, steps: tuple[int, int], leads: tuple[int, int]) -> None:
        """Compare a step with all ranks of each side put together."""
        if self._control is not None:
            self.notes.append("the control dump was not used: ranks were put together")
        self.tasks.append(Task(*self._paths, None, steps, leads, self._settings, self._before, True))
        self._before = steps


@made_on_the_host
def compare_recompute(
    dump: Path | Dump,
    *,
    replay: bool = True,
    allow_ops: Sequence[str] = (),
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare every call that checkpointing ran again with its original, within one dump."""
    opened_dump = opened(dump)[0]
    settings = Settings(replay=replay, allow_ops=allowed_patterns(allow_ops))
    path = str(opened_dump.path)
    tasks = [
        Task(path, path, RECOMPUTE, (step, step), (rank, rank), settings)
        for step in opened_dump.steps
        for rank in opened_dump.step(step).ranks
    ]
    found = _run(tasks, executor, progress)
    notes = () if any(evidence.paired for evidence in found) else ("no call in it was run again by checkpointing",)
    return Comparison(path, path, found, notes)


def _run(tasks: Sequence[Task], executor: Executor | None, progress: Progress | None) -> tuple[RankEvidence, ...]:
    results = map(compare_task, tasks) if executor is None else executor.map(compare_task, tasks)
    found = []
    for evidence in results:
        found.append(evidence if len(tasks) <= MOST_WHOLE else replace(evidence, rows=PackedRows(evidence.rows)))
        if progress is not None:
            progress(len(found), len(tasks))
    return tuple(found)


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
            notes.append(f"{what}s {ranges_of(alone)} are in one dump only and were not compared")
        return [(number, number) for number in common]
    if len(target) == len(baseline) == 1:
        notes.append(f"{what} {target[0]} of the target was compared with {what} {baseline[0]} of the baseline")
        return [(target[0], baseline[0])]
    raise MissingDataError(
        f"the dumps have no {what} in common: {ranges_of(target) or 'none'} against "
        f"{ranges_of(baseline) or 'none'}; name a pair with --{what} TARGET:BASELINE"
    )


def _parsed(what: str, given: str | int) -> tuple[int, int]:
    one, colon, other = str(given).partition(":")
    try:
        return int(one), int(other if colon else one)
    except ValueError:
        raise ConfigError(f"{what} is {given!r}; allowed: a number, or TARGET:BASELINE such as '3:0'") from None
