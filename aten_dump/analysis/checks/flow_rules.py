"""Rules about where values go: choices that are the same everywhere, ratios that are floored, inputs without an end.

Theory of operation
    A router is a choice (an index) among scores that a trainable matrix made, which goes on into the loss together
    with the scores: other choices, such as predictions and labels, do not meet the scores that they were made of.
    An input is used if something that a loss, a result of a model, a number of Python's or a write depends on has
    read its memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import torch

from ...dump import Call, Value
from ...store.op_names import read_op_name
from ..rerun.shared_memory import Moment, moment_of
from .rule import Found, Rule
from .step_facts import StepFacts, calls_around

_CHOOSES: Final = ("topk", "max", "argmax", "sort", "argsort")
_FEWEST: Final = 16  # rows of which one may say that they all choose the same
_FLOORS: Final = ("floor_divide", "div")
_ARITHMETIC: Final = ("_to_copy", "mul", "div", "add", "sub", "rsub")
_PLACES: Final = ("arange", "argmax", "argmin", "topk", "nonzero", "sort")
_SHOWN_TO_PYTHON: Final = ("_local_scalar_dense", "is_nonzero", "equal", "nonzero")


def _name(call: Call) -> str:
    return read_op_name(call.op).name.rstrip("_")


# -- routers -----------------------------------------------------------------------------------------------------------


def dead_router(step: StepFacts) -> Iterator[Found]:
    """All rows choose the same of what a router scores."""
    for call in step.ops(*_CHOOSES):
        given = call.input_values()[:1]
        scores = given[0][1] if given else None
        is_forward = call.phase == "forward" and call.grad_enabled
        if scores is None or not is_forward or not scores.is_floating or len(scores.shape) < 2:
            continue
        count, rows = scores.shape[-1], scores.shape[:-1].numel()
        index = next((v for _, v in call.output_values() if v.dtype_name == "int64"), None)
        if index is None or count < 2 or rows < max(_FEWEST, 4 * count) or not index.has_data:
            continue
        alike = _scores_of_a_matrix(step, scores, count)
        chosen = _chosen(step, index, rows) if alike else None
        if chosen is not None and _meets(step, call, index, alike):
            yield Found(
                call,
                f"all {rows} rows choose {', '.join(map(str, chosen))} of {count}, whatever they hold: the other "
                "experts get no token and no gradient",
            )


def _chosen(step: StepFacts, index: Value, rows: int) -> list[int] | None:
    """Return what all rows choose, of the part of an index that the forward computes with; None if they differ."""
    for value in [*step.flow.of_moment(index)[::-1], index]:  # the narrowest part first
        readers = (call for call, _ in value.consumers if call.phase == "forward" and call.kind == "aten")
        if any(not step.flow.is_view(call) for call in readers) and value.has_data and value.numel % rows == 0:
            found = value.shared_tensor().reshape(rows, -1).sort(-1).values
            chosen: list[int] = found[0].tolist()
            return chosen if bool((found == found[0]).all()) else None
    return None


def _scores_of_a_matrix(step: StepFacts, scores: Value, count: int) -> set[Moment]:
    """Return the memory of all that is computed row by row of the scores that a trainable matrix made; {} if none."""
    value, made = scores, None
    for _ in range(16):
        made = step.flow.maker(value)
        reads = [] if made is None else [v for _, v in made.input_values() if v.is_floating]
        leaves = [v for v in reads if v.storage in step.parameters_read and len(v.shape) == 2 and count in v.shape]
        if made is None or leaves:
            break
        same = [v for v in reads if v.shape and v.shape[-1] == count]
        if not same:
            return set()
        value = same[0]
    if made is None:
        return set()
    found = {moment_of(v) for _, v in made.output_values()}
    for call in step.flow.calls():
        if call.id > made.id and call.phase == "forward" and any(moment_of(v) in found for _, v in call.input_values()):
            found |= {moment_of(v) for _, v in call.output_values() if v.is_floating and v.shape[-1:] == (count,)}
    return found


def _meets(step: StepFacts, call: Call, index: Value, alike: set[Moment]) -> bool:
    """Return True if what is made of an index meets the scores on the way into the loss, or their chosen part does."""
    found, scores = {moment_of(index)}, alike | {moment_of(v) for _, v in call.output_values() if v.is_floating}
    is_used = False
    for later in step.flow.calls():
        if later.id <= call.id or later.phase != "forward":
            continue
        reads = {moment_of(v) for _, v in later.input_values()}
        if not reads & found:
            continue
        is_used = is_used or later.id in step.into_loss
        if later.id in step.into_loss and later.backward and reads & scores:
            return True
        found |= {moment_of(v) for _, v in later.output_values()} - scores
    return is_used and bool(call.backward)


# -- ratios ------------------------------------------------------------------------------------------------------------


def floored_ratio(step: StepFacts) -> Iterator[Found]:
    """A part is divided by the whole with ``//``, and the loss is computed with the zeros that it comes to."""
    for call in step.ops(*_FLOORS):
        made = call.output_values()
        args = call.inputs[0]
        if call.phase != "forward" or len(args) < 2 or not made or made[0][1].is_floating:
            continue
        part, whole = (v.shared_tensor() if isinstance(v, Value) and v.has_data else v for v in args[:2])
        if not isinstance(part, torch.Tensor) or not isinstance(whole, (torch.Tensor, int)):
            continue
        is_part = bool(((part >= 0) & (part <= whole)).all()) and bool(((part > 0) & (part < whole)).any())
        if is_part and not _is_a_place(step, args[0]) and _is_computed_with(step, made[0][1]):
            yield Found(
                call,
                f"a share of {int(part.max())} in {int(torch.as_tensor(whole).max())} is floored to 0, and the loss is "
                "computed with it: divide by / for a fraction",
            )


