"""What is almost surely wrong in a recorded step, without a baseline."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from ..dump import Dump, RankDump, Step, open_dump
from ..dump.wholeness import not_whole_lines
from ..errors import ConfigError
from .checks.rule import Rule
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
    """List what is almost surely wrong in recorded steps; no baseline is needed.

    Args:
        dump: a path, or what was opened.
        select: names of rules to run; ``"all"`` are all of them. By default those that are certain of what they find.
        ignore: names of rules to leave out.
        steps: to check; None: all.
        ranks: to check; None: all.

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
    found: dict[tuple[str, str], Finding] = {}
    not_run: dict[NotRun, None] = {}
    count = 0
    before: dict[int, StepFacts] = {}
    lacking: list[str] = []
    for group in _steps(dump, steps, ranks):
        facts = {rank.rank: StepFacts(rank, before.get(rank.rank)) for rank in group}
        for one in facts.values():
            one.peers = [other for other in facts.values() if other is not one]
            _judge(one, rules, found, not_run)
            if one.before is not None:
                one.before.before = None  # two steps are in memory, and not all of them
        before = facts
        count += len(group)
        lacking += not_whole_lines(group[0].directory.parent.parent, group)
    lacking += (
        not_whole_lines(dump.path, (), dump.problems) if isinstance(dump, Dump) and steps is ranks is None else ()
    )
    return Checked(tuple(found.values()), tuple(not_run), tuple(rule.name for rule in rules), count, tuple(lacking))


def chosen_rules(select: Iterable[str], ignore: Iterable[str]) -> list[Rule]:
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


def _judge(
    step: StepFacts, rules: list[Rule], found: dict[tuple[str, str], Finding], not_run: dict[NotRun, None]
) -> None:
    for rule in rules:
        lacks = rule.lacks(step)
        if lacks:
            not_run[NotRun(rule.name, lacks)] = None
            continue
        for call, text in rule.search(step):
            where = call.where
            known = found.get((rule.name, where or call.name))
            if known is not None:
                found[rule.name, where or call.name] = replace(known, count=known.count + 1)
            else:
                new = Finding(rule.name, text, call.name, where, step.rank.step, step.rank.rank)
                found[rule.name, where or call.name] = new


def _steps(
    dump: Dump | Step | RankDump, steps: Container[int] | None, ranks: Container[int] | None
) -> Iterable[list[RankDump]]:
    if isinstance(dump, RankDump):
        yield [dump.anew()]
        return
    for step in [dump] if isinstance(dump, Step) else map(dump.step, dump.steps):
        if steps is None or step.step in steps:
            group = [step.rank(rank).anew() for rank in step.ranks if ranks is None or rank in ranks]
            if group:
                yield group
