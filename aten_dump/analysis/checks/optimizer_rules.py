"""Rules about gradients and the optimizers that apply them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import torch

from ...dump import Call, Value
from ...store.op_names import read_op_name
from ..flow.leaves import accumulations
from .rule import Found, Rule
from .step_facts import OptimizerStep, StepFacts

_CLAMPS: Final = ("clamp", "clip", "clamp_min", "clamp_max", "_foreach_clamp_min", "_foreach_clamp_max")
_SCALES: Final = ("mul", "div", "_foreach_mul", "_foreach_div")


def gradient_dropped(step: StepFacts) -> Iterator[Found]:
    """A step of an optimizer that holds a parameter comes after its gradient, and does not write the parameter, or
    writes it with zeros.
    """
    for optimizer, names in _held_by_steps(step):
        if not hasattr(torch.optim, optimizer.name):
            continue  # its kernel may be none of torch's ops
        known = {name: step.named[name] for name in names if name in step.named}
        got = {
            name: accumulated
            for name, (leaf, accumulated) in known.items()
            if 0 < accumulated < optimizer.begins.id and not leaf.opaque
        }
        lost = {
            name: accumulated
            for name, accumulated in got.items()
            if not any(known[name][0].storage in s.writes for s in step.optimizer_steps if s.begins.id > accumulated)
        }
        if got and _are_zeroed(step, got, optimizer):
            lost = got
        if lost:
            since = max(lost.values())
            clears = next((c for c in step.clearings if since < c.id < optimizer.begins.id), None)
            why = "" if clears is None else f": {clears.where or clears.name} clears it between backward and the step"
            yield Found(
                clears or optimizer.begins,
                f"{optimizer.name}.step() does not apply the gradient of {listed(list(lost))}{why}",
            )


def _are_zeroed(step: StepFacts, got: dict[str, int], optimizer: OptimizerStep) -> bool:
    """Return True if zeros are what was last written to all of some gradients: to some is a way to freeze a layer."""
    zeros = {call.id for call in step.ops("zero", "_foreach_zero") if call.id < optimizer.begins.id}
    if not zeros or max(zeros) < min(got.values()):
        return False
    last = {
        value.storage: call.id
        for call in step.flow.calls()
        if call.mutated and call.id < optimizer.begins.id
        for _, value in call.written_values()
    }
    for name, accumulated in got.items():
        gradient = step.rank.gradients.get(name)
        written = last.get(gradient.storage, 0) if gradient is not None and gradient.storage else 0
        if written < accumulated or written not in zeros:
            return False
    return True


def gradient_applied_twice(step: StepFacts) -> Iterator[Found]:
    """Two steps of optimizers write one parameter, and no gradient was computed for it between them."""
    accumulated: dict[int, list[int]] = {}
    for number, one in step.accumulated.items():
        accumulated.setdefault(one.leaf.storage, []).append(number)
    twice: dict[int, tuple[OptimizerStep, OptimizerStep, list[str]]] = {}
    for name, (leaf, _) in step.named.items():
        applied = step.applied(name)
        for first, second in pairwise(applied):
            between = (n for n in accumulated.get(leaf.storage, ()) if first.begins.id < n < second.begins.id)
            is_new = any(between) or _is_touched(step, name, first, second)
            if not is_new:
                twice.setdefault(second.begins.id, (first, second, []))[2].append(name)
    for first, second, names in twice.values():
        yield Found(
            second.begins,
            f"{second.name}.step() applies the gradient of {listed(names)} again, which {first.name}.step() at "
            f"{first.begins.where or first.begins.name} has applied: one optimizer too many holds it, or steps twice",
        )


def _is_touched(step: StepFacts, name: str, first: OptimizerStep, second: OptimizerStep) -> bool:
    """Return True if the program wrote to a gradient between two steps."""
    gradient = step.rank.gradients.get(name)
    if gradient is None or not first.calls:
        return True
    last = first.calls[-1].id
    written = (
        call
        for call in step.flow.calls()
        if last < call.id < second.begins.id and call.phase != "optimizer" and call.mutated
    )
    return any(value.storage == gradient.storage for call in written for _, value in call.written_values())


def no_optimizer(step: StepFacts) -> Iterator[Found]:
    """A parameter of a module in training gets a gradient, and no optimizer that is alive holds it.

    Who trains a small part of a model alone means it: the optimizers must hold most of what requires grad, or others
    of the same part.
    """
    others = step.held_by_others
    if others is None or "" in others:  # these may be copies of it
        return
    held = {name for names in (*step.held.values(), others) for name in names if name}
    parts = {_part(name) for name in held}
    holds_most = 2 * len(held.intersection(step.trainable)) > len(step.trainable) or _holds_what_gets_nothing(step)
    # What an optimizer holds without a name may be copies or flat parameters: then the parameter itself is written too.
    written = {value.storage for call in step.flow.calls() if call.mutated for _, value in call.written_values()}
    last = max((one.begins.id for one in step.optimizer_steps), default=0)
    for name in step.trainable:
        leaf, accumulated = step.named.get(name, (None, 0))
        if name in held or leaf is None or leaf.storage in written or accumulated > last:
            continue
        if not holds_most and _part(name) not in parts:
            continue
        reader = step.leaves.get(leaf.record.place, (leaf, None))[1]
        if reader is not None and reader.training is not False:
            yield Found(
                reader,
                f"{name} gets a gradient, and no optimizer holds it: it is never updated; "
                "where that is meant, requires_grad_(False) spares the work",
            )


def _holds_what_gets_nothing(step: StepFacts) -> bool:
    """Return True if an optimizer holds tensors that are in no model and get no gradient, as a replaced layer's are."""
    old = sum(not name for names in step.held.values() for name in names)
    known = {leaf.record.place for leaf, _ in step.named.values()}
    others = {one.leaf.record.place for one in step.accumulated.values()} - known
    return bool(step.trainable) and step.knows_all_gradients and old > len(others)


