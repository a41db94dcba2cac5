"""Compare two dumps: pair their calls, judge every result, name the first cause.

Theory of operation
    Each (step, rank) pair is one task that carries paths and settings, so that any ``concurrent.futures.Executor`` can
    run it; what comes back is `RankEvidence`, plain values. `Comparison` puts the ranks together and answers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Sequence
from collections.abc import Mapping as MappingOf
from concurrent.futures import Executor
from dataclasses import replace
from itertools import pairwise
from uuid import uuid4

from ..dump import Dump, Step
from ..errors import ConfigError, MissingDataError
from ..store.run_json import ranges_of
from .compare_steps import is_evaluated
from .comparison import Comparison
from .evidence.findings import RankEvidence
from .evidence.row_summary import MOST_WHOLE, PackedRows
from .evidence.run_settings import ran_as_written, set_otherwise
from .evidence.user_rules import Predicate, Rule, make_rules
from .executors import why_unfinished
from .given_device import usable_device
from .given_dumps import Given, Path, chosen, opened
from .host_default import made_on_the_host
from .meetings.evaluated_collectives import forget
from .pairing.user_mapping import Mapping
from .rerun.allowed_ops import allowed_patterns
from .step_chains import compare_chains
from .tasks import RECOMPUTE, Settings, Task
from .world.same_layout import layouts_differ

Progress = Callable[[int, int], None]


@made_on_the_host
def compare(
    target: Given, baseline: Given, *, step: str | int | None = None, rank: str | int | None = None,
    control: Path | Dump | None = None, mapping: Mapping | Path | MappingOf[str, MappingOf[str, str]] | None = None,
    rules: Iterable[Rule | tuple[str, Predicate]] = (), replay: bool = True, data: bool = True,
    together: bool | None = None, batch_shard: int | None = None, allow_ops: Sequence[str] = (), device: str = "cpu",
    precision_budget: float | None = None, executor: Executor | None = None, progress: Progress | None = None,
) -> Comparison:  # fmt: skip
    """Compare two dumps and name the first op that is wrong.

    Args:
        target: the dump in question: a path, a `Dump`, a `Step` or a `RankDump`.
        baseline: the trusted dump, in the same forms.
        step: ``"3:0"`` is step 3 of the target and step 0 of the baseline, ``3`` that of both; None: all in common.
        rank: the same for ranks.
        control: a dump of a second, correct run of the baseline; its distance is the noise floor.
        mapping: renamed modules and ops, and pairs of calls; or a YAML file of them.
        rules: `Rule`s, or pairs of a regular expression and a predicate, tried in order.
        replay: measure noise floors by float64 replays.
        data: read tensors; False compares hashes and statistics only.
        together: join the ranks of each dump before comparing; None: if their layouts differ.
        batch_shard: joins the ranks; the split of the batch is found, whatever number is given.
        allow_ops: patterns of library ops to run too: ``["mylib::*"]``.
        device: evaluates products, convolutions and attention in float64: ``"cuda"``; the CPU runs the rest.
        precision_budget: relative L2 distance that an end may have from its float64 meaning; None: 0.1.
        executor: runs one task for each step and rank.
        progress: called with the number of tasks that are done, and of all tasks.

    Returns:
        A `Comparison`: the verdict, the first cause, and a row for each compared value.

    Raises:
        MissingDataError: no such step or rank exists, or none in common.
        ReplayError: this machine has no such device.

    Example:
        >>> found = compare("dump", "baseline")
        >>> found.verdict, found.exit_code
        ('different', 1)
        >>> found.cause.row.target.call, found.cause.text
        ('Aten.native_layer_norm.0.forward', 'other arguments: eps is 0.01, in the baseline 1e-05')
    """
    (one, *named), (other, *others) = opened(target), opened(baseline)
    step, rank = chosen("step", step, (named[0], others[0])), chosen("rank", rank, (named[1], others[1]))
    how = _mapping(mapping), make_rules(rules), replay, data, allowed_patterns(allow_ops), precision_budget
    settings = Settings(*how, str(usable_device(device)), comparison=uuid4().hex)
    joins = together or (batch_shard is not None and together is None)
    _check(settings, has_control=control is not None, together=joins, names_rank=rank is not None)
    plan = _Plan(one, other, None if control is None else str(opened(control)[0].path), settings)
    plan.fill(step, rank, joins, together is None and batch_shard is None)
    return plan.run(executor, progress, _lost(one, other) if step is None and rank is None else ())


def _check(settings: Settings, *, has_control: bool, together: bool, names_rank: bool) -> None:
    """Refuse options that exclude each other."""
    budget = settings.precision_budget
    if budget is not None and not budget > 0:
        raise ConfigError(f"precision_budget is {budget!r}; allowed: a number above 0, such as 0.1")
    is_evaluated = not (has_control or settings.rules or together) and settings.replay and settings.data
    if budget is not None and not is_evaluated:
        raise ConfigError(
            "precision_budget is for steps that are evaluated; with a control, rules or ranks put together, and "
            "without replay or data, values are compared by their distance: leave one of both out"
        )
    if together and names_rank:
        raise ConfigError("ranks are put together (together, batch_shard), or one is named (rank): give one of both")


class _Plan:
    """The tasks of a comparison, step by step; each knows the steps before and after."""

    def __init__(self, target: Dump, baseline: Dump, control: str | None, settings: Settings) -> None:
        self.tasks: list[Task] = []
        self.notes: list[str] = []
        self._dumps = target, baseline
        self._paths = str(target.path), str(baseline.path)
        self._control = control
        self._settings = settings

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
                pairs = _pairs("rank", rank, sides[0].ranks, sides[1].ranks, self.notes)
                self.add(steps, pairs, with_all=_are_all(pairs, sides))
        after = dict(pairwise(dict.fromkeys(task.steps for task in self.tasks)))
        before = {later: earlier for earlier, later in after.items()}
        self.tasks = [replace(t, before=before.get(t.steps), after=after.get(t.steps)) for t in self.tasks]

    def run(self, executor: Executor | None, progress: Progress | None, lost: tuple[str, ...]) -> Comparison:
        """Compare; `lost` says what is gone from the dumps."""
        one, other = self._dumps
        try:
            found, unfinished = _run(self.tasks, executor, progress, in_order=not any(map(_lacks_bytes, self._dumps)))
        finally:
            forget(self._settings.comparison)
        notes = dict.fromkeys((*self.notes, *ran_as_written(one.run, other.run), *set_otherwise(one.run, other.run)))
        return Comparison(*self._paths, found, tuple(notes), lost, unfinished)

    def add(self, steps: tuple[int, int], ranks: Iterable[tuple[int, int]], *, with_all: bool) -> None:
        """Compare a step rank by rank; `with_all` if these are all ranks of both sides."""
        for pair in ranks:
            self.tasks.append(Task(*self._paths, self._control, steps, pair, self._settings, with_all=with_all))

    def add_together(self, steps: tuple[int, int], leads: tuple[int, int]) -> None:
        """Compare a step with all ranks of each side put together."""
        if self._control is not None:
            self.notes.append("the control dump was not used: ranks were put together")
        self.tasks.append(Task(*self._paths, None, steps, leads, self._settings, together=True))


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
    found, unfinished = _run(tasks, executor, progress)
    notes = () if any(evidence.paired for evidence in found) else ("no call in it was run again by checkpointing",)
    return Comparison(path, path, found, notes, _lost(opened_dump), unfinished)


def _run(
    tasks: Sequence[Task], executor: Executor | None, progress: Progress | None, *, in_order: bool = False
) -> tuple[tuple[RankEvidence, ...], tuple[str, ...]]:
    """Run the tasks; return what they found, and a sentence about those whose worker ended.

    With `in_order` the steps of a rank that are evaluated are done one after the other, as each leaves something to the
    next.
    """
    chains: dict[Hashable, list[Task]] = {}
    for task in tasks:
        chains.setdefault(task.ranks if in_order and is_evaluated(task) else id(task), []).append(task)
    found: dict[int, RankEvidence] = {}  # by id() of the task
    lost: list[tuple[int, int]] = []
    packs = len(tasks) > MOST_WHOLE
    for task, evidence in compare_chains(chains.values(), executor):
        if evidence is None:
            lost.append((task.step, task.rank))
            continue
        found[id(task)] = replace(evidence, rows=PackedRows(evidence.rows)) if packs else evidence
        if progress is not None:
            progress(len(found), len(tasks))
    return tuple(found[id(task)] for task in tasks if id(task) in found), (why_unfinished(lost),) if lost else ()


def _lacks_bytes(dump: Dump) -> bool:
    """Return True if a dump says that no bytes of tensors were recorded: its steps can be compared in any order."""
    config = dump.run.get("config")
    return isinstance(config, dict) and config.get("data") in ("structure", "hash", "statistic")


def _lost(*dumps: Dump) -> tuple[str, ...]:
    """Return what is wrong with the folders of dumps, each sentence once."""
    return tuple(dict.fromkeys(f"{dump.path} is not whole: {text}" for dump in dumps for text in dump.problems))


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


def _are_all(pairs: Sequence[tuple[int, int]], sides: tuple[Step, Step]) -> bool:
    """Return True if pairs of ranks name all ranks of both sides."""
    return all({pair[side] for pair in pairs} == set(step.ranks) for side, step in enumerate(sides))
