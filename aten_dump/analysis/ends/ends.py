"""The ends of a step, and which of them the other side has.

Theory of operation
    An end is right if the other side has a value of the same number; a gradient, if the gradient of that name has it.
    What a step leaves is memory from outside that it wrote, each buffer whole, however it is kept: one side may write
    in place what the other makes anew. Gradients are compared by name, so the memory that they lie in is no end of its
    own; neither is what the step itself goes on to read (a bucket, a staging buffer), the scale of the loss and the
    count of an optimizer's steps: these show in what is computed with them.
    An inference returns what its outermost modules return. What the program makes of that is only asked where both
    sides make something of one size and neither has the other's: logging on one side is its own affair.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from ...dump import Call, Value
from ..evaluation.evaluation import Evaluation
from ..flow.data_flow import DataFlow
from ..flow.leaves import accumulations
from ..outcomes.left_memory import LeftMemory, LeftPlace
from ..outcomes.roots import roots_of
from ..outcomes.taken_results import TakenResults
from ..signatures.signature import is_same

Kind = Literal["loss", "gradient", "left", "output"]


@dataclass(frozen=True, slots=True)
class End:
    """Something that a step is for."""

    kind: Kind
    name: str
    value: Value
    number: int | None
    buffer: Value | None = None  # of what was left: the whole memory
    call: int = 0  # id of the module's call that returned it


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
                before = known[0].before
                seen = [before, *(v for v in flow.of_moment(before) if not v.composed)]
                self.buffers.append((max(seen, key=lambda v: v.numel), known[-1]))


def _is_state(memory: LeftMemory, place: LeftPlace) -> bool:
    return memory.outlives(place)


def ends_of(evaluation: Evaluation, left: Left) -> list[End]:
    """Return the ends of an evaluated step."""
    rank = evaluation.flow.rank
    roots = [_held(value) for value in roots_of(rank)]
    found = [
        End("loss", f"loss {number}" if len(roots) > 1 else "loss", value, number_of(evaluation, value))
        for number, value in enumerate(roots)
    ]
    gradients = [(name, _held(value)) for name, value in rank.gradients.items()]
    found += [End("gradient", name, value, number_of(evaluation, value)) for name, value in gradients]
    leaves = _leaf_gradients(evaluation.flow)
    found += [End("gradient", name, value, number_of(evaluation, value)) for name, value in leaves]
    for value, place in left.buffers:
        number = evaluation.at_end.get(value.id)
        if number is not None and number != evaluation.numbers.get(place.before.id):
            found.append(End("left", place.writer.module or place.writer.name, place.last, number, value))
    return found or [*_outputs(evaluation)]


def wanted_of(flow: DataFlow) -> set[int]:
    """Return the ids of the values that may be ends: losses, gradients, what the outermost modules returned."""
    found = [*roots_of(flow.rank), *flow.rank.gradients.values()]
    found += [value for _, _, value in _returned(flow)]
    found += [value for _, value in _leaf_gradients(flow)]
    return {_held(value).id for value in found}


def _held(value: Value) -> Value:
    """Return the tensor that a rank holds of a distributed one."""
    local = (value.extra or {}).get("local") if value.opaque else None
    return value if local is None else value.rank.value_by_id(local)


def _leaf_gradients(flow: DataFlow) -> Iterator[tuple[str, Value]]:
    """Yield what was accumulated into leaves that have no name: tensors that require grad, and are no parameters."""
    named = {record.call for record in flow.rank.tables.gradients}
    for call in accumulations(flow):
        if call.id not in named:
            yield from ((f"{call.name}.{slot}", value) for slot, value in call.input_values())


def _returned(flow: DataFlow) -> Iterator[tuple[Call, str, Value]]:
    """Yield what the outermost modules returned, with its slot."""
    for call in flow.rank.calls.filter(kind="module"):
        if call.parent is None or call.parent.kind != "module":
            for slot, value in call.output_values():
                if not (value.undefined or value.opaque):
                    yield call, slot, value


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
    found = [
        End("output", f"{call.name}.{slot}", value, number_of(evaluation, value), call=call.id)
        for call, slot, value in _returned(flow)
    ]
    if not found:
        read = {number for call in flow.calls() for _, number in call.input_slots()}
        for call in flow.calls():
            for slot, value in flow.results(call):
                if value.id not in read and value.id in evaluation.signatures:
                    found.append(End("output", f"{call.name}.{slot}", value, evaluation.numbers[value.id]))
    return found


def unmatched(
    target: list[End], baseline: list[End], sides: tuple[Evaluation, Evaluation]
) -> tuple[list[End], list[End]]:
    """Return the ends of either side that the other side does not have.

    Gradients of one name belong together, and so do losses where both sides have as many, in order. Outputs that both
    sides return of one call must be in the same order. What both sides left in memory that held the same before must
    have changed by the same.
    """
    odd: tuple[list[End], list[End]] = ([], [])
    pairs = _pairs(target, baseline, sides)
    partners = ({id(one): other for one, other in pairs}, {id(other): one for one, other in pairs})
    for side, ends in enumerate((target, baseline)):
        holders = sides[1 - side].holders
        for end in ends:
            partner = partners[side].get(id(end))
            if end.number is None:
                continue
            if end.kind == "output" and partner is not None and not _is_crossed(end, partner, ends):
                partner = None
            if partner is None or partner.number is None:
                if end.number not in holders:
                    odd[side].append(end)
            elif end.number != partner.number or not _changed_alike(end, partner, sides if side == 0 else sides[::-1]):
                odd[side].append(end)
    return odd


def _pairs(target: list[End], baseline: list[End], sides: tuple[Evaluation, Evaluation]) -> list[tuple[End, End]]:
    """Return the ends of both sides that belong together."""
    found = []
    theirs = {end.name: end for end in baseline if end.kind == "gradient"}
    found += [(end, theirs[end.name]) for end in target if end.kind == "gradient" and end.name in theirs]
    for kind in ("loss", "output"):
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


def earliest(
    odd: tuple[Sequence[End], Sequence[End]], flows: tuple[DataFlow, DataFlow]
) -> tuple[Sequence[End], Sequence[End]]:
    """Return the ends to ask first: those of the forward, else the first gradient that both sides have.

    Later ends rest on more that is written otherwise and makes no difference: what a fused attention keeps for its
    backward has no counterpart in one that is written out.
    """
    one, other = ([end for end in odd[side] if _made_in(flows[side], end)[1] == "forward"] for side in (0, 1))
    if one or other:
        return one, other
    theirs = {end.name: end for end in odd[1] if end.kind == "gradient"}
    both = [end for end in odd[0] if end.kind == "gradient" and end.name in theirs]
    if not both:
        return odd
    first = min(both, key=lambda end: _made_in(flows[0], end))
    return [first], [theirs[first.name]]


def _made_in(flow: DataFlow, end: End) -> tuple[int, str]:
    """Return the id and the phase of the call that made an end."""
    writer = flow.writer(end.value)
    return (0, "") if writer is None else (writer[0].id, writer[0].phase)


def taken_besides(sides: tuple[Evaluation, Evaluation]) -> tuple[list[End], list[End]]:
    """Return what each side made of what its modules returned, that nothing reads and the other side does not have."""
    one, other = (
        [end for end in _besides(side) if end.number is not None and end.number not in theirs.holders]
        for side, theirs in (sides, sides[::-1])
    )
    return one, other


def of_sizes(ends: Sequence[End], others: Sequence[End]) -> list[End]:
    """Return the ends of which others have the size and type: they may be meant to be the same."""
    known = {_size(end.value) for end in others}
    return [end for end in ends if _size(end.value) in known]


def _size(value: Value) -> tuple[int, bool]:
    return value.numel, value.is_floating


def _besides(evaluation: Evaluation) -> Iterator[End]:
    """Yield what the program made outside of its modules, and no call reads."""
    returned = {value.id for _, _, value in _returned(evaluation.flow)}
    for value in TakenResults(evaluation.flow).all() if returned else ():
        maker = evaluation.flow.maker(value)
        if maker is not None and value.id not in returned:
            yield End("output", maker.name, value, number_of(evaluation, value))


def _is_crossed(end: End, partner: End, ends: Sequence[End]) -> bool:
    """Return True if the output at the place of one is another output of its own call: calls may come in any order."""
    own = [one for one in ends if one.kind == "output" and one.call == end.call]
    return end.number != partner.number and any(one.number == partner.number for one in own)


def _changed_alike(end: End, other: End, sides: Sequence[Evaluation]) -> bool:
    """Return True if memory that both sides left as good as equal changed by the same: an update may be tiny."""
    if end.kind != "left" or end.buffer is None or other.buffer is None:
        return True
    changes = sides[0].changes.get(end.buffer.id), sides[1].changes.get(other.buffer.id)
    return None in changes or is_same(*changes)  # type: ignore[arg-type]
