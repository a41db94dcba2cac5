"""Gradients of leaves, losses and outputs that are means to another end of the step, and no ends of their own.

Theory of operation
    A program may cut its graph in two: it makes a leaf of what it computed, and goes on with the leaf's gradient from
    there (a loss by chunks, a block that is checkpointed). Where the other side does not cut, it has no such gradient.
    What other ends rest on shows in them. A leaf that the step itself made has no gradient on the other side if it is
    no leaf there; that is a difference where the other side cuts it off.
    A loss of which the program asks gradients to compute with (a penalty on slopes) has no counterpart where the other
    side finds the same slopes otherwise.
    Of an inference, what the program goes on to make of an output shows what it is for: if that is the same on both
    sides, rows in another order or padding that nothing counts are no difference. What was chosen by an output (a
    token, an accuracy) shows too little of it, so only floating numbers are followed.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...dump import Call
from ..cone.cone import Cone, cone_of
from ..ends.ends import End, is_of_leaf, made_besides, taken_besides
from ..evaluation.evaluation import Evaluation
from ..flow.last_reads import LastReads
from ..flow.roots import gradients_asked
from .cut_gradients import CutGradients

Ends = tuple[list[End], list[End]]
Sides = tuple[Evaluation, Evaluation]


def without_means(odd: Ends, ends: Ends, sides: Sides) -> Ends:
    """Return ends that differ, of the ends of both sides, without those that are means to other ends."""
    means = _means(0, odd, ends, sides), _means(1, odd, ends, sides)
    return [end for end in odd[0] if end not in means[0]], [end for end in odd[1] if end not in means[1]]


def _means(side: int, odd: Ends, ends: Ends, sides: Sides) -> list[End]:
    evaluation = sides[side]
    asked = [end for end in odd[side] if is_of_leaf(end)]
    within = [end for end in asked if end.leaf is not None and evaluation.flow.maker(end.leaf) is not None]
    unknown = [end for end in asked if end.leaf is None]
    within = [end for end in within if not _has_leaf(end, side, ends, sides)]
    if within and _is_cut(within, side, ends, sides):
        within = [end for end in within if not _is_cut([end], side, ends, sides)]
    asked_for = _asked(side, odd, ends, evaluation)
    return [*_serving(unknown, ends[side], evaluation), *within, *asked_for, *_read_on(side, odd, sides)]


def _read_on(side: int, odd: Ends, sides: Sides) -> list[End]:
    """Return the outputs of which a side makes other results, which the other side has."""
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
    """Return the losses of one side alone whose gradients it goes on to compute with, towards another end."""
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
    """Return those of some gradients that the step goes on to compute with, towards a loss or another gradient."""
    if not asked:
        return []
    starts = [end.value for end in ends if end.kind in ("loss", "gradient") and end not in asked]
    behind, reads = cone_of(evaluation, (), starts).calls, LastReads(evaluation.flow)
    return [end for end in asked if reads.is_read(end.value, lambda call: call.id in behind)]


def _has_leaf(end: End, side: int, ends: Ends, sides: Sides) -> bool:
    """Return True if the other side has a gradient of the same leaf, or of one that nobody knows."""
    number = sides[side].numbers.get(end.leaf.id) if end.leaf is not None else None
    others = [other.leaf for other in ends[1 - side] if is_of_leaf(other)]
    return any(leaf is None or sides[1 - side].numbers.get(leaf.id) == number for leaf in others)


def _is_cut(lost: list[End], side: int, ends: Ends, sides: Sides) -> bool:
    """Return True if the other side cuts off one of some gradients."""
    cone = cone_of(sides[side], sides[1 - side].holders, [end.value for end in lost])
    cones, odd = ((Cone(), cone), ([], lost)) if side else ((cone, Cone()), (lost, []))
    return CutGradients(sides, ends).find(cones, odd) is not None
