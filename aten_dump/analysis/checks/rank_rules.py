"""Rules about ranks that train copies of one model.

Theory of operation
    Two ranks are replicas as far as an optimizer applied the same gradient to a parameter on both: that is what a
    reduction leaves, and shards of one tensor do not have. Nothing needs to be known of how the program reduces.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ...dump import Value
from ...store.op_names import is_collective
from .memory_rules import same_elements
from .optimizer_rules import listed
from .rule import Found, Rule
from .step_facts import StepFacts


def replicas_apart(step: StepFacts) -> Iterator[Found]:
    """Ranks apply the same gradient to a parameter that is not the same on both."""
    for other in step.others:
        apart = [
            name
            for name in _common(step, other)
            if _is_reduced(step, other, name) and same_elements(step.named[name][0], other.named[name][0]) is False
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
            name
            for name in names
            if same_elements(*_applied(step, other, name)) is False
            and same_elements(step.named[name][0], other.named[name][0])
        ]
        if own and reduced and all(leaf.shape for leaf, _ in (step.named[name] for name in own)):
            yield Found(
                step.rank.call(step.named[own[0]][1]),
                f"the gradient of {listed(own)} is not reduced between ranks {step.rank.rank} and {other.rank.rank}, "
                f"as that of {reduced[0]} is: the replicas drift apart",
            )


def same_batch(step: StepFacts) -> Iterator[Found]:
    """Ranks that reduce their gradients compute them from the same batch."""
    for other in step.others:
        names = _common(step, other)
        is_parallel = any(_is_reduced(step, other, name) for name in names) and _reduces(step) and _reduces(other)
        if not is_parallel or _meets_in_forward(step) or _meets_in_forward(other):
            continue
        given, theirs = _batch(step), _batch(other)
        if given and len(given) == len(theirs) and all(map(same_elements, given, theirs)):
            call = next(iter(step.rank.calls.filter(kind="module", phase="forward")))
            yield Found(
                call,
                f"ranks {step.rank.rank} and {other.rank.rank} compute on the same batch: give each its own part, as "
                "DistributedSampler does",
            )


def same_random(step: StepFacts) -> Iterator[Found]:
    """Ranks draw the same random numbers for different batches."""
    for other in step.others:
        given, theirs = _batch(step), _batch(other)
        if (
            not given
            or len(given) != len(theirs)
            or any(same_elements(*pair) is not False for pair in zip(given, theirs, strict=True))
        ):
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
    pair = _applied(step, other, name)
    contents = step.contents(pair[0])
    is_zero = contents is not None and contents.finite and contents.low == 0 and contents.high == 0
    return pair[0].numel > 1 and not is_zero and bool(same_elements(*pair))


def _applied(step: StepFacts, other: StepFacts, name: str) -> tuple[Value, Value]:
    first, second = (one.applied_gradients.get(name, one.rank.gradients[name]) for one in (step, other))
    return first, second


def _reduces(step: StepFacts) -> bool:
    return any("reduce" in call.op and is_collective(call.op) for call in step.flow.calls())


def _meets_in_forward(step: StepFacts) -> bool:
    """Return True if the forward of a model has collectives: its ranks share more than gradients."""
    return any(is_collective(call.op) and call.module and call.phase == "forward" for call in step.flow.calls())


def _batch(step: StepFacts) -> list[Value]:
    """Return the tensors that outermost modules are given."""
    calls = (c for c in step.rank.calls.filter(kind="module", phase="forward") if c.parent is None)
    return [value for call in calls for _, value in call.input_values() if value.numel > 1]


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
    Rule("same-batch", "data-parallel ranks compute on the same batch", ("aten", "bytes", "ranks"), same_batch),
    Rule(
        "same-random",
        "ranks draw the same random numbers for different batches",
        ("aten", "bytes", "ranks"),
        same_random,
        is_default=False,
    ),
)