def _part(name: str) -> str:
    """Return the part of the model that an optimizer is made for: all under the first name of a path."""
    first, dot, _ = name.partition(".")
    return first if dot else ""


def stale_gradient(step: StepFacts) -> Iterator[Found]:
    """A gradient is added to one that an optimizer has applied, and the sum is applied: nothing cleared it."""
    names = {record.call: record.name for record in step.rank.tables.gradients}
    old: dict[str, tuple[Call, int]] = {}  # the call that adds, and to which storage
    for call in accumulations(step.flow):
        name = names.get(call.id)
        for add in call.children if name is not None else ():
            written = {value.storage for _, value in add.written_values()} if add.kind == "aten" else set()
            for value in [v for _, v in add.input_values() if v.storage in written]:
                if name and _is_applied(step, name, value, add) and _will_be_applied(step, value.storage, add):
                    old[name] = add, value.storage
    if old:
        last, storage = max(((call.id, storage) for call, storage in old.values()))
        later = next(one for one in step.optimizer_steps if one.begins.id > last and storage in one.reads)
        yield Found(
            later.begins,
            f"{later.name}.step() applies the gradient of {listed(list(old))} once more: the new one was added to the "
            "one that it has applied already; call optimizer.zero_grad() after each step",
        )


def _will_be_applied(step: StepFacts, storage: int, add: Call) -> bool:
    """Return True if an optimizer reads a sum of gradients before it is cleared."""
    later = next((s for s in step.optimizer_steps if s.begins.id > add.id and storage in s.reads), None)
    if later is None:
        return False
    clears = (c for c in step.ops("zero", "_foreach_zero", "fill") if add.id < c.id < later.begins.id)
    return not any(value.storage == storage for c in clears for _, value in c.written_values())


