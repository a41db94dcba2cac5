"""Rules about ranks that train copies of one model.

Theory of operation
    Two ranks are replicas as far as an optimizer applied the same gradient to a parameter on both: that is what a
    reduction leaves, and shards of one tensor do not have. Nothing needs to be known of how the program reduces.
    Of each rank a few digests are held (`rank_facts`), and ranks are sorted by them: no two of a thousand ranks are
    held against each other, and what is wrong between groups of them is one finding.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final

from ...dump import Call, Value
from ...dump.shown.step_ranks import listed as ranges
from ...store.op_names import UNSCALE_GRADIENTS, is_collective, read_op_name
from ..rerun.shared_memory import extent
from .optimizer_rules import listed
from .rank_facts import Bits, RankFacts, batch_of
from .rule import Found, FoundOnRank, RankRule, Rule
from .step_facts import StepFacts

# Ops whose result holds a gradient if it is given one: sums, scaled and copied ones.
_UNSCALES: Final = read_op_name(UNSCALE_GRADIENTS).name.strip("_")
_LINEAR: Final = ("copy", "to_copy", "clone", "mul", "div", "add", "sub", "neg", "cat", "stack", _UNSCALES)
_MOST_GROUPS: Final = 4  # of ranks that are listed one by one

Ranks = tuple[RankFacts, ...]


def replicas_apart(ranks: Sequence[RankFacts]) -> Iterator[FoundOnRank]:
    """Ranks apply the same gradient to a parameter that is not the same on them."""
    for together, names in _reduced_together(ranks).items():
        apart: dict[tuple[Ranks, ...], list[str]] = {}
        for name in names:
            groups = _grouped(together, partial(_leaf, name))
            if len(groups) > 1:
                apart.setdefault(tuple(groups), []).append(name)
        for sides, found in apart.items():
            first = sides[0][0]
            yield FoundOnRank(
                first.rank,
                first.parameters[found[0]].reader,
                f"{listed(found)} {_are(found)} not the same on {_named(sides)}, which apply the same gradient: the "
                "replicas began apart, or have drifted",
            )


def not_reduced(ranks: Sequence[RankFacts]) -> Iterator[FoundOnRank]:
    """Ranks apply different gradients to a parameter that is the same on all, while others are reduced."""
    said: set[tuple[tuple[Ranks, ...], str]] = set()
    for together, reduced in _reduced_together(ranks).items():
        own: dict[tuple[Ranks, ...], list[str]] = {}
        for name in together[0].parameters:
            for replicas in _grouped(together, partial(_leaf, name)):
                groups = _grouped(replicas, partial(_applied, name))
                if len(groups) > 1:
                    own.setdefault(tuple(groups), []).append(name)
        for sides, names in own.items():
            first = sides[0][0]
            if (sides, names[0]) not in said and all(first.parameters[name].shape for name in names):
                said.add((sides, names[0]))
                yield FoundOnRank(
                    first.rank,
                    first.parameters[names[0]].accumulated,
                    f"the gradient of {listed(names)} is not reduced between {_named(sides)}, as that of {reduced[0]} "
                    "is: the replicas drift apart",
                )


def never_reduced(ranks: Sequence[RankFacts]) -> Iterator[FoundOnRank]:
    """Ranks apply gradients of their own to the parameters of one model, and reduce none of them."""
    alone = [rank for rank in ranks if not rank.is_sharded and not rank.meets_in_forward]
    reduced = {rank.rank for together in _reduced_together(ranks) for rank in together[1:]}
    first_ones = [rank for rank in alone if rank.rank not in reduced]  # of those that reduce between them
    names = [name for one in first_ones[:1] for name in one.parameters]
    own = [name for name in names if len(_grouped(first_ones, partial(_applied, name))) > 1]
    if own and first_ones[0].optimizer:
        yield FoundOnRank(
            first_ones[0].rank,
            first_ones[0].optimizer,
            f"{_named([(rank,) for rank in first_ones])} each apply a gradient of their own to {listed(own)}: nothing "
            "reduces the gradients between them",
        )


def same_batch(ranks: Sequence[RankFacts]) -> Iterator[FoundOnRank]:
    """Ranks that reduce their gradients compute them from the same batch."""
    said = set()
    for together in _reduced_together(ranks):
        candidates = [one for one in together if one.batch and one.reduces and not one.meets_in_forward]
        for alike in _grouped(candidates, lambda rank: rank.batch):
            numbers = tuple(rank.rank for rank in alike)
            if len(alike) > 1 and numbers not in said:
                said.add(numbers)
                yield FoundOnRank(
                    alike[0].rank,
                    alike[0].module,
                    f"{_named([(rank,) for rank in alike])} compute on the same batch: give each its own part, as "
                    "DistributedSampler does",
                )


def same_random(ranks: Sequence[RankFacts]) -> Iterator[FoundOnRank]:
    """Ranks draw the same random numbers for different batches."""
    said: set[int] = set()
    for place in range(max((len(rank.drawn) for rank in ranks), default=0)):
        drawing = [rank for rank in ranks if len(rank.drawn) > place and rank.batch and rank.rank not in said]
        for alike in _grouped(drawing, partial(_draw, place)):
            apart = _of_own_batches(alike)
            if len(apart) > 1:
                said |= {rank.rank for rank in apart}
                text = f"{_named([(rank,) for rank in apart])} draw the same random numbers"
                yield FoundOnRank(apart[0].rank, apart[0].drawn[place][2], text)


def _of_own_batches(ranks: Ranks) -> list[RankFacts]:
    """Return those of some ranks that are given no tensor that one before is given in the same place."""
    seen: set[Hashable] = set()
    found = []
    for rank in ranks:
        given = set(enumerate(rank.batch))
        if not given & seen:
            found.append(rank)
            seen |= given
    return found


def _reduced_together(ranks: Sequence[RankFacts]) -> dict[Ranks, list[str]]:
    """Return which ranks apply the same gradients, each with the names of the parameters."""
    found: dict[Ranks, list[str]] = {}
    for name in dict.fromkeys(name for rank in ranks for name in rank.parameters):
        for together in _grouped(ranks, partial(_telling, name)):
            if len(together) > 1:
                found.setdefault(together, []).append(name)
    return found


def _grouped(ranks: Iterable[RankFacts], key: Callable[[RankFacts], Hashable | None]) -> list[Ranks]:
    """Return the ranks that have the same key, in order; those without one are left out."""
    found: dict[Hashable, list[RankFacts]] = {}
    for rank in ranks:
        of_rank = key(rank)
        if of_rank is not None:
            found.setdefault(of_rank, []).append(rank)
    return list(map(tuple, found.values()))


def _leaf(name: str, rank: RankFacts) -> Bits | None:
    return rank.parameters[name].leaf if name in rank.parameters else None


def _applied(name: str, rank: RankFacts) -> Bits | None:
    return rank.parameters[name].applied if name in rank.parameters else None


def _telling(name: str, rank: RankFacts) -> Bits | None:
    """Return a gradient that is the same by no accident on ranks that have it."""
    return _applied(name, rank) if name in rank.parameters and rank.parameters[name].is_telling else None


def _draw(place: int, rank: RankFacts) -> Hashable:
    return rank.drawn[place][:2], len(rank.batch)


def _named(groups: Sequence[Ranks]) -> str:
    """Return ``ranks 0 and 1``, ``ranks 0-62|64-255 and 63``, or all of many groups at once."""
    numbers = [[rank.rank for rank in group] for group in groups]
    if len(numbers) > _MOST_GROUPS:
        return f"ranks {ranges(number for group in numbers for number in group)}"
    return f"ranks {' and '.join(map(ranges, numbers))}"


class _Reduced:
    """Which memory holds gradients, and which of it has been reduced between which ranks by which call."""

    def __init__(self, step: StepFacts) -> None:
        self._flow = step.flow
        self._leaves = step.parameters_read
        self._marks: dict[int, dict[tuple[int, int], dict[str, Call | None]]] = {}

    def of(self, values: Iterable[Value]) -> dict[str, Call | None]:
        """Return who reduced gradients in the memory of some values, by the ranks; by "" that they are gradients."""
        found: dict[str, Call | None] = {}
        for value in values:
            if value.numel > 1 and value.storage not in self._leaves:
                low, high = extent(value)
                for (start, end), marks in self._marks.get(value.storage, {}).items():
                    if low < end and start < high:
                        found |= marks
        return found

    def pass_on(self, call: Call, ranks: str) -> None:
        """Note what the results of a call hold."""
        is_linear = (
            call.phase != "optimizer" and read_op_name(call.op).name.strip("_").removeprefix("foreach_") in _LINEAR
        )
        for slot, value in self._flow.results(call):
            marks = self.of(v for _, v in self._flow.behind(call, slot)) if is_linear or ranks else {}
            if call.phase == "backward":
                marks[""] = None
            if ranks and marks:
                marks[ranks] = call
            known = self._marks.setdefault(value.storage, {})
            low, high = extent(value)
            for start, end in [place for place in known if low <= place[0] and place[1] <= high]:
                del known[start, end]
            if marks and value.storage:
                known[low, high] = marks


def gradient_reduced_twice(step: StepFacts) -> Iterator[Found]:
    """A gradient that ranks have reduced is reduced between them again."""
    sums = {call.id: ranks for call in step.flow.calls() if (ranks := _sums_over(call))}
    reduced = _Reduced(step)
    for call in step.flow.calls() if len(sums) > 1 else ():
        ranks = sums.get(call.id, "")
        first = reduced.of(value for _, value in step.flow.reads(call)).get(ranks) if ranks else None
        if first is not None:
            yield Found(
                call,
                f"it reduces gradients between ranks {ranks}, which {first.name} ({first.where}) has done already: "
                "leave one of the two out",
            )
        reduced.pass_on(call, ranks)


def _sums_over(call: Call) -> str:
    """Return the ranks or the group that a collective sums over, "" if it is none that sums."""
    if not is_collective(call.op) or "reduce" not in read_op_name(call.op).name:
        return ""
    given = dict(zip(call.arguments, call.inputs[0], strict=False)) | call.inputs[1]
    group = given.get("process_group", given.get("group_name", ""))
    how = str(given.get("reduce_op", "sum")).lower()
    is_sum = "sum" in how or "avg" in how
    return str(group["ranks"] if isinstance(group, dict) and "ranks" in group else group) if is_sum else ""


def repeated_batch(step: StepFacts) -> Iterator[Found]:
    """A step computes on the batch of the step before."""
    batch = batch_of(step)
    if batch and step.before is not None and batch == batch_of(step.before):
        call = next(iter(step.rank.calls.filter(kind="module", phase="forward")))
        yield Found(
            call,
            f"it computes on the batch of step {step.before.rank.step}: a loader begins anew, an index does not move, "
            "or seeds are the same",
        )


def _are(names: list[str]) -> str:
    return "are" if len(names) > 1 else "is"


RULES: Final[tuple[Rule | RankRule, ...]] = (
    RankRule(
        "replicas-apart", "replicas of one parameter differ between ranks", ("aten", "bytes", "ranks"), replicas_apart
    ),
    RankRule(
        "not-reduced",
        "a gradient is not reduced between replicas, while others are",
        ("aten", "bytes", "ranks"),
        not_reduced,
    ),
    RankRule(
        "never-reduced",
        "ranks that hold one model reduce no gradient between them",
        ("aten", "bytes", "ranks"),
        never_reduced,
        is_default=False,
    ),
    Rule(
        "gradient-reduced-twice",
        "a gradient that ranks have reduced is reduced between them again",
        ("aten",),
        gradient_reduced_twice,
    ),
    RankRule("same-batch", "data-parallel ranks compute on the same batch", ("aten", "bytes", "ranks"), same_batch),
    Rule(
        "repeated-batch",
        "a step computes on the batch of the step before",
        ("aten", "bytes"),
        repeated_batch,
        is_default=False,
    ),
    RankRule(
        "same-random",
        "ranks draw the same random numbers for different batches",
        ("aten", "bytes", "ranks"),
        same_random,
        is_default=False,
    ),
)
