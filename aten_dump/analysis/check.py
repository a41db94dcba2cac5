"""What is almost surely wrong in a recorded step, without a baseline."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, NamedTuple

from ..dump import Call, Dump, RankDump, Step, open_dump
from ..dump.wholeness import not_whole_lines
from ..errors import ConfigError
from .checks.rank_facts import RankFacts, facts_of
from .checks.rule import RankRule, Rule
from .checks.rules import RULES
from .checks.step_facts import StepFacts
from .host_default import made_on_the_host

ALL: Final = "all"
Given = str | os.PathLike[str] | Dump | Step | RankDump


@dataclass(frozen=True, slots=True)
class Finding:
    """Where a rule is broken."""

    rule: str
    text: str  # what is wrong, and what to do
    call: str  # name of the call
    where: str  # the program's line: "file:line in function"
    step: int  # the first step that it was found in
    rank: int  # the first rank
    count: int = 1  # how often: in calls at this line, steps and ranks

    def __str__(self) -> str:
        more = f" ({self.count} times)" if self.count > 1 else ""
        return f"{self.where or self.call}: {self.rule}: {self.text}{more}"


@dataclass(frozen=True, slots=True)
class NotRun:
    """A rule that could not judge some of what was asked for."""

    rule: str
    why: str


@dataclass(frozen=True, slots=True)
class Checked:
    """What `check` found."""

    findings: tuple[Finding, ...]
    not_run: tuple[NotRun, ...]
    rules: tuple[str, ...]  # that were asked for
    steps: int  # step/rank folders that were checked
    not_whole: tuple[str, ...]  # what is damaged, cut or missing, in sentences: nothing found there says nothing

    @property
    def is_judged(self) -> bool:
        """True if a rule could run."""
        return bool(self.steps) and not {one.rule for one in self.not_run} >= set(self.rules)

    @property
    def exit_code(self) -> int:
        """1 if something was found; 2 if not, and the dump is not whole or no rule could run; 0 if all is fine."""
        return 1 if self.findings else 2 if self.not_whole or not self.is_judged else 0

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values; ``docs/json/check.schema.json`` describes them."""
        return {"schema": 1, **asdict(self)}


@made_on_the_host
def check(
    dump: Given,
    *,
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    steps: Container[int] | None = None,
    ranks: Container[int] | None = None,
) -> Checked:
    """Find mistakes in recorded steps, without a baseline.

    Args:
        dump: a path, or an open dump.
        select: names of rules to run; ``"all"`` runs all of them. By default those that are certain.
        ignore: names of rules to leave out.
        steps: steps to check; None: all.
        ranks: ranks to check; None: all.

    Returns:
        The findings, in order of steps and calls, and the rules that could not run, with the reason.

    Raises:
        ConfigError: there is no rule of a name.
        MissingDataError, FormatError, StoreError: the dump cannot be read.

    Example:
        >>> for finding in check("dump").findings:
        ...     print(finding)
    """
    rules = chosen_rules(select, ignore)
    dump = open_dump(dump) if isinstance(dump, (str, os.PathLike)) else dump
    judged = _Judged(rules)
    for recorded in _by_rank(dump, steps, ranks):
        judged.rank(recorded)
    lacking = judged.finish()
    if isinstance(dump, Dump) and steps is ranks is None:
        lacking += not_whole_lines(dump.path, (), dump.problems)
    names = tuple(rule.name for rule in rules)
    return Checked(judged.findings, tuple(judged.not_run), names, judged.count, tuple(lacking))


def chosen_rules(select: Iterable[str], ignore: Iterable[str]) -> list[Rule | RankRule]:
    """Return the rules of some names.

    Raises:
        ConfigError: there is no rule of a name.
    """
    wanted, unwanted = list(select), set(ignore)
    for name in (*wanted, *unwanted):
        if name not in RULES and name != ALL:
            raise ConfigError(f"there is no rule {name!r}; there are {', '.join(RULES)}, and {ALL!r}")
    chosen = [r for r in RULES.values() if (r.name in wanted or ALL in wanted if wanted else r.is_default)]
    return [rule for rule in chosen if rule.name not in unwanted and ALL not in unwanted]