def _is_applied(step: StepFacts, name: str, value: Value, add: Call) -> bool:
    """Return True if an optimizer has applied the gradient that another one is added to."""
    contents = step.contents(value)
    if contents is None or (contents.finite and not contents.low and not contents.high):
        return False
    if step.flow.writer(value) is not None or step.flow.maker(value) is not None:
        moment = value.storage, value.version
        earlier = (s for s in step.applied(name) if s.begins.id < add.id)
        return any((v.storage, v.version) == moment for s in earlier for c in s.calls for _, v in c.input_values())
    before = step.before
    if before is None or before.rank.step != step.rank.step - 1 or name not in before.named:
        return False
    gradient, applied = before.rank.gradients[name], before.applied(name)
    is_last = bool(applied) and applied[-1].begins.id > before.named[name][1]
    return is_last and gradient.storage in applied[-1].reads and _same_numbers(step, value, before)


def _same_numbers(step: StepFacts, value: Value, before: StepFacts) -> bool:
    """Return True if the step before has a gradient of these contents that an optimizer read."""
    contents = step.contents(value)
    read = (v for s in before.optimizer_steps for c in s.calls for _, v in c.input_values() if v.shape == value.shape)
    return any(before.contents(one) == contents for one in read)


def clip_after_step(step: StepFacts) -> Iterator[Found]:
    """Gradients are clipped after the optimizer has applied them."""
    for call in clippings(step):
        storages = {value.storage for _, value in call.written_values()}
        names = [name for storage, name in step.gradient_storages.items() if storage in storages]
        late = []
        for name in names:
            applied = [s for s in step.applied(name) if s.begins.id > step.named[name][1]] if name in step.named else []
            if applied and all(one.begins.id < call.id for one in applied):
                late.append(name)
        if late:
            yield Found(call, f"the gradient of {listed(late)} is clipped after optimizer.step() has applied it")


def clippings(step: StepFacts) -> Iterator[Call]:
    """Yield the ops that clip gradients in place: clamps, and products with a number that is made of gradients."""
    for call in step.ops("copy", *_SCALES, *_CLAMPS):
        if not call.mutated or call.phase != "forward":
            continue
        name = read_op_name(call.op).name.rstrip("_")
        scales = call if name in _SCALES else None
        if name == "copy" and len(call.input_values()) > 1:
            maker = step.flow.maker(call.input_values()[1][1])
            scales = maker if maker is not None and read_op_name(maker.op).name in _SCALES else None
        if name in _CLAMPS or (scales is not None and _is_scaled_by_gradients(step, scales)):
            yield call


def _is_scaled_by_gradients(step: StepFacts, call: Call) -> bool:
    """Return True if a product is one with a number that is computed from gradients."""
    gradients = step.gradient_storages
    given = [value for _, value in call.input_values() if value.is_floating and value.storage not in gradients]
    numbers = [value for value in given if value.numel == 1]
    read = {v.storage for made in step.behind(numbers).values() for _, v in step.flow.reads(made)}
    return bool(read & gradients.keys())


def _held_by_steps(step: StepFacts) -> Iterator[tuple[OptimizerStep, list[str]]]:
    """Yield the optimizers' steps, each with the names that its optimizer holds, where one may know which that is."""
    rows = {row.optimizer: row.name for row in step.rank.tables.optimizer_groups}
    for optimizer in step.optimizer_steps:
        numbers = [number for number, name in rows.items() if name == optimizer.name and number in step.held]
        if len(numbers) == 1:
            yield optimizer, step.held[numbers[0]]


def listed(names: list[str], most: int = 3) -> str:
    """Return some names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


RULES: Final = (
    Rule(
        "gradient-dropped",
        "an optimizer steps after backward and does not apply the gradient: it was cleared in between",
        ("whole", "aten", "parameters"),
        gradient_dropped,
    ),
    Rule(
        "gradient-applied-twice",
        "two steps of optimizers apply the same gradient",
        ("aten",),
        gradient_applied_twice,
    ),
    Rule(
        "no-optimizer",
        "a parameter gets a gradient and no optimizer holds it, but most of the model or others of its part are held",
        ("whole", "aten", "parameters"),
        no_optimizer,
    ),
    Rule(
        "stale-gradient",
        "a gradient is added to one that has been applied: zero_grad is missing",
        ("whole", "aten", "contents"),
        stale_gradient,
    ),
    Rule("clip-after-step", "gradients are clipped after optimizer.step()", ("aten",), clip_after_step),
)
