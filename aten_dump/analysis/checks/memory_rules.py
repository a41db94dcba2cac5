"""Rules about memory that is written where somebody still needs it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch

from ...dump import Call, Value
from ..rerun.shared_memory import extent
from .rule import Found, Rule
from .step_facts import StepFacts

_KEPT_BY_LAYER: Final = "running"  # statistics of batch norm: backward in training reads others


def saved_overwritten(step: StepFacts) -> Iterator[Found]:
    """What an op saved for backward is overwritten before backward reads it, unseen by autograd's version counters."""
    for record in step.rank.tables.saved:
        forward = step.rank.find(record.call)
        if forward is None:
            continue
        saved = {step.rank.value_by_id(number).record.place: step.rank.value_by_id(number) for number in record.values}
        for call in forward.backward:
            found = _overwritten(step, call, saved) if call.kind == "aten" else None
            if found is not None:
                writer, value = found
                yield Found(
                    writer,
                    f"it overwrites {list(value.shape)} that {forward.name} ({forward.where}) saved for backward, and "
                    f"{call.name} computes a gradient with what is there now: write to a copy, and not through .data",
                )
                break


def _overwritten(step: StepFacts, call: Call, saved: dict[tuple[object, ...], Value]) -> tuple[Call, Value] | None:
    for slot, value in call.input_values():
        before = saved.get(value.record.place)
        if before is None or not value.storage or value.version <= before.version:
            continue
        place = slot.split(".")[1]
        name = call.arguments[int(place)] if place.isdecimal() and int(place) < len(call.arguments) else ""
        writer = step.flow.writer(value)
        if name.startswith(_KEPT_BY_LAYER) or writer is None or writer[0].id > call.id:
            continue
        (low, high), (start, end) = extent(value), extent(writer[2])
        if low < end and start < high and same_elements(before, value) is False:
            return writer[0], value
    return None


def same_elements(one: Value, other: Value) -> bool | None:
    """Return True if two values have the same bits, None if neither hashes nor bytes show it."""
    if one.shape != other.shape or one.dtype_name != other.dtype_name:
        return False
    if one.hash is not None and other.hash is not None:
        return one.hash == other.hash
    if not one.has_data or not other.has_data:
        return None
    first, second = one.shared_tensor(), other.shared_tensor()
    if first.layout is not torch.strided or second.layout is not torch.strided:
        return None
    raw = [tensor.contiguous().view(-1).view(torch.uint8) for tensor in (first, second)]
    return torch.equal(*raw)


RULES: Final = (
    Rule(
        "saved-overwritten",
        "what an op saved for backward is overwritten through .data before backward reads it",
        ("aten", "bytes"),
        saved_overwritten,
    ),
)
