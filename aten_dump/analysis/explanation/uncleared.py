"""Gradients that one side adds to those of the step before, because it did not clear them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ...dump import Call, Value
from ..ends.ends import End
from ..evaluation.evaluation import Evaluation
from ..flow.data_flow import DataFlow
from ..flow.leaves import ACCUMULATES
from .left_alone import SIDES

_CLEARS: Final = "zero_grad"  # the profiler's name for an optimizer that clears gradients
_RANGE: Final = "profiler::_record_function_enter"


@dataclass(frozen=True, slots=True)
class Uncleared:
    """A gradient that was not cleared."""

    target: Call | None  # the call that adds to it, or clears it; None if the program clears it without its optimizer
    baseline: Call | None  # the call that does the other of these
    text: str


def uncleared(
    sides: tuple[Evaluation, Evaluation], ends: tuple[Sequence[End], Sequence[End]], odd: tuple[Sequence[End], ...]
) -> Uncleared | None:
    """Return the first gradient that only one side adds to an older one, if both sides computed the same gradient."""
    for side in (0, 1):
        flow, other = sides[side].flow, sides[1 - side].flow
        theirs = {end.name: end for end in ends[1 - side] if end.is_named}
        found = []
        for end in odd[side]:
            added, match = _added(flow, end), theirs.get(end.name)
            if added is None or match is None or _added(other, match) is not None:
                continue
            if match.number is not None and sides[side].numbers.get(added[1].id) == match.number:
                found.append((added[0].id, added[0], end.name))
        if found:
            _, call, name = min(found)
            more = f" and {len(found) - 1} more" if len(found) > 1 else ""
            text = (
                f"the {SIDES[side]} adds the gradient of {name}{more} to what was there before the step, the "
                f"{SIDES[1 - side]} clears it first"
            )
            clears = _clearing(other)
            return Uncleared(clears, call, text) if side else Uncleared(call, clears, text)
    return None


def _added(flow: DataFlow, end: End) -> tuple[Call, Value] | None:
    """Return the call that added a gradient to one of the step before, and the gradient that it added."""
    writer = flow.writer(end.value)
    call = None if writer is None or not end.is_named else writer[0]
    if call is None or call.parent is None or not call.parent.op.endswith(ACCUMULATES):
        return None
    read = [value for _, value in flow.reads(call)]
    old = [v for v in read if not v.undefined and flow.writer(v) is None and flow.maker(v) is None]
    new = [value for value in read if value not in old]
    return (call, new[0]) if len(old) == len(new) == 1 else None


def _clearing(flow: DataFlow) -> Call | None:
    """Return the call at which an optimizer clears gradients."""
    for call in flow.calls():
        if call.op.startswith(_RANGE) and any(_CLEARS in str(given) for given in call.record.args):
            return call
    return None
