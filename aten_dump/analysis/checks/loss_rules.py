"""Rules about losses, their targets, and softmax."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from ...dump import Call, Value
from ...store.op_names import read_op_name
from ..rerun.shared_memory import Moment, moment_of
from .rule import Found, Rule
from .step_facts import StepFacts

_PAIRED: Final = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
_SOFTMAX: Final = ("_softmax", "_log_softmax")
_LINEAR: Final = ("addmm", "mm", "linear", "matmul", "bmm")
_CONVOLUTIONS: Final = ("convolution", "mkldnn_convolution", "cudnn_convolution")
_VIEWS: Final = ("view", "_unsafe_view", "reshape", "expand", "slice", "alias", "detach", "_to_copy", "clone")
_DEEPEST: Final = 8
_TERMS: Final = ("add", "sub", "rsub", "stack", "cat")
_KEEPS_TERMS: Final = (*_TERMS, "sum", "mean", "mul", "div", "neg", "unsqueeze", "view")


def detached_term(step: StepFacts) -> Iterator[Found]:
    """A term of the loss depends on parameters and is detached, while the other term is not."""
    for root in step.losses:
        waiting, seen = [root], set[int]()
        while waiting:
            call = step.flow.maker(waiting.pop())
            name = "" if call is None else read_op_name(call.op).name.rstrip("_")
            if call is None or call.id in seen or name not in _KEEPS_TERMS:
                continue
            seen.add(call.id)
            given = call.input_values()
            waiting += [value for _, value in given]
            terms = [(slot, value) for slot, value in given if value.numel == 1]
            sent = _sent(call)
            if name in _TERMS and sent:
                lost = [value for slot, value in terms if slot not in sent and len(terms) > 1]
                kept = {moment_of(value) for slot, value in terms if slot in sent}
                for value in lost + _numbers_of_parameters(step, call):
                    if not _is_made_of(step, value, kept):
                        yield from _detached(step, call, value)


def _numbers_of_parameters(step: StepFacts, call: Call) -> list[Value]:
    """Return the tensors whose number, as ``item()`` gave it to Python, a call is given as it is."""
    numbers = {one for one in call.inputs[0] if isinstance(one, float) and not one.is_integer()}
    found: dict[float, Value] = {}
    for shown in step.ops("_local_scalar_dense") if numbers else ():
        value = shown.input_values()[0][1]
        contents = step.contents(value) if shown.id < call.id else None
        if contents is not None and contents.finite and contents.low in numbers:
            found[contents.low] = value
    return list(found.values())


def _is_made_of(step: StepFacts, term: Value, kept: set[Moment]) -> bool:
    """Return True if a term is computed from another of the sum: then the sum has that one's gradient on purpose."""
    read = {moment_of(given) for call in step.behind([term]).values() for _, given in step.flow.reads(call)}
    return bool(kept & (read | {moment_of(term)}))


def _sent(call: Call) -> set[str]:
    """Return the inputs of a call that its backward sends a gradient for."""
    slots = {slot for node in call.backward if node.kind == "node" for slot, _ in node.output_values()}
    return {slot.replace("output", "input", 1) for slot in slots}


def _detached(step: StepFacts, call: Call, term: Value) -> Iterator[Found]:
    maker = step.flow.maker(term)
    if maker is not None and term.is_floating and _has_parameters(step, term):
        yield Found(
            call,
            f"a term of the loss has no gradient, though parameters are computed into it: it is detached after "
            f"{maker.name} ({maker.where})",
        )


def _has_parameters(step: StepFacts, value: Value) -> bool:
    """Return True if a value is computed from parameters that require grad, detached ones too."""
    read = (given for call in step.behind([value]).values() for _, given in step.flow.reads(call))
    return any(given.record.place in step.leaves for given in read)


def softmax_of_one(step: StepFacts) -> Iterator[Found]:
    """The softmax of the result of a layer with one output is always 1."""
    for call in step.ops(*_SOFTMAX):
        given, dim = _softmax_of(call)
        if given is None or not given.shape or given.shape[dim] != 1 or call.phase != "forward":
            continue
        layer = _through_views(step, given)
        made = "" if layer is None else read_op_name(layer.op).name
        is_last = made in _LINEAR and dim in (-1, len(given.shape) - 1)
        is_channel = made in _CONVOLUTIONS and dim % len(given.shape) == 1
        if layer is not None and (is_last or is_channel) and given.shape.numel() > 1:
            yield Found(
                call,
                f"softmax over dimension {dim} of {list(given.shape)}, which {layer.name} made with one output: "
                "the result is always 1, and the gradient 0",
            )


def softmax_twice(step: StepFacts) -> Iterator[Found]:
    """The logarithm of a softmax is taken of what a softmax made."""
    for call in step.ops("_log_softmax"):
        given, dim = _softmax_of(call)
        maker = _through_views(step, given) if given is not None else None
        if maker is None or call.phase != "forward" or given is None:
            continue
        first, first_dim = _softmax_of(maker) if read_op_name(maker.op).name in _SOFTMAX else (None, 0)
        if first is not None and _is_along(first, first_dim, given, dim, maker):
            yield Found(call, f"log_softmax of what {maker.name} ({maker.where}) has normalised: give it the logits")


