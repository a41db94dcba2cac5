"""Memory that only one side changes: if nothing before the write differs, the write is the cause."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ...dump import Call, Value
from ..ends.ends import End
from ..flow.data_flow import DataFlow
from ..flow.leaves import leaf_gradients, named_leaves
from .state_names import StateNames

SIDES: Final = ("target", "baseline")


def left_alone(
    odd: tuple[Sequence[End], Sequence[End]], flows: tuple[DataFlow, DataFlow]
) -> tuple[int, Call, str] | None:
    """Return the side and the call that alone changes memory, and a sentence; None if another end differs as well."""
    if not all(end.is_alone for ends in odd for end in ends):
        return None
    written = [(call, side, end.value) for side in (0, 1) for end in odd[side] if (call := _writer(flows[side], end))]
    if not written:
        return None
    call, side, value = min(written, key=lambda one: one[0].id)
    more = sum(one.id == call.id and at == side for one, at, _ in written) - 1
    name = f"{name_of(flows[side], value)} and {more} more" if more else name_of(flows[side], value)
    text = f"only the {SIDES[side]} changes {name}, there before the step; the {SIDES[1 - side]} has no such write"
    return side, call, text


def _writer(flow: DataFlow, end: End) -> Call | None:
    writer = flow.writer(end.value)
    return None if writer is None else writer[0]


def name_of(flow: DataFlow, value: Value) -> str:
    """Return a name for memory: that of a parameter, a buffer or optimizer state; for data, its dtype and shape."""
    found = StateNames(flow).of(value)
    return f"memory ({value.dtype_name}{list(value.shape)})" if found.group == "data" else found.name


def parameter_of(flow: DataFlow, value: Value) -> str:
    """Return the name of the parameter that a value is, or "" if it got no gradient."""
    leaves = named_leaves(flow, leaf_gradients(flow))
    return next((name for name, leaf in leaves.items() if leaf.record.place == value.record.place), "")