def _is_a_place(step: StepFacts, part: Value) -> bool:
    """Return True if a number is a place that is split into row and column, or is made of places."""
    waiting, seen = [part], set[int]()
    while waiting:
        value = waiting.pop()
        maker = step.flow.maker(value)
        if maker is None or maker.id in seen:
            continue
        seen.add(maker.id)
        if _name(maker) in _PLACES:
            return True
        if step.flow.is_view(maker) or _name(maker) in _ARITHMETIC:
            waiting += [given for _, given in maker.input_values()]
    remainders = (v for call in step.ops("remainder") for _, v in call.input_values())
    return any(moment_of(value) == moment_of(part) for value in remainders)


def _is_computed_with(step: StepFacts, quotient: Value) -> bool:
    """Return True if a quotient becomes a floating number that the loss is computed with."""
    found = {moment_of(quotient)}
    for call in step.flow.calls():
        if call.phase != "forward" or not any(moment_of(v) in found for _, v in call.input_values()):
            continue
        if not step.flow.is_view(call) and _name(call) not in _ARITHMETIC:
            continue
        made = [value for _, value in call.output_values()]
        if call.id in step.into_loss and any(value.is_floating for value in made):
            return True
        found |= {moment_of(value) for value in made}
    return False


# -- inputs ------------------------------------------------------------------------------------------------------------


def unused_input(step: StepFacts) -> Iterator[Found]:
    """A model is given a tensor, and neither loss nor results depend on it."""
    outermost = [
        call
        for call in step.rank.calls.filter(kind="module", phase="forward")
        if call.backward and not any(one.kind == "module" for one in calls_around(call))
    ]
    if any("local" in (record.extra or {}) for record in step.rank.tables.values.records()):
        return  # what runs on the parts of a DTensor is not known to read the whole
    needed = _needed(step, outermost) if outermost else {}
    for call in outermost:
        args, kwargs = call.inputs
        given: list[tuple[object, Any]] = [*enumerate(args, 1), *kwargs.items()]
        returned = {value.storage for _, value in call.output_values()}
        for name, value in given:
            if not isinstance(value, Value) or value.opaque or not value.storage or value.storage in returned:
                continue
            readers = needed.get(value.storage, ())
            if any(call in calls_around(reader) for reader in readers) or _is_named_causal(step, call, value):
                continue
            yield Found(
                call,
                f"argument {name} of {call.op.rpartition('.')[2]}, {list(value.shape)}, changes nothing: no result of "
                "the model, loss or branch depends on it",
            )


def _is_named_causal(step: StepFacts, module: Call, mask: Value) -> bool:
    """Return True if a value may be the causal mask that attention makes of itself, as it is given ``is_causal``."""
    is_square = len(mask.shape) == 2 and mask.shape[0] == mask.shape[1]
    for call in step.rank.calls if is_square else ():
        args, kwargs = call.inputs
        given = dict(zip(call.arguments, args, strict=False)) | kwargs
        if given.get("is_causal") is True and module in calls_around(call):
            return True
    return False


def _needed(step: StepFacts, outermost: Iterable[Call]) -> dict[int, list[Call]]:
    """Return the calls that ends of the step depend on, by the storages that they read."""
    ends = [*step.losses, *(value for call in outermost for _, value in call.output_values())]
    calls = step.behind(ends, of_all_types=True)
    asked = []
    for call in step.rank.calls:
        is_alone = call.kind == "api" and call.phase == "forward" and not call.children
        if is_alone or (call.kind == "aten" and (call.mutated or _name(call) in _SHOWN_TO_PYTHON)):
            calls[call.id] = call
            asked += [value for _, value in call.input_values()]
    calls |= step.behind(asked, of_all_types=True)
    found: dict[int, list[Call]] = {}
    for call in calls.values():
        for _, value in call.input_values():
            found.setdefault(value.storage, []).append(call)
    return found


RULES: Final = (
    Rule("dead-router", "all tokens choose the same experts of a router", ("aten", "bytes"), dead_router),
    Rule("floored-ratio", "a part is divided by the whole with // and comes to 0", ("aten", "bytes"), floored_ratio),
    Rule(
        "unused-input",
        "a model is given a tensor that neither its results nor the loss depend on",
        ("whole", "aten", "api"),
        unused_input,
    ),
)
