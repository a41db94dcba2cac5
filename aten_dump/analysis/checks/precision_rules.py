"""Rules about numbers that bfloat16 and float16 cannot hold."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import torch

from ...dump import Call, Value
from ...errors import FormatError, MissingDataError, ReplayError
from ...store.op_names import read_op_name
from ..rerun.run_op import result_slots, run_call
from .rule import Found, Rule
from .step_facts import StepFacts

_HALF: Final = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_TURN: Final = 0.25  # radians that an angle may be off by rounding
_DEEPEST: Final = 12
_HANDS_ON: Final = frozenset(  # ops whose result is as inexact as what they are given
    (
        "view",
        "_unsafe_view",
        "expand",
        "slice",
        "alias",
        "detach",
        "_to_copy",
        "clone",
        "unsqueeze",
        "squeeze",
        "transpose",
    )
) | frozenset(("t", "permute", "select", "cat", "mul", "div", "neg", "bmm", "mm", "reshape", "repeat", "copy"))
_ADDS_UP: Final = (
    "index_put",
    "_index_put_impl",
    "embedding_dense_backward",
    "index_add",
    "scatter_add",
    "scatter_reduce",
    "cumsum",
    "sum",
)
_MANY: Final = 256  # terms, which bfloat16 can count
_LOST: Final = 1 / 8  # of a sum
_INDEXES: Final = (
    *("embedding", "_embedding_bag", "_embedding_bag_forward_only", "index", "index_select", "gather", "take"),
    *("index_put", "scatter", "index_add"),
)


def half_angle(step: StepFacts) -> Iterator[Found]:
    """A sine or cosine of an angle that half precision has rounded away."""
    for call in step.ops("sin", "cos"):
        value = call.input_values()[0][1] if call.input_values() else None
        contents = None if value is None or call.phase != "forward" else step.contents(value)
        if value is None or contents is None or contents.low is None or contents.high is None:
            continue
        size = max(abs(contents.low), abs(contents.high))
        inexact = _inexact(step, value, size)
        if inexact is not None:
            off = size * torch.finfo(_HALF[inexact.dtype_name]).eps / 2
            yield Found(
                call,
                f"angles up to {size:.4g} come of {inexact.dtype_name} numbers, and are up to {off:.2g} radians off: "
                "keep frequencies and positions in float32",
            )


def _inexact(step: StepFacts, value: Value, size: float) -> Value | None:
    """Return the half-precision value whose rounding moves an angle of a size, of those that it is computed of."""
    waiting, seen = [(value, 0)], {value.id}
    while waiting:
        one, depth = waiting.pop()
        dtype = _HALF.get(one.dtype_name)
        if dtype is not None and size * torch.finfo(dtype).eps / 2 >= _TURN and not _is_whole(one):
            return one
        maker = step.flow.maker(one)
        if maker is None or depth == _DEEPEST or read_op_name(maker.op).name not in _HANDS_ON:
            continue
        for _, given in step.flow.reads(maker):
            if given.is_floating and given.id not in seen:
                seen.add(given.id)
                waiting.append((given, depth + 1))
    return None


def _is_whole(value: Value) -> bool:
    """Return True if all elements are whole numbers that the dtype holds exactly, or nobody knows."""
    if not value.has_data:
        return True
    found = value.shared_tensor().double()
    limit = 2 / torch.finfo(value.dtype).eps
    return bool((found == found.round()).all() and (found.abs() <= limit).all())


def half_index(step: StepFacts) -> Iterator[Found]:
    """An index that went through half precision, which has no odd numbers there."""
    indexes = {value.id: call for call in step.ops(*_INDEXES) for _, value in call.input_values()}
    for call in step.ops("_to_copy"):
        given, made = call.input_values(), call.output_values()
        if not given or not made or made[0][1].dtype_name not in ("int64", "int32"):
            continue
        dtype = _HALF.get(given[0][1].dtype_name)
        contents = None if dtype is None else step.contents(given[0][1])
        if dtype is None or contents is None or contents.high is None:
            continue
        limit = 2 / torch.finfo(dtype).eps
        reader = next((indexes[v.id] for v in _shown(step, made[0][1]) if v.id in indexes), None)
        if contents.high > limit and reader is not None:
            yield Found(
                call,
                f"{reader.name} is given indices up to {contents.high:.6g} that went through {given[0][1].dtype_name}, "
                f"which holds every whole number up to {limit:.0f} only: make them of integers",
            )


def _shown(step: StepFacts, value: Value) -> Iterator[Value]:
    waiting, seen = [value], {value.id}
    while waiting:
        one = waiting.pop()
        yield one
        for call, _ in one.consumers:
            if call.kind == "aten" and step.flow.is_view(call):
                waiting += [v for _, v in call.output_values() if v.id not in seen]
                seen |= {v.id for _, v in call.output_values()}


def sum_stalls(step: StepFacts) -> Iterator[Found]:
    """A running sum or a counter in half precision that no longer changes."""
    for call in step.ops("add"):
        if call.phase != "forward" or call.sequence_nr is not None or not call.record.args:
            continue
        given = call.input_values()
        if not given or given[0][0] != "input.0" or given[0][1].dtype_name not in _HALF:
            continue
        before = given[0][1]
        after = (call.written_values() or call.output_values())[:1]
        is_sum = bool(call.mutated) or _is_total(step, call, before)
        if is_sum and after and _adds_something(step, call) and _is_same(before, after[0][1]):
            yield Found(
                call,
                f"a running sum in {before.dtype_name} stays what it is, though something is added: keep it in "
                "float32, or count in integers",
            )


def half_sum(step: StepFacts) -> Iterator[Found]:
    """A result in half precision to which many terms were added one by one, far from their sum."""
    for call in step.ops(*_ADDS_UP):
        made = [(slot, value) for slot, value in call.result_values() if value.dtype_name in _HALF and value.has_data]
        terms = max((value.numel for _, value in call.input_values() if value.dtype_name in _HALF), default=0)
        if not made or terms < _MANY:
            continue
        try:
            run = run_call(call, cast=True, device=torch.device("cpu"))
        except (ReplayError, MissingDataError, FormatError):
            continue
        exact = dict(result_slots(run))
        for slot, value in made[:1]:
            error = _relative_error(value.shared_tensor(), exact.get(slot))
            if error is not None and error > _LOST:
                yield Found(
                    call,
                    f"its terms are added one by one in {value.dtype_name}, and {error:.0%} of the sum is lost: add "
                    "in float32",
                )


def _relative_error(found: torch.Tensor, exact: object) -> float | None:
    """Return the greatest error of an element, relative to the greatest element."""
    if not isinstance(exact, torch.Tensor) or exact.shape != found.shape or not torch.isfinite(found).all():
        return None
    greatest = float(exact.abs().max())
    return float((found.double() - exact).abs().max()) / greatest if 0 < greatest < math.inf else None


def _is_total(step: StepFacts, call: Call, value: Value) -> bool:
    """Return True if tensors are added up in a number: ``total = total + loss``."""
    maker = step.flow.maker(value)
    is_one = value.numel == 1 and len(call.input_values()) == 2
    return is_one and (maker is None or read_op_name(maker.op).name.rstrip("_") == "add")


def _adds_something(step: StepFacts, call: Call) -> bool:
    other = call.inputs[0][1] if len(call.inputs[0]) > 1 else None
    if isinstance(other, Value):
        found = step.contents(other)
        if found is None or not other.is_floating or not found.finite or found.low is None or found.high is None:
            return False
        return found.low > 0 or found.high < 0
    return isinstance(other, (int, float)) and other != 0 and math.isfinite(other)


def _is_same(before: Value, after: Value) -> bool:
    if not before.has_data or not after.has_data:
        return False
    one, other = before.shared_tensor(), after.shared_tensor()
    return bool(torch.isfinite(one).all() and (one != 0).all() and torch.equal(one, other))


def update_stalls(step: StepFacts) -> Iterator[Found]:
    """An optimizer's step leaves a parameter in half precision bitwise as it was, though it has a gradient."""
    for name, (leaf, _) in step.named.items():
        applied = step.applied(name)
        if leaf.dtype_name not in _HALF or not applied or not leaf.storage:
            continue
        written = [v for c in applied[-1].calls for _, v in c.written_values() if v.record.place == leaf.record.place]
        gradient = step.contents(step.rank.gradients[name])
        is_zero = gradient is None or not (gradient.low or gradient.high)
        if written and not is_zero and _is_same(leaf, written[-1]):
            text = f"its update is below the rounding of {leaf.dtype_name}"
            yield Found(applied[-1].begins, f"the step leaves {name} bitwise as it was: {text}")


RULES: Final = (
    Rule(
        "half-angle",
        "a sine or cosine of an angle that half precision has rounded away",
        ("aten", "contents"),
        half_angle,
    ),
    Rule("half-index", "an index that went through half precision", ("aten", "contents"), half_index),
    Rule(
        "half-sum",
        "many terms are added one by one in half precision, and a part of their sum is lost",
        ("aten", "bytes"),
        half_sum,
    ),
    Rule("sum-stalls", "a running sum in half precision that no longer changes", ("aten", "bytes"), sum_stalls),
    Rule(
        "update-stalls",
        "an optimizer's step that half precision rounds away",
        ("aten", "bytes"),
        update_stalls,
        is_default=False,
    ),
)
