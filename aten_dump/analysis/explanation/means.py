"""Finds gradients of leaves, losses and outputs that are no ends of the step, but only lead to other ends.

Theory of operation
    A program may cut its graph in two: it makes a leaf of a result, and later continues with the gradient of the leaf
    (a loss by chunks, a checkpointed block). A side that does not cut has no such gradient. If other ends rest on the
    gradient, they show any difference. A leaf that the step itself made may be no leaf on the other side, which then
    has no gradient for it; that is a difference only if the other side cuts the gradient off.
    A program may compute with the gradients of a loss (a penalty on slopes). The loss has no counterpart if the other
    side gets the same slopes in another way.
    In an inference, outputs may have rows in another order, or padding that does not count. This is no difference if
    what the program computes from them is the same. Only floating-point results prove that: a token or an accuracy
    shows too little of the output.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...dump import Call, Value
from ..cone.cone import Cone, cone_of
from ..ends.ends import End, is_of_leaf, made_besides, taken_besides
from ..evaluation.evaluation import Evaluation
from ..flow.last_reads import LastReads
from ..flow.roots import gradients_asked
from .cut_gradients import CutGradients

Ends = tuple[list[End], list[End]]
Sides = tuple[Evaluation, Evaluation]


def without_means(odd: Ends, ends: Ends, sides: Sides) -> Ends:
    """Return the ends that differ, without those that only lead to other ends."""
    means = _means(0, odd, ends, sides), _means(1, odd, ends, sides)
    return [end for end in odd[0] if end not in means[0]], [end for end in odd[1] if end not in means[1]]


def _means(side: int, odd: Ends, ends: Ends, sides: Sides) -> list[End]:
    evaluation = sides[side]
    asked = [end for end in odd[side] if is_of_leaf(end)]
    within = [end for end in asked if end.leaf is not None and evaluation.flow.maker(end.leaf) is not None]
    unknown = [end for end in asked if end.leaf is None]
    within = [end for end in within if not _has_leaf(end, side, ends, sides)]
    later = [end.leaf for end in ends[1 - side] if is_of_leaf(end) and end.leaf is not None]
    followed = [end for end in within if any(_is_made_of(leaf, end, side, sides) for leaf in later)]
    within = [end for end in within if end not in followed]
    if within and _is_cut(within, side, ends, sides):
        within = [end for end in within if not _is_cut([end], side, ends, sides)]
    asked_for = _asked(side, odd, ends, evaluation)
    return [*_serving(unknown, ends[side], evaluation), *followed, *within, *asked_for, *_read_on(side, odd, sides)]


def _is_made_of(leaf: Value, end: End, side: int, sides: Sides) -> bool:
    """Return True if the other side makes a leaf of what the leaf of an end is: its backward goes on to that one."""
    other = sides[1 - side]
    number = None if end.leaf is None else sides[side].numbers.get(end.leaf.id)
    waiting, seen = [leaf], set()
    while waiting:
        maker = other.flow.maker(waiting.pop())
        if maker is not None and maker.id not in seen:
            seen.add(maker.id)
            waiting += [value for _, value in other.flow.reads(maker)]
            if any(other.numbers.get(value.id) == number for _, value in other.flow.reads(maker)):
                return number is not None
    return False


def _read_on(side: int, odd: Ends, sides: Sides) -> list[End]:
    """Return the outputs from which a side makes results that the other side has."""
    lost = [end for end in odd[side] if end.kind == "output" and end.call]
    if not lost or any(end.value.is_floating for some in taken_besides(sides) for end in some):
        return []
    made = [[end.value for end in made_besides(one) if end.value.is_floating] for one in sides]
    if not all(made):
        return []
    flow, numbers = sides[side].flow, sides[side].numbers
    whole = {number for value, number in numbers.items() if not flow.rank.value_by_id(value).is_floating}
    behind, reads = cone_of(sides[side], whole, made[side]).calls, LastReads(flow)

    def is_read_on(end: End) -> bool:
        return reads.is_read(end.value, lambda call: call.id in behind and not _is_within(call, end.call))

    return [end for end in lost if is_read_on(end)]


def _is_within(call: Call | None, outer: int) -> bool:
    while call is not None and call.id != outer:
        call = call.parent
    return call is not None


def _asked(side: int, odd: Ends, ends: Ends, evaluation: Evaluation) -> list[End]:
    """Return the losses of only one side whose gradients lead to another end."""
    lost = [end for end in odd[side] if end.kind == "loss"]
    counts = [sum(end.kind == "loss" for end in some) for some in ends]
    if not lost or counts[side] <= counts[1 - side]:
        return []
    known = {end.value.id for end in lost}
    starts = [end.value for end in ends[side] if end.kind in ("loss", "gradient") and end.value.id not in known]
    behind, reads = cone_of(evaluation, (), starts).calls, LastReads(evaluation.flow)
    gradients = gradients_asked(evaluation.flow.rank)
    return [
        end
        for end in lost
        if any(reads.is_read(one, lambda call: call.id in behind) for one in gradients.get(end.value.id, ()))
    ]


def _serving(asked: Sequence[End], ends: Sequence[End], evaluation: Evaluation) -> list[End]:
    """Return those of some gradients that lead to a loss or another gradient."""
    if not asked:
        return []
    starts = [end.value for end in ends if end.kind in ("loss", "gradient") and end not in asked]
    behind, reads = cone_of(evaluation, (), starts).calls, LastReads(evaluation.flow)
    return [end for end in asked if reads.is_read(end.value, lambda call: call.id in behind)]


def _has_leaf(end: End, side: int, ends: Ends, sides: Sides) -> bool:
    """Return True if the other side has a gradient of the same leaf, or of an unknown one."""
    number = sides[side].numbers.get(end.leaf.id) if end.leaf is not None else None
    others = [other.leaf for other in ends[1 - side] if is_of_leaf(other)]
    return any(leaf is None or sides[1 - side].numbers.get(leaf.id) == number for leaf in others)


def _is_cut(lost: list[End], side: int, ends: Ends, sides: Sides) -> bool:
    """Return True if the other side cuts off one of some gradients."""
    cone = cone_of(sides[side], sides[1 - side].holders, [end.value for end in lost])
    cones, odd = ((Cone(), cone), ([], lost)) if side else ((cone, Cone()), (lost, []))
    return CutGradients(sides, ends).find(cones, odd) is not None