class _Lacks(NamedTuple):
    """What a step of a rank lacks."""

    step: int
    rank: int
    lacks: str


class _Judged:
    """What rules found so far.

    Ranks are judged one after the other, all steps of each, so that two steps of one rank are in memory. What is held
    against other ranks are a few digests of each.
    """

    def __init__(self, rules: list[Rule | RankRule]) -> None:
        self._rules = rules
        self._found: dict[tuple[str, str], tuple[tuple[int, ...], Finding]] = {}  # by rule and place; with order
        self._facts: dict[tuple[int, RankRule], list[RankFacts]] = defaultdict(list)  # by step
        self._recordings: dict[int, dict[int, RankDump]] = defaultdict(
            dict
        )  # by step and rank; nothing is read of them
        self._lacks: dict[int, list[_Lacks]] = defaultdict(list)
        self.not_run: dict[NotRun, None] = {}
        self.count = 0

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings in order of steps, ranks, rules and calls."""
        return tuple(finding for _, finding in sorted(self._found.values(), key=lambda one: one[0]))

    def rank(self, recorded: Recorded) -> None:
        """Judge the steps of a rank."""
        before: StepFacts | None = None
        for rank, has_peers in recorded:
            facts = StepFacts(rank.anew(), before, has_peers=has_peers)
            self._judge(facts)
            self._recordings[rank.step][rank.rank] = rank
            self._lacks[rank.step].append(_Lacks(rank.step, rank.rank, facts.rank.lacks))
            self.count += 1
            if before is not None:
                _let_go(before.before)
                before.before = None  # two steps are in memory, and not all of them
            before = facts
        for one in (before and before.before, before):
            _let_go(one)

    def _judge(self, step: StepFacts) -> None:
        of_rank: RankFacts | None = None
        for number, rule in enumerate(self._rules):
            lacks = rule.lacks(step)
            if lacks:
                self.not_run[NotRun(rule.name, lacks)] = None
            elif isinstance(rule, Rule):
                for call, text in rule.search(step):
                    self._add(rule.name, number, step.rank, call, text)
            elif step.has_peers:
                of_rank = of_rank or facts_of(step)
                self._facts[step.rank.step, rule].append(of_rank)

    def finish(self) -> list[str]:
        """Judge what ranks have in common; return what is not whole."""
        for number, rule in enumerate(self._rules):
            if isinstance(rule, Rule):
                continue
            for step, recordings in self._recordings.items():
                for place, id, text in rule.search(self._facts[step, rule]):
                    rank = recordings[place].anew()
                    call = rank.find(id)
                    if call is not None:
                        self._add(rule.name, number, rank, call, text)
        lines = []
        for step, lacking in sorted(self._lacks.items()):
            path = next(iter(self._recordings[step].values())).directory.parent.parent
            lines += not_whole_lines(path, lacking)
        return lines

    def _add(self, rule: str, number: int, rank: RankDump, call: Call, text: str) -> None:
        where = call.where
        key = rule, where or call.name
        order: tuple[int, ...] = (rank.step, rank.rank, number, call.id)
        new = order, Finding(rule, text, call.name, where, rank.step, rank.rank)
        known = self._found.get(key)
        if known is not None:
            (order, best), count = min(new, known, key=lambda one: one[0]), known[1].count + 1
            new = order, replace(best, count=count)
        self._found[key] = new


def _let_go(facts: StepFacts | None) -> None:
    if facts is not None:
        facts.rank.let_go()


Recorded = Iterable[tuple[RankDump, bool]]  # the steps of a rank, each with whether other ranks recorded it


def _by_rank(
    dump: Dump | Step | RankDump, steps: Container[int] | None, ranks: Container[int] | None
) -> Iterator[Recorded]:
    if isinstance(dump, RankDump):
        yield [(dump, False)]
        return
    found: dict[int, list[tuple[RankDump, bool]]] = defaultdict(list)
    for step in [dump] if isinstance(dump, Step) else map(dump.step, dump.steps):
        if steps is None or step.step in steps:
            chosen = [rank for rank in step.ranks if ranks is None or rank in ranks]
            for rank in chosen:
                found[rank].append((step.rank(rank), len(chosen) > 1))
    yield from (found[rank] for rank in sorted(found))
