"""Rules about the backward passes of one step: which gradients each of them brings, and what becomes of these."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from ...dump import Call
from ..flow.leaves import LeafGradient
from ..rerun.shared_memory import Moment, moment_of
from .memory_rules import same_elements
from .rule import Found, Rule
from .step_facts import StepFacts


@dataclass(frozen=True, slots=True)
class Pass:
    """One backward pass: the call that began it, and what it accumulated, by id of the accumulating call."""

    begins: Call
    brought: dict[int, LeafGradient]

    @property
    def leaves(self) -> set[tuple[object, ...]]:
        return {one.leaf.record.place for one in self.brought.values()}


def _passes(step: StepFacts) -> list[Pass]:
    """Return the backward passes that accumulated gradients, in order; those within another one are part of it."""
    begins = [call for call in step.backward_calls if call.phase != "backward"]
    found: dict[int, dict[int, LeafGradient]] = {}
    for number, one in step.accumulated.items():
        at = bisect([call.id for call in begins], number)
        if at:
            found.setdefault(at - 1, {})[number] = one
    return [Pass(begins[at], found[at]) for at in sorted(found)]


def gradient_lost(step: StepFacts) -> Iterator[Found]:
    """Nothing reads the gradients of a backward pass before they are cleared, and those of a later pass are applied."""
    passes = _passes(step) if step.knows_all_gradients else []
    before = step.before
    if before is not None and before.rank.step == step.rank.step - 1 and passes and before.knows_all_gradients:
        old = _passes(before)
        if old and _is_unread(before, old[-1]) and _begins_anew(before, old[-1], step, passes[0]):
            yield _lost(step, f"of step {before.rank.step}", 0, passes[0])
    for first, second in pairwise(passes):
        if first.leaves & second.leaves and _is_unread(step, first) and _is_applied(step, second):
            yield _lost(step, f"that {_place(first.begins)} has brought", first.begins.id, second)


def _lost(step: StepFacts, which: str, since: int, later: Pass) -> Found:
    clears = next((call for call in step.clearings if since < call.id < min(later.brought)), None)
    return Found(
        clears or later.begins,
        f"the gradients {which} are cleared before anything reads them, and {_place(later.begins)} brings the next: "
        "clear once for each optimizer.step()",
    )


def _place(call: Call) -> str:
    return call.where or call.name


def _is_unread(step: StepFacts, one: Pass) -> bool:
    """Return True if nothing reads what a pass brought."""
    moments = {number: _rests(step, number, found) for number, found in one.brought.items()}
    if not all(storage for storage, _ in moments.values()):
        return False
    since, wanted = dict(zip(moments.values(), moments, strict=True)), set(moments.values())
    for call in step.flow.calls():
        if call.id <= min(moments) or step.flow.is_view(call):
            continue
        for _, value in step.flow.reads(call):
            moment = moment_of(value)
            if moment in wanted and call.id > since[moment] and call.parent_id != since[moment]:
                return False
    return True


def _rests(step: StepFacts, number: int, found: LeafGradient) -> Moment:
    """Return the memory that a gradient is left in: it is added to the one there, copied, or kept as it is."""
    values = [found.gradient]
    for child in step.rank.call(number).children:
        if child.kind == "aten":
            values = [value for _, value in (child.written_values() or child.output_values())] or values
    return moment_of(values[0])


def _is_applied(step: StepFacts, one: Pass) -> bool:
    return any(optimizer.calls and optimizer.begins.id > max(one.brought) for optimizer in step.optimizer_steps)


def _begins_anew(before: StepFacts, old: Pass, step: StepFacts, new: Pass) -> bool:
    """Return True if the first pass of a step adds nothing to what the last one of the step before has brought."""
    names = [
        {record.name for record in one.rank.tables.gradients if record.call in brought.brought}
        for one, brought in ((before, old), (step, new))
    ]
    is_early = any(optimizer.begins.id < min(new.brought) for optimizer in step.optimizer_steps)
    is_late = any(optimizer.begins.id > min(old.brought) for optimizer in before.optimizer_steps)
    if not names[0] or names[0] != names[1] or is_early or is_late or not _is_applied(step, new):
        return False
    for number in new.brought:
        for child in step.rank.call(number).children:
            written = {value.storage for _, value in child.written_values()}
            sums = [value for _, value in child.input_values() if value.storage in written]
            if not all(map(step.is_zero, sums)):
                return False
    return True


def repeated_pass(step: StepFacts) -> Iterator[Found]:
    """Two backward passes bring bitwise the same gradients, of parameters that did not change between them."""
    for first, second in pairwise(_passes(step)):
        pairs = _counterparts(first, second)
        is_same = bool(pairs) and all(same_elements(one.gradient, two.gradient) for one, two in pairs)
        if is_same and any(one.gradient.numel > 1 and not step.is_zero(one.gradient) for one, _ in pairs):
            yield Found(
                second.begins,
                f"it brings bitwise the gradients that {_place(first.begins)} has brought: one batch, or one loss, "
                "counts twice",
            )


def _counterparts(first: Pass, second: Pass) -> list[tuple[LeafGradient, LeafGradient]]:
    """Return the gradients of the same leaves in the same state; [] where those of the passes are not the same."""
    ones, twos = (
        {(one.leaf.record.place, one.leaf.version): one for one in found.brought.values()} for found in (first, second)
    )
    return [(one, twos[leaf]) for leaf, one in ones.items()] if ones.keys() == twos.keys() else []


RULES: Final = (
    Rule(
        "gradient-lost",
        "the gradients of a backward pass are cleared before anything reads them: zero_grad is called too often",
        ("whole", "aten", "contents"),
        gradient_lost,
    ),
    Rule(
        "repeated-pass",
        "two backward passes of a step bring bitwise the same gradients: one batch counts twice",
        ("aten", "bytes"),
        repeated_pass,
    ),
)
