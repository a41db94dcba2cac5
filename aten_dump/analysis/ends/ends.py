"""The ends of a step, and which of them the other side has.

Theory of operation
    An end is right if the other side has a value of the same number; a gradient, if the gradient of that name has it.
    What a step leaves is memory from outside that it wrote, each buffer whole, however it is kept: one side may write
    in place what the other makes anew. Gradients are compared by name, so the memory that they lie in is no end of its
    own; neither is what the step itself goes on to read (a bucket, a staging buffer), the scale of the loss and the
    count of an optimizer's steps: these show in what is computed with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...dump import Value
from ..evaluation.evaluation import Evaluation
from ..flow.data_flow import DataFlow
from ..outcomes.left_memory import LeftMemory, LeftPlace
from ..outcomes.roots import roots_of

Kind = Literal["loss", "gradient", "left", "output"]


@dataclass(frozen=True, slots=True)
class End:
    """Something that a step is for."""

    kind: Kind
    name: str
    value: Value
    number: int | None


class Left:
    """The memory from outside that a step wrote, a buffer for each storage."""

    def __init__(self, flow: DataFlow) -> None:
        memory = LeftMemory(flow, read_data=False)
        places: dict[int, list[LeftPlace]] = {}
        for place in memory.places:
            places.setdefault(place.last.storage, []).append(place)
        self.buffers: list[tuple[Value, LeftPlace]] = []  # the whole buffer, and who wrote to it last
        for known in places.values():
            if any(_is_state(memory, place) for place in known):
                seen = [place.last for place in known]
                whole = max(seen, key=lambda v: v.numel)
                outer = [v for v in flow.of_moment(known[0].before) if not v.composed]
                larger = max(outer, key=lambda v: v.numel, default=whole)
                self.buffers.append((larger if larger.numel > whole.numel else whole, known[-1]))


def _is_state(memory: LeftMemory, place: LeftPlace) -> bool:
    return memory.outlives(place)


def ends_of(evaluation: Evaluation, left: Left) -> list[End]:
    """Return the ends of an evaluated step."""
    flow = evaluation.flow
    rank = flow.rank
    roots = roots_of(rank)
    found = [
        End("loss", f"loss {number}" if len(roots) > 1 else "loss", value, number_of(evaluation, value))
        for number, value in enumerate(roots)
    ]
    found += [End("gradient", name, value, number_of(evaluation, value)) for name, value in rank.gradients.items()]
    for value, place in left.buffers:
        number = evaluation.at_end.get(value.id)
        if number is not None and number != evaluation.numbers.get(place.before.id):
            found.append(End("left", place.writer.module or place.writer.name, place.last, number))
    return found or [*_outputs(evaluation)]


def number_of(evaluation: Evaluation, value: Value) -> int | None:
    """Return the number of a value, or of the value that its writer left."""
    found = evaluation.numbers.get(value.id)
    if found is None:
        writer = evaluation.flow.writer(value)
        found = None if writer is None else evaluation.numbers.get(writer[2].id)
    return found


def _outputs(evaluation: Evaluation) -> list[End]:
    """Return what the outermost modules returned; without modules, what calls made and nothing read."""
    flow = evaluation.flow
    found = []
    for call in flow.rank.calls.filter(kind="module"):
        if call.parent is None or call.parent.kind != "module":
            for slot, value in call.output_values():
                if not (value.undefined or value.opaque):
                    found.append(End("output", f"{call.name}.{slot}", value, number_of(evaluation, value)))
    if not found:
        read = {number for call in flow.calls() for _, number in call.input_slots()}
        for call in flow.calls():
            for slot, value in flow.results(call):
                if value.id not in read and value.id in evaluation.numbers:
                    found.append(End("output", f"{call.name}.{slot}", value, evaluation.numbers[value.id]))
    return found


def unmatched(
    target: list[End], baseline: list[End], sides: tuple[Evaluation, Evaluation]
) -> tuple[list[End], list[End]]:
    """Return the ends of either side that the other side does not have."""
    odd: tuple[list[End], list[End]] = ([], [])
    for side, ends in enumerate((target, baseline)):
        other = {end.name: end for end in (baseline, target)[side] if end.kind == "gradient"}
        holders = sides[1 - side].holders
        for end in ends:
            if end.number is None:
                continue
            if end.kind == "gradient" and end.name in other:
                if other[end.name].number not in (None, end.number):
                    odd[side].append(end)
            elif end.number not in holders:
                odd[side].append(end)
    return odd
