"""Rules about ranks that train copies of one model.

Theory of operation
    Two ranks are replicas as far as an optimizer applied the same gradient to a parameter on both: that is what a
    reduction leaves, and shards of one tensor do not have. Nothing needs to be known of how the program reduces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from ...dump import Call, Value
from ...store.op_names import UNSCALE_GRADIENTS, is_collective, read_op_name
from ..rerun.shared_memory import extent
from .memory_rules import same_elements
from .optimizer_rules import listed
from .rule import Found, Rule
from .step_facts import StepFacts

# Ops whose result holds a gradient if it is given one: sums, scaled and copied ones.
_UNSCALES: Final = read_op_name(UNSCALE_GRADIENTS).name.strip("_")
_LINEAR: Final = ("copy", "to_copy", "clone", "mul", "div", "add", "sub", "neg", "cat", "stack", _UNSCALES)


def replicas_apart(step: StepFacts) -> Iterator[Found]:
    """Ranks apply the same gradient to a parameter that is not the same on both."""
    for other in step.others:
        apart = [
            name
            for name in _common(step, other)
            if _is_reduced(step, other, name) and _same(step, other, _leaf, name) is False
        ]
        if apart:
            leaf = step.named[apart[0]][0]
            yield Found(
                step.leaves[leaf.record.place][1],
                f"{listed(apart)} {_are(apart)} not the same on ranks {step.rank.rank} and {other.rank.rank}, which "
                "apply the same gradient: the replicas began apart, or have drifted",
            )


def not_reduced(step: StepFacts) -> Iterator[Found]:
    """Ranks apply different gradients to a parameter that is the same on both, while others are reduced."""
    for other in step.others:
        names = _common(step, other)
        reduced = [name for name in names if _is_reduced(step, other, name)]
        own = [
            name for name in names if _same(step, other, _applied, name) is False and _same(step, other, _leaf, name)
        ]
        if own and reduced and all(leaf.shape for leaf, _ in (step.named[name] for name in own)):
            yield Found(
                step.rank.call(step.named[own[0]][1]),
                f"the gradient of {listed(own)} is not reduced between ranks {step.rank.rank} and {other.rank.rank}, "
                f"as that of {reduced[0]} is: the replicas drift apart",
            )


def never_reduced(step: StepFacts) -> Iterator[Found]:
    """Ranks apply gradients of their own to the parameters of one model, and reduce none of them."""
    for other in step.others:
        names = _common(step, other)
        own = [name for name in names if _same(step, other, _applied, name) is False]
        is_shared = any(_is_reduced(step, other, name) for name in names)
        if not own or is_shared or any(_is_sharded(one) or one.meets_in_forward for one in (step, other)):
            continue
        begins = next((one.begins for one in step.optimizer_steps if one.calls), None)
        if begins is not None:
            yield Found(
                begins,
                f"ranks {step.rank.rank} and {other.rank.rank} each apply a gradient of their own to {listed(own)}: "
                "nothing reduces the gradients between them",
            )


def _is_sharded(step: StepFacts) -> bool:
    """Return True if a rank gathers what it computes with, or scatters sums: it holds parts."""
    return any(is_collective(call.op) and ("gather" in call.op or "scatter" in call.op) for call in step.flow.calls())


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


def same_batch(step: StepFacts) -> Iterator[Found]:
    """Ranks that reduce their gradients compute them from the same batch."""
    for other in step.others:
        if not all(one.reduces and not one.meets_in_forward for one in (step, other)):
            continue
        if _same_batch(step, other) and any(_is_reduced(step, other, name) for name in _common(step, other)):
            call = next(iter(step.rank.calls.filter(kind="module", phase="forward")))
            yield Found(
                call,
                f"ranks {step.rank.rank} and {other.rank.rank} compute on the same batch: give each its own part, as "
                "DistributedSampler does",
            )


def repeated_batch(step: StepFacts) -> Iterator[Found]:
    """A step computes on the batch of the step before."""
    if step.before is not None and _same_batch(step, step.before):
        call = next(iter(step.rank.calls.filter(kind="module", phase="forward")))
        yield Found(
            call,
            f"it computes on the batch of step {step.before.rank.step}: a loader begins anew, an index does not move, "
            "or seeds are the same",
        )


def same_random(step: StepFacts) -> Iterator[Found]:
    """Ranks draw the same random numbers for different batches."""
    for other in step.others:
        given, theirs = step.batch, other.batch
        if not given or len(given) != len(theirs):
            continue
        if any(_equal(step, one, other, two) is not False for one, two in zip(given, theirs, strict=True)):
            continue
        drawn = [[c for c in one.flow.calls() if c.id in one.rank.tables.random and c.module] for one in (step, other)]
        for one, two in zip(*drawn, strict=False):
            if one.op == two.op and one.random_state is not None and one.random_state == two.random_state:
                yield Found(one, f"ranks {step.rank.rank} and {other.rank.rank} draw the same random numbers")
                break


def _common(step: StepFacts, other: StepFacts) -> list[str]:
    return [n for n in step.named if n in other.named and step.named[n][0].shape == other.named[n][0].shape]


def _is_reduced(step: StepFacts, other: StepFacts, name: str) -> bool:
    """Return True if both ranks apply the same gradient, which is not all zeros, to a parameter."""
    gradient = _applied(step, name)
    return bool(_same(step, other, _applied, name)) and gradient.numel > 1 and not step.is_zero(gradient)


def _applied(step: StepFacts, name: str) -> Value:
    found = step.applied_gradients.get(name)
    return step.rank.gradients[name] if found is None else found


def _leaf(step: StepFacts, name: str) -> Value:
    return step.named[name][0]


def _same(step: StepFacts, other: StepFacts, of: Callable[[StepFacts, str], Value], name: str) -> bool | None:
    return _equal(step, of(step, name), other, of(other, name))


def _same_batch(step: StepFacts, other: StepFacts) -> bool:
    given, theirs = step.batch, other.batch
    pairs = zip(given, theirs, strict=False)
    return bool(given) and len(given) == len(theirs) and all(_equal(step, one, other, two) for one, two in pairs)


def _equal(step: StepFacts, one: Value, other: StepFacts, two: Value) -> bool | None:
    """Return whether values of two recordings have the same bits, None where nothing says so.

    Each of a thousand ranks is held against all others: what stands for the bits is kept.
    """
    if one.dtype_name != two.dtype_name or one.shape != two.shape:
        return False
    bits = step.bits(one), other.bits(two)
    if None in bits:
        return None
    return bits[0] == bits[1] if type(bits[0]) is type(bits[1]) else same_elements(one, two)


def _are(names: list[str]) -> str:
    return "are" if len(names) > 1 else "is"


RULES: Final = (
    Rule(
        "replicas-apart", "replicas of one parameter differ between ranks", ("aten", "bytes", "ranks"), replicas_apart
    ),
    Rule(
        "not-reduced",
        "a gradient is not reduced between replicas, while others are",
        ("aten", "bytes", "ranks"),
        not_reduced,
    ),
    Rule(
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
    Rule("same-batch", "data-parallel ranks compute on the same batch", ("aten", "bytes", "ranks"), same_batch),
    Rule(
        "repeated-batch",
        "a step computes on the batch of the step before",
        ("aten", "bytes"),
        repeated_batch,
        is_default=False,
    ),
    Rule(
        "same-random",
        "ranks draw the same random numbers for different batches",
        ("aten", "bytes", "ranks"),
        same_random,
        is_default=False,
    ),
)
