"""The rule about parameters without a gradient, and where it is lost.

Theory of operation
    A parameter that an optimizer holds and that the loss depends on gets a gradient, unless something between the two
    cuts it off: it is detached, runs without grad, makes something that has no gradient (an index, a comparison, a
    number of Python's), or has a derivative that is zero everywhere. Then backward hands on zeros that it makes of
    nothing. A gradient that happens to be zero is computed from what backward was given.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ...dump import Call, Value
from ...store.op_names import reads_no_elements
from ..rerun.shared_memory import moment_of
from .rule import Found, Rule
from .step_facts import StepFacts, calls_around

_DETACHES: Final = ("detach", "detach_")
_TO_PYTHON: Final = "aten::_local_scalar_dense"
_MOST: Final = 16  # parameters of which it is searched where their gradient is cut off; others lead to these places


def no_gradient(step: StepFacts) -> Iterator[Found]:
    """A parameter that an optimizer holds is computed into the loss, and backward brings it no gradient, or zeros."""
    if not step.losses or not step.knows_all_gradients or any(map(_is_limited, step.backward_calls)):
        return
    yield from _without(step)
    yield from _with_zeros(step)


def _without(step: StepFacts) -> Iterator[Found]:
    trained = {one.leaf.storage for one in step.accumulated.values()}
    held = {name for names in step.held.values() for name in names if name} - set(step.named)
    behind: dict[int, Call] = {}  # the ops that lead to a place where gradients are cut off
    searched = 0
    for leaf, reader in step.parameters_read.values():
        is_handed_on = reader.op == _TO_PYTHON and any(one.kind == "module" for one in calls_around(reader))
        is_used = is_handed_on or reader.id in step.into_loss
        names = [name for name in held if not reader.module or name.startswith(f"{reader.module}.")]
        if leaf.storage in trained or not is_used or not names:
            continue
        if searched < _MOST:
            cut = _cut_off(step, leaf)
            searched += 1
            behind |= {} if cut is None else dict.fromkeys(step.behind([v for _, v in cut.input_values()]), cut)
        else:
            cut = behind.get(reader.id)
        text = "" if cut is None else f": {cut.name} cuts it off"
        name = names[0] if len(names) == 1 else f"a parameter of {reader.module or 'the model'} {list(leaf.shape)}"
        yield Found(cut or reader, f"{name} is computed into the loss and gets no gradient{text}")


def _is_limited(call: Call) -> bool:
    return call.op.endswith(".grad") or bool(call.inputs[1].get("inputs"))


def _cut_off(step: StepFacts, leaf: Value) -> Call | None:
    """Return the first call between a leaf and the losses that no gradient passes."""
    moments = {moment_of(leaf)}
    detached = {
        moment_of(value): call
        for call in (*step.apis(*_DETACHES), *_by_data(step))
        for _, value in call.input_values()
        if call.phase == "forward"
    }
    for call in step.flow.calls():
        read = [moment for _, v in call.input_values() if (moment := moment_of(v)) in moments]
        if not read or call.phase != "forward":
            continue
        found = next((one for moment in read if (one := detached.get(moment)) is not None and one.id <= call.id), None)
        made = [value for _, value in call.output_values() if value.is_floating]
        if found is not None:
            return found
        if call.op == _TO_PYTHON or (call.id in step.into_loss and not (made and call.grad_enabled)):
            return call
        moments |= {moment_of(value) for value in made}
    return None


def _by_data(step: StepFacts) -> Iterator[Call]:
    """Yield the ops that ``.data`` is; those within a function of torch's save what its backward needs."""
    for call in step.ops("detach"):
        if call.grad_enabled and (call.parent is None or call.parent.kind == "module"):
            yield call


def _with_zeros(step: StepFacts) -> Iterator[Found]:
    for name in sorted({name for names in step.held.values() for name in names} & set(step.named)):
        if not step.is_zero(step.rank.gradients[name]):
            continue
        leaf = step.named[name][0]
        cut = _flat(step, leaf)
        if cut is not None:
            yield Found(cut, f"the gradient of {name} is zero throughout: the derivative of {cut.name} is 0 everywhere")


def _flat(step: StepFacts, leaf: Value) -> Call | None:
    """Return the first call between a leaf and the losses whose backward hands on zeros whatever it is given."""
    moments = {moment_of(leaf)}
    for call in step.flow.calls():
        read = [value for _, value in call.input_values() if moment_of(value) in moments]
        if not read or call.id not in step.behind_loss:
            continue
        if any(node.kind == "node" and _hands_on_zeros(step, node) for node in call.backward):
            return call
        moments |= {moment_of(v) for _, v in call.output_values() if v.is_floating}
    return None


def _hands_on_zeros(step: StepFacts, node: Call) -> bool:
    """Return True if all that a node hands on is zero and made of nothing, though it is given something else."""
    given, handed = ([value for _, value in slots] for slots in (node.input_values(), node.output_values()))
    if not given or not handed or any(step.is_zero(value) for value in given):
        return False
    for value in handed:
        maker = step.flow.maker(value)
        is_computed = maker is None or (step.flow.reads(maker) and not reads_no_elements(maker.op))
        if is_computed or not step.is_zero(value):
            return False
    return True


RULES: Final = (
    Rule(
        "no-gradient",
        "a parameter that an optimizer holds is computed into the loss, and backward brings it no gradient, or zeros",
        ("whole", "aten", "parameters"),
        no_gradient,
    ),
)
