"""The ends of a step, and which of them the other side has.

Theory of operation
    An end is right if the other side has a value of the same number; a gradient, if the gradient of that name has it.
    A gradient of a parameter that stands for one without a gradient is none that the other side has. What the program
    made of a gradient before the optimizer took it (scaled, clipped) is an end as well. An inference without outputs
    is for the numbers that were read of it.
    What a step leaves is memory from outside that it wrote, each buffer whole, however it is kept: one side may write
    in place what the other makes anew. Gradients are compared by name, so the memory that they lie in is no end of its
    own; neither is what the step itself goes on to read (a bucket, a staging buffer), the scale of the loss and the
    count of an optimizer's steps: these show in what is computed with them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ...dump import Value
from ..evaluation.evaluation import Evaluation
from ..flow.data_flow import DataFlow
from ..flow.leaves import accumulations, leaf_gradients
from ..outcomes.left_memory import LeftMemory, LeftPlace
from ..outcomes.roots import roots_of
from ..signatures.signature import is_same

Kind = Literal["loss", "gradient", "left", "output", "read"]


_AS_LEFT: Final = " as it was left"


@dataclass(frozen=True, slots=True)
class End:
    """Something that a step is for."""

    kind: Kind
    name: str
    value: Value
    number: int | None
    buffer: Value | None = None  # of what was left: the whole memory
    leaf: Value | None = None  # of a gradient: what it is the gradient of
    is_named: bool = False  # it is the gradient of a parameter


class Left:
    """The memory from outside that a step wrote, a buffer for each storage; and its gradients.

    Attributes:
        buffers: each whole buffer, and who wrote to it last.
        leaves: what gradients are of, by the name of the gradient, as far as that is told.
        changed: gradients that the program changed after the backward, as the optimizer got them, by name.
    """

    def __init__(self, flow: DataFlow) -> None:
        self.leaves = _leaves(flow)
        self.changed = _changed_gradients(flow)
        memory = LeftMemory(flow, read_data=False)
        places: dict[int, list[LeftPlace]] = {}
        for place in memory.places:
            places.setdefault(place.last.storage, []).append(place)
        self.buffers: list[tuple[Value, LeftPlace]] = []
        for known in places.values():
            if any(_is_state(memory, place) for place in known):
                before = known[0].before
                seen = [before, *(v for v in flow.of_moment(before) if not v.composed)]
                self.buffers.append((max(seen, key=lambda v: v.numel), known[-1]))


def _is_state(memory: LeftMemory, place: LeftPlace) -> bool:
    return memory.outlives(place)


def ends_of(evaluation: Evaluation, left: Left) -> list[End]:
    """Return the ends of an evaluated step."""
    rank = evaluation.flow.rank
    roots = roots_of(rank)
    found = [
        End("loss", f"loss {number}" if len(roots) > 1 else "loss", value, number_of(evaluation, value))
        for number, value in enumerate(roots)
    ]
    for name, value in (*rank.gradients.items(), *_leaf_gradients(evaluation.flow)):
        number, leaf = number_of(evaluation, value), left.leaves.get(name)
        found.append(End("gradient", name, value, number, leaf=leaf, is_named=name in rank.gradients))
    for name, values in left.changed.items():
        kept = [value for value in values if not _is_dropped(evaluation, value)]
        if kept:
            found.append(End("gradient", name + _AS_LEFT, kept[-1], evaluation.numbers.get(kept[-1].id)))
    for value, place in left.buffers:
        number = evaluation.at_end.get(value.id)
        if number is not None and number != evaluation.numbers.get(place.before.id):
            found.append(End("left", place.writer.module or place.writer.name, place.last, number, value))
    return found or [*_outputs(evaluation)]


def _leaves(flow: DataFlow) -> dict[str, Value]:
    """Return the leaves that gradients are of, by the names of their ends."""
    known = leaf_gradients(flow)
    found = {record.name: known[record.call].leaf for record in flow.rank.tables.gradients if record.call in known}
    for call in accumulations(flow):
        if call.id in known:
            found |= {f"{call.name}.{slot}": known[call.id].leaf for slot, _ in call.input_values()}
    return found


def _changed_gradients(flow: DataFlow) -> dict[str, list[Value]]:
    """Return what calls other than the optimizer's made of gradients after the backward, by name, in order.

    What the optimizer reads is among it, and what nobody reads. What else the program computes with shows there.
    """
    names = {value.record.place: (name, value) for name, value in flow.rank.gradients.items() if value.storage}
    found: dict[str, list[Value]] = {}
    for record in flow.rank.tables.values.records() if names else ():
        name, gradient = names.get(record.place, ("", None))
        if gradient is not None and record.version > gradient.version:
            value = flow.rank.value_by_id(record.id)
            writer = flow.writer(value)
            if writer is not None and writer[0].phase != "optimizer":
                found.setdefault(name, []).append(value)
    readers = _phases_of_readers(flow) if found else {}
    is_end = {
        value.id: "optimizer" in phases or not phases
        for values in found.values()
        for value in values
        for phases in [readers.get((value.storage, value.version), set())]
    }
    kept = {name: [value for value in values if is_end[value.id]] for name, values in found.items()}
    return {name: sorted(values, key=lambda value: value.version) for name, values in kept.items()}


def _phases_of_readers(flow: DataFlow) -> dict[tuple[int, int], set[str]]:
    """Return in which phases calls compute with the memory of each moment."""
    found: dict[tuple[int, int], set[str]] = {}
    for call in flow.calls():
        if flow.results(call):
            for _, value in flow.reads(call):
                found.setdefault((value.storage, value.version), set()).add(call.phase)
    return found


def _is_dropped(evaluation: Evaluation, value: Value) -> bool:
    """Return True if a gradient was set to zero, or nothing is known of it."""
    signature = evaluation.signatures.get(value.id)
    return signature is None or (signature.norm == 0 and not signature.nonfinite)


def wanted_of(flow: DataFlow) -> set[int]:
    """Return the ids of the values that may be ends: losses, gradients, what the outermost modules returned."""
    found = [*roots_of(flow.rank), *flow.rank.gradients.values()]
    found += [value for _, value in (*_leaf_gradients(flow), *_returned(flow))]
    return {value.id for value in found}


def _leaf_gradients(flow: DataFlow) -> Iterator[tuple[str, Value]]:
    """Yield what was accumulated into leaves that have no name: tensors that require grad, and are no parameters."""
    named = {record.call for record in flow.rank.tables.gradients}
    for call in accumulations(flow):
        if call.id not in named:
            yield from ((f"{call.name}.{slot}", value) for slot, value in call.input_values())


def _returned(flow: DataFlow) -> Iterator[tuple[str, Value]]:
    """Yield what the outermost modules returned."""
    for call in flow.rank.calls.filter(kind="module"):
        if call.parent is None or call.parent.kind != "module":
            for slot, value in call.output_values():
                if not (value.undefined or value.opaque):
                    yield f"{call.name}.{slot}", value


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
    found = [End("output", name, value, number_of(evaluation, value)) for name, value in _returned(flow)]
    if not found:
        read = {number for call in flow.calls() for _, number in call.input_slots()}
        for call in flow.calls():
            for slot, value in flow.results(call):
                if value.id not in read and value.id in evaluation.signatures:
                    found.append(End("output", f"{call.name}.{slot}", value, evaluation.numbers[value.id]))
    return [*found, *_read(evaluation)]


def _read(evaluation: Evaluation) -> Iterator[End]:
    """Yield the tensors of which a program read a number."""
    for call in evaluation.flow.calls():
        if isinstance(call.outputs, float):
            for slot, value in evaluation.flow.reads(call):
                yield End("read", f"{call.name}.{slot}", value, number_of(evaluation, value))


def unmatched(
    target: list[End], baseline: list[End], sides: tuple[Evaluation, Evaluation]
) -> tuple[list[End], list[End]]:
    """Return the ends of either side that the other side does not have.

    Gradients of one name belong together, and so do losses where both sides have as many, in order. Outputs that both
    sides return must be in the same order. What both sides left in memory that held the same before must have changed
    by the same. Numbers that were read are compared where both sides read as many.
    """
    odd: tuple[list[End], list[End]] = ([], [])
    pairs = _pairs(target, baseline, sides)
    partners = ({id(one): other for one, other in pairs}, {id(other): one for one, other in pairs})
    for side, ends in enumerate((target, baseline)):
        holders = sides[1 - side].holders
        lost = {id(end) for end in lost_gradients(side, (target, baseline), sides)}
        for end in ends:
            partner = partners[side].get(id(end))
            if end.number is None:
                continue
            if end.kind == "output" and partner is not None and not _is_crossed(end, partner, ends):
                partner = None
            if partner is None or partner.number is None:
                if end.kind != "read" and (end.number not in holders or id(end) in lost):
                    odd[side].append(end)
            elif end.number != partner.number or not _changed_alike(end, partner, sides if side == 0 else sides[::-1]):
                odd[side].append(end)
    return odd


def lost_gradients(
    side: int,
    ends: tuple[Sequence[End], Sequence[End]],
    sides: tuple[Evaluation, Evaluation],
    *,
    made_within: bool = False,
) -> list[End]:
    """Return the gradients of a side of which the other has the leaf, but no gradient of it.

    Args:
        side: that has the gradients.
        ends: of both sides.
        sides: the evaluations.
        made_within: the other side may have made the leaf within the step.
    """
    if any(end.kind == "gradient" and end.leaf is None and not _is_changed(end) for end in ends[1 - side]):
        return []
    ours, theirs = ([end for end in some if end.leaf is not None] for some in (ends[side], ends[1 - side]))
    numbers = [_of_leaves(ours, sides[side]), _of_leaves(theirs, sides[1 - side])]
    names = {end.name for end in theirs if end.is_named}
    there = {end.number for end in theirs}
    other = sides[1 - side]
    known = other.holders.keys() if made_within else {other.numbers.get(v.id) for v in other.sources.values()}
    found = []
    for end in ours:
        number = sides[side].numbers.get(end.leaf.id) if end.leaf is not None else None
        is_lost = number in known and numbers[1][number] < numbers[0][number] and end.number not in there
        if number is not None and is_lost and not (end.is_named and end.name in names):
            found.append(end)
    return found


def _of_leaves(ends: Sequence[End], evaluation: Evaluation) -> Counter[int | None]:
    return Counter(evaluation.numbers.get(end.leaf.id) for end in ends if end.leaf is not None)


def _is_changed(end: End) -> bool:
    return end.name.endswith(_AS_LEFT)


def _pairs(target: list[End], baseline: list[End], sides: tuple[Evaluation, Evaluation]) -> list[tuple[End, End]]:
    """Return the ends of both sides that belong together."""
    found = []
    theirs = {end.name: end for end in baseline if end.is_named}
    found += [(end, theirs[end.name]) for end in target if end.is_named and end.name in theirs]
    nameless = [_by_leaf(ends, side) for ends, side in zip((target, baseline), sides, strict=True)]
    found += [(nameless[0][number], nameless[1][number]) for number in nameless[0].keys() & nameless[1].keys()]
    for kind in ("loss", "output", "read"):
        ours, others = ([end for end in ends if end.kind == kind] for ends in (target, baseline))
        if len(ours) == len(others):
            found += zip(ours, others, strict=True)
    before: dict[int, list[End]] = {}
    for end in baseline:
        if end.kind == "left" and (number := sides[1].began(end.buffer)) is not None:
            before.setdefault(number, []).append(end)
    for end in target:
        same = before.get(sides[0].began(end.buffer) or 0, []) if end.kind == "left" else []
        match = next((other for other in same if other.number == end.number), None)
        if match is not None:
            same.remove(match)
            found.append((end, match))
    return found


def _by_leaf(ends: Sequence[End], evaluation: Evaluation) -> dict[int | None, End]:
    """Return the gradients of leaves without names, by the number of the leaf, where that is one leaf's alone."""
    numbers = _of_leaves(ends, evaluation)
    found: dict[int | None, End] = {}
    for end in ends:
        number = evaluation.numbers.get(end.leaf.id) if end.leaf is not None and not end.is_named else None
        if number is not None and numbers[number] == 1:
            found[number] = end
    return found


def _is_crossed(end: End, partner: End, ends: Sequence[End]) -> bool:
    """Return True if the output at the place of one is another output of its own side."""
    return end.number != partner.number and any(one.number == partner.number for one in ends if one.kind == "output")


def _changed_alike(end: End, other: End, sides: Sequence[Evaluation]) -> bool:
    """Return True if memory that both sides left as good as equal changed by the same: an update may be tiny."""
    if end.kind != "left" or end.buffer is None or other.buffer is None:
        return True
    changes = sides[0].changes.get(end.buffer.id), sides[1].changes.get(other.buffer.id)
    return None in changes or is_same(*changes)  # type: ignore[arg-type]