def _is_along(first: Value, first_dim: int, given: Value, dim: int, maker: Call) -> bool:
    """Return True if a softmax that a call took along a dimension is taken once more along it, maybe in a view."""
    made = maker.output_values()[0][1]
    if made.storage == given.storage and given.storage:
        return made.shape[first_dim] == given.shape[dim] and made.stride[first_dim] == given.stride[dim]
    return first_dim % len(first.shape) - len(first.shape) == dim % len(given.shape) - len(given.shape)


def _softmax_of(call: Call) -> tuple[Value | None, int]:
    args = call.inputs[0]
    is_said = len(args) > 1 and isinstance(args[0], Value) and isinstance(args[1], int)
    return (args[0], args[1]) if is_said else (None, 0)


def _through_views(step: StepFacts, value: Value) -> Call | None:
    """Return the call that computed a value, behind views and casts."""
    maker = step.flow.maker(value)
    for _ in range(_DEEPEST):
        if maker is None or not (step.flow.is_view(maker) or read_op_name(maker.op).name in _VIEWS):
            break
        given = maker.input_values()
        maker = step.flow.maker(given[0][1]) if given else None
    return maker


def labels_outside(step: StepFacts) -> Iterator[Found]:
    """A label is none of the classes, and not the one that is ignored."""
    for call in step.ops("nll_loss_forward", "nll_loss2d_forward", "nll_loss", "nll_loss2d"):
        args = call.inputs[0]
        if call.phase != "forward" or len(args) < 5 or not all(isinstance(one, Value) for one in args[:2]):
            continue
        scores, labels, ignored = args[0], args[1], args[4]
        if not labels.has_data or not scores.shape:
            continue
        classes = scores.shape[1 if len(scores.shape) > 1 else 0]
        found = labels.shared_tensor()
        wrong = found[((found < 0) | (found >= classes)) & (found != ignored)]
        if wrong.numel():
            yield Found(call, f"{wrong.numel()} labels are none of the {classes} classes, the first {int(wrong[0])}")


def targets_outside(step: StepFacts) -> Iterator[Found]:
    """A target of binary cross entropy is no probability."""
    for call in step.ops("binary_cross_entropy_with_logits", "binary_cross_entropy"):
        args = call.inputs[0]
        if call.phase != "forward" or len(args) < 2 or not isinstance(args[1], Value):
            continue
        contents = step.contents(args[1])
        if contents is None or contents.low is None or contents.high is None:
            continue
        if contents.low < 0 or contents.high > 1:
            text = f"targets from {contents.low:.6g} to {contents.high:.6g}: they must be probabilities, 0 to 1"
            yield Found(call, f"binary cross entropy with {text}")


def broadcast_loss(step: StepFacts) -> Iterator[Found]:
    """A prediction [N, 1] and a target [N] make a matrix [N, N]."""
    for call in step.apis(*_PAIRED):
        pair = _two(call.inputs[0])
        if pair is not None and _makes_matrix(*pair):
            yield Found(call, _broadcast_text(*pair))
    for call in step.ops("sub"):
        pair = _two(call.inputs[0])
        if pair is None or call.phase != "forward" or not _makes_matrix(*pair) or call.id not in step.behind_loss:
            continue
        column, row = sorted(pair, key=lambda one: -len(one.shape))
        maker = step.flow.maker(column)
        is_layer = maker is not None and read_op_name(maker.op).name in _LINEAR
        if is_layer and not _has_parameters(step, row) and not any(_within_losses(call)):
            yield Found(call, _broadcast_text(*pair))


def _within_losses(call: Call) -> Iterator[Call]:
    around = call.parent
    while around is not None:
        if around.kind == "api" and around.op.rpartition(".")[2] in _PAIRED:
            yield around
        around = around.parent


def _two(args: tuple[Any, ...]) -> tuple[Value, Value] | None:
    is_pair = len(args) > 1 and isinstance(args[0], Value) and isinstance(args[1], Value)
    return (args[0], args[1]) if is_pair and args[0].is_floating and args[1].is_floating else None


def _makes_matrix(one: Value, other: Value) -> bool:
    shapes = sorted((list(one.shape), list(other.shape)), key=len)
    return len(shapes[0]) == 1 and len(shapes[1]) == 2 and shapes[1] == [shapes[0][0], 1] and shapes[0][0] > 1


def _broadcast_text(one: Value, other: Value) -> str:
    size = max(one.shape)
    return (
        f"{list(one.shape)} against {list(other.shape)} is broadcast to [{size}, {size}]: each prediction meets every "
        "target; squeeze the last dimension"
    )


RULES: Final = (
    Rule(
        "detached-term",
        "a term of the loss depends on parameters and is detached",
        ("aten",),
        detached_term,
    ),
    Rule("softmax-of-one", "softmax over the single output of a layer is always 1", ("aten",), softmax_of_one),
    Rule("softmax-twice", "cross entropy or log_softmax of what softmax has normalised", ("aten",), softmax_twice),
    Rule("labels-outside", "a label is none of the classes", ("aten", "bytes"), labels_outside),
    Rule(
        "targets-outside", "a target of binary cross entropy is no probability", ("aten", "contents"), targets_outside
    ),
    Rule("broadcast-loss", "a prediction [N, 1] and a target [N] make a loss of [N, N]", ("aten",), broadcast_loss),
)
