"""Memory that one side reads before anything writes to it, and the other side after."""

from __future__ import annotations

from ...dump import Call
from ..cone.cone import Cone
from ..evaluation.evaluation import Evaluation

_TEXTS = (
    "it reads memory that was not written, in the baseline it was",
    "it reads memory that was written, in the baseline it was not",
)


def unwritten(sides: tuple[Evaluation, Evaluation], cones: tuple[Cone, Cone]) -> tuple[Call, Call, str, str] | None:
    """Return the first calls of both sides of which only one reads unwritten memory, a sentence and the slot."""
    for side in (0, 1):
        for _, call in sorted(cones[side].calls.items()):
            slot = next((slot for slot, value in sides[side].flow.reads(call) if sides[side].depends(value)), None)
            if slot is None:
                continue
            for other in sides[1 - side].flow.calls():
                if other.op == call.op and _is_given_more(sides, side, (call, other), slot):
                    return (other, call, _TEXTS[1], slot) if side else (call, other, _TEXTS[0], slot)
            break
    return None


def _is_given_more(sides: tuple[Evaluation, Evaluation], side: int, calls: tuple[Call, Call], slot: str) -> bool:
    """Return True if the other side's call reads the same, except in a slot, where it reads written memory."""
    ours, theirs = dict(sides[side].flow.reads(calls[0])), dict(sides[1 - side].flow.reads(calls[1]))
    if ours.keys() != theirs.keys() or sides[1 - side].depends(theirs[slot]):
        return False
    numbers = ((sides[side].number_of(ours[name]), sides[1 - side].number_of(theirs[name])) for name in ours)
    return all(one == other for (one, other), name in zip(numbers, ours, strict=True) if name != slot)
