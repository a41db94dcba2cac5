"""Finds the ends of a step, and those that the other side has.

Theory of operation
    An end is right if the other side has a value with its number; for a gradient, that must be the gradient of the same
    name. A gradient of zeros counts as none: what an optimizer makes of it shows in what the step leaves. If the other
    side's parameter has no gradient, the other side lacks the gradient. What the program made of a gradient before the
    optimizer read it (scaled, clipped) is an end too. If an inference has no outputs, the numbers that the program read
    are its ends.
    What a step leaves is memory from outside that it wrote. Each buffer counts as a whole, in whatever way it is kept:
    one side may write in place what the other allocates. Gradients are compared by name, so their memory is no end.
    Neither is memory that the step itself reads later (a bucket, a staging buffer), the scale of the loss, or an
    optimizer's count of steps: these show in what is computed with them.
    An inference returns what its outermost modules return. What the program makes of that counts only if both sides
    make something of one size that the other lacks: logging on one side is no difference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from ...dump import Call, Value
from ...store.op_names import reads_no_elements
from ..evaluation.evaluation import Evaluation, is_compiled, runs_compiled
from ..evaluation.memory import seen_of
from ..flow.data_flow import DataFlow
from ..flow.last_reads import TakenResults
from ..flow.leaves import accumulations, leaf_gradients
from ..flow.left_memory import LeftMemory, LeftPlace
from ..flow.roots import roots_of, starts_of

Kind = Literal["loss", "gradient", "left", "output", "read"]


AS_LEFT: Final = " as it was left"


@dataclass(frozen=True, slots=True)
class End:
    """A result that is a purpose of the step."""

    kind: Kind
    name: str
    value: Value
    number: int | None
    buffer: Value | None = None  # of what was left: the whole memory
    is_changed: bool = True  # of what was left: it changed
    is_read: bool = False  # of what was left: the step reads it later
    is_alone: bool = False  # of what was left: the other side writes to no memory with the same initial contents
    call: int = 0  # id of the module's call that returned it
    leaf: Value | None = None  # of a gradient: its leaf
    is_named: bool = False  # it is the gradient of a parameter


class Left:
    """The memory from outside that a step wrote, a buffer for each storage; and its gradients.

    Attributes:
        buffers: each whole buffer, and its last writer.
        leaves: the leaf of each gradient, if known, by the name of the gradient.
        changed: gradients that the program changed after the backward, as the optimizer got them, by name.
    """

    def __init__(self, flow: DataFlow) -> None:
        self.leaves = _leaves(flow)
        self.changed = _changed_gradients(flow)
        memory = LeftMemory(flow, read_data=False)
        flat = memory.flat
        places: dict[int, list[LeftPlace]] = {storage: list(known) for storage, known in flat.items()}
        for place in memory.places:
            if place.last.storage not in flat:
                places.setdefault(place.last.storage, []).append(place)
        self.buffers: list[tuple[Value, LeftPlace]] = []  # the whole buffer, and its last writer
        self.read: set[int] = set()  # storages of those that the step reads later
        within = _within_compiled(flow)
        for storage, known in places.items():
            if storage in within:
                continue
            if not any(memory.outlives(place) for place in known):
                if all(memory.serves_step(place) for place in known):
                    continue
                self.read.add(storage)
            if storage in flat:
                self.buffers += [(place.before, place) for place in flat[storage]]
                continue
            before = known[0].before
            seen = [before, *(v for v in flow.of_moment(before) if not v.composed)]
            self.buffers.append((max(seen, key=lambda v: seen_of(v.shape, v.stride)), known[-1]))


def _within_compiled(flow: DataFlow) -> set[int]:
    """Return the storages that only calls within compiled regions use: the work memory of a compiler.

    If kernels were recorded, so were their allocations: then memory from outside is the program's.
    """
    within: set[int] = set()
    outside: set[int] = set()
    for call in flow.calls() if runs_compiled(flow) else ():
        found = within if is_compiled(call.parent) and call.kernel is None else outside
        found.update(value.storage for _, value in (*call.input_values(), *call.result_values()))
    return within - outside


def ends_of(evaluation: Evaluation, left: Left) -> list[End]:
    """Return the ends of an evaluated step."""
    rank = evaluation.flow.rank
    roots = [_held(value) for value in roots_of(rank)]
    found = [
        End("loss", f"loss {number}" if len(roots) > 1 else "loss", value, number_of(evaluation, value))
        for number, value in enumerate(roots)
    ]
    gradients = [(name, _held(value)) for name, value in rank.gradients.items()]
    for name, value in (*gradients, *_leaf_gradients(evaluation.flow)):
        number, leaf = number_of(evaluation, value), left.leaves.get(name)
        found.append(End("gradient", name, value, number, leaf=leaf, is_named=name in rank.gradients))
    for name, values in left.changed.items():
        kept = [value for value in values if not _is_dropped(evaluation, value)]
        if kept:
            found.append(End("gradient", name + AS_LEFT, kept[-1], evaluation.numbers.get(kept[-1].id)))
    for value, place in left.buffers:
        number = evaluation.at_end.get(value.id)
        if number is not None:
            name, is_read = place.writer.module or place.writer.name, value.storage in left.read
            is_changed = evaluation.is_changed(value)
            found.append(End("left", name, place.last, number, value, is_changed=is_changed, is_read=is_read))
    is_enough = any(end.is_changed and not end.is_read for end in found)
    return found if is_enough else [*found, *_outputs(evaluation)]


def _leaves(flow: DataFlow) -> dict[str, Value]:
    """Return the leaves that gradients are of, by the names of their ends."""
    known = leaf_gradients(flow)
    found = {record.name: known[record.call].leaf for record in flow.rank.tables.gradients if record.call in known}
    for call in accumulations(flow):
        if call.id in known:
            found |= {f"{call.name}.{slot}": known[call.id].leaf for slot, _ in call.input_values()}
    return found


def _changed_gradients(flow: DataFlow) -> dict[str, list[Value]]:
    """Return what calls outside of the optimizer made of gradients after the backward, by name, in order.

    Only results that the optimizer reads, or nothing reads, are returned. Others show in what is computed with them.
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
    readers = phases_of_readers(flow) if found else {}
    is_end = {
        value.id: "optimizer" in phases or not phases
        for values in found.values()
        for value in values
        for phases in [readers.get((value.storage, value.version), set())]
    }
    kept = {name: [value for value in values if is_end[value.id]] for name, values in found.items()}
    return {name: sorted(values, key=lambda value: value.version) for name, values in kept.items()}


def phases_of_readers(flow: DataFlow) -> dict[tuple[int, int], set[str]]:
    """Return the phases in which calls compute with each version of a memory."""
    found: dict[tuple[int, int], set[str]] = {}
    for call in flow.calls():
        if flow.results(call):
            for _, value in flow.reads(call):
                found.setdefault((value.storage, value.version), set()).add(call.phase)
    return found


def _is_dropped(evaluation: Evaluation, value: Value) -> bool:
    """Return True if a gradient is zero or unknown."""
    return value.id not in evaluation.signatures or _is_zero(evaluation, value)


def _is_zero(evaluation: Evaluation, value: Value) -> bool:
    """Return True if all elements of a value are known to be zero."""
    signature = evaluation.signatures.get(value.id)
    return signature is not None and signature.norm == 0 and not signature.nonfinite


def wanted_of(flow: DataFlow) -> set[int]:
    """Return the ids of possible ends: losses, gradients, and what the outermost modules returned."""
    found = [*roots_of(flow.rank), *flow.rank.gradients.values()]
    found += [value for _, _, value in _returned(flow)]
    found += [value for _, value in _leaf_gradients(flow)]
    return {_held(value).id for value in found} | set(starts_of_roots(flow).values())


def starts_of_roots(flow: DataFlow) -> dict[int, int]:
    """Return the ids of the gradients that backward was given, by the id of the tensor it was called on."""
    rank = flow.rank
    return {_held(rank.value_by_id(root)).id: _held(start).id for root, start in starts_of(rank).items()}


def _held(value: Value) -> Value:
    """Return the local tensor of a distributed one."""
    local = (value.extra or {}).get("local") if value.opaque else None
    return value if local is None else value.rank.value_by_id(local)


def _leaf_gradients(flow: DataFlow) -> Iterator[tuple[str, Value]]:
    """Yield the gradients of leaves without names: tensors that require grad and are not parameters.

    As for a parameter, only gradients after the last write of an optimizer count.
    """
    named = {record.call for record in flow.rank.tables.gradients}
    leaves = {number: found.leaf for number, found in leaf_gradients(flow).items()}
    last: dict[object, int] = {}
    for leaf in leaves.values():
        last[leaf.record.place] = max(leaf.version, last.get(leaf.record.place, 0))
    for call in accumulations(flow):
        known = leaves.get(call.id)
        if call.id not in named and (known is None or known.version == last[known.record.place]):
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
    """Return what the outermost modules returned; without modules, the results that nothing read."""
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
    return [*found, *_read(evaluation)]


def _read(evaluation: Evaluation) -> Iterator[End]:
    """Yield the tensors from which a program read a number."""
    for call in evaluation.flow.calls():
        if isinstance(call.outputs, float):
            for slot, value in evaluation.flow.reads(call):
                yield End("read", f"{call.name}.{slot}", value, number_of(evaluation, value))


def unmatched(
    target: list[End], baseline: list[End], sides: tuple[Evaluation, Evaluation]
) -> tuple[list[End], list[End]]:
    """Return the ends of each side that the other side lacks.

    Gradients are matched by name. Losses are matched in order if both sides have the same number of them. Outputs that
    both sides return from one call must be in the same order. What was left in memory is compared by `LeftEnds`.
    Numbers that the programs read are compared if both read the same number of them.
    """
    odd: tuple[list[End], list[End]] = ([], [])
    target, baseline = _with_like_losses(target, baseline, sides)
    pairs = _pairs(target, baseline, sides)
    partners = ({id(one): other for one, other in pairs}, {id(other): one for one, other in pairs})
    for side, ends in enumerate((target, baseline)):
        holders = sides[1 - side].holders
        lost = {id(end) for end in lost_gradients(side, (target, baseline), sides)}
        for end in ends:
            partner = partners[side].get(id(end))
            if end.number is None or end.kind == "left":
                continue
            if end.kind == "output" and partner is not None and not _is_crossed(end, partner, ends):
                partner = None
            if partner is None or partner.number is None:
                is_none = end.kind == "gradient" and _is_zero(sides[side], end.value)  # counts as no gradient
                if end.kind != "read" and not is_none and (end.number not in holders or id(end) in lost):
                    odd[side].append(end)
            elif end.number != partner.number:
                odd[side].append(end)
    return odd


def _with_like_losses(
    target: list[End], baseline: list[End], sides: tuple[Evaluation, Evaluation]
) -> tuple[list[End], list[End]]:
    """Return the ends of both sides with comparable numbers for the losses.

    Backward may be called on a vector with a gradient, or on its sum. A side with more losses may use one twice, or
    process the batch in parts: losses that only one side has are summed.
    """
    losses = [[end for end in ends if end.kind == "loss"] for ends in (target, baseline)]
    scalars = [
        {end.name: side.number_of_sum([end.value]) for end in some} for side, some in zip(sides, losses, strict=True)
    ]
    if len(losses[0]) == len(losses[1]):
        unlike = [pair for pair in zip(*losses, strict=True) if not _is_elementwise(*pair)]
        chosen = [{pair[side].name: scalars[side][pair[side].name] for pair in unlike} for side in (0, 1)]
        return _numbered(target, chosen[0]), _numbered(baseline, chosen[1])
    known = [{*scalars[side].values(), *(end.number for end in losses[side])} - {None} for side in (0, 1)]
    return _summed(target, sides[0], scalars[0], known[1]), _summed(baseline, sides[1], scalars[1], known[0])


def _is_elementwise(one: End, other: End) -> bool:
    """Return True if two losses are compared by their contents, and not by what backward differentiates."""
    return one.number == other.number or one.value.numel == other.value.numel > 1


def _summed(
    ends: list[End], evaluation: Evaluation, scalars: Mapping[str, int | None], others: Container[int | None]
) -> list[End]:
    """Return the ends; losses that the other side lacks have the number of their sum."""
    alike = {
        end.name: scalars[end.name] for end in ends if scalars.get(end.name) in others and end.number not in others
    }
    rest = [end for end in ends if end.name in scalars and end.name not in alike and end.number not in others]
    total = evaluation.number_of_sum([end.value for end in rest])
    ends = _numbered(ends, alike | {end.name: total for end in rest})
    names = {end.name for end in rest} if total is not None else set()
    return [replace(end, name="sum of losses") if end.name in names else end for end in ends]


def _numbered(ends: list[End], numbers: Mapping[str, int | None]) -> list[End]:
    """Return ends in which the losses have other numbers, given by name."""
    found = (numbers.get(end.name) if end.kind == "loss" else None for end in ends)
    return [end if number is None else replace(end, number=number) for end, number in zip(ends, found, strict=True)]


def lost_gradients(
    side: int,
    ends: tuple[Sequence[End], Sequence[End]],
    sides: tuple[Evaluation, Evaluation],
    *,
    made_within: bool = False,
) -> list[End]:
    """Return the gradients of a side for which the other side has the leaf, but no gradient.

    Args:
        side: the side with the gradients.
        ends: of both sides.
        sides: the evaluations.
        made_within: True if the other side may have made the leaf within the step.
    """
    if any(end.kind == "gradient" and end.leaf is None and not _is_changed(end) for end in ends[1 - side]):
        return []
    ours, theirs = ([end for end in some if end.leaf is not None] for some in (ends[side], ends[1 - side]))
    numbers = [_of_leaves(ours, sides[side]), _of_leaves(theirs, sides[1 - side])]
    names = {end.name for end in theirs if end.is_named}
    other = sides[1 - side]
    # A side that accumulates nothing asked autograd for gradients: any value may be one.
    there: Container[int | None] = {end.number for end in theirs} if theirs else other.holders
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


def is_of_leaf(end: End) -> bool:
    """Return True if an end is the gradient of a leaf without a name."""
    return end.kind == "gradient" and not end.is_named and not _is_changed(end)


def _is_changed(end: End) -> bool:
    return end.name.endswith(AS_LEFT)


def _pairs(target: list[End], baseline: list[End], sides: tuple[Evaluation, Evaluation]) -> list[tuple[End, End]]:
    """Return the ends of both sides that belong together."""
    found = []
    theirs = {end.name: end for end in baseline if end.is_named}
    named = ((end, theirs.get(end.name)) for end in target if end.is_named)
    found += [(end, one) for end, one in named if one is not None and one.value.numel == end.value.numel]
    nameless = [_by_leaf(ends, side) for ends, side in zip((target, baseline), sides, strict=True)]
    found += [(nameless[0][number], nameless[1][number]) for number in nameless[0].keys() & nameless[1].keys()]
    for kind in ("loss", "output", "read"):
        ours, others = ([end for end in ends if end.kind == kind] for ends in (target, baseline))
        if len(ours) == len(others):
            found += zip(ours, others, strict=True)
    return found


def earliest(
    odd: tuple[Sequence[End], Sequence[End]], flows: tuple[DataFlow, DataFlow]
) -> tuple[Sequence[End], Sequence[End]]:
    """Return the ends to examine first: those of the forward, else the first gradient that both sides have.

    Behind later ends there is more that differs without effect: what a fused attention saves for its backward has no
    counterpart in an attention of single ops.
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
    """Return what each side made of its modules' results, if nothing reads it and the other side lacks it."""
    one, other = (
        [end for end in made_besides(side) if end.number is not None and end.number not in theirs.holders]
        for side, theirs in (sides, sides[::-1])
    )
    return one, other


def of_sizes(ends: Sequence[End], others: Sequence[End]) -> list[End]:
    """Return the ends with the size and type of another side's end: they may be meant to be the same."""
    known = {_size(end.value) for end in others}
    return [end for end in ends if _size(end.value) in known]


def _size(value: Value) -> tuple[int, bool]:
    return value.numel, value.is_floating


def unread_alike(
    sides: tuple[Evaluation, Evaluation], made: tuple[Sequence[End], Sequence[End]]
) -> tuple[list[End], list[End]]:
    """Return what nothing reads and the other side lacks, for sizes of which both sides make the same number.

    A score in a training step is of this kind. If the other side has another result of the same call, such as the
    values of a sort, the rest of it may be dropped.

    Args:
        sides: evaluated.
        made: what nothing reads, for each side.
    """
    counts = [Counter(_size(end.value) for end in ends) for ends in made]
    one, other = (
        [
            end
            for end in ends
            if counts[0][_size(end.value)] == counts[1][_size(end.value)] and not _has_of(side, theirs, end)
        ]
        for ends, side, theirs in zip(made, sides, sides[::-1], strict=True)
    )
    return of_sizes(one, other), of_sizes(other, one)


def made_alone(
    sides: tuple[Evaluation, Evaluation], unread: tuple[Sequence[End], Sequence[End]]
) -> tuple[list[End], list[End]]:
    """Return the floats of each side that nothing reads, if the other side makes none of their size."""
    made = [[end for end in ends if end.value.is_floating] for ends in unread]
    sizes = [{_size(end.value) for end in ends} for ends in made]
    one, other = (
        [end for end in ends if _size(end.value) not in theirs and not _has_of(side, other, end)]
        for ends, theirs, side, other in zip(made, sizes[::-1], sides, sides[::-1], strict=True)
    )
    return one, other


def _has_of(evaluation: Evaluation, other: Evaluation, end: End) -> bool:
    """Return True if the other side has a result of the call that made an end, or if that is unknown."""
    maker = evaluation.flow.maker(end.value)
    numbers = {evaluation.numbers.get(value.id) for _, value in evaluation.flow.results(maker)} if maker else set()
    return end.number is None or not (numbers | {end.number}).isdisjoint(other.holders)


def made_besides(evaluation: Evaluation) -> Iterator[End]:
    """Yield what the program made outside of its modules and no call reads."""
    returned = {value.id for _, _, value in _returned(evaluation.flow)}
    return (end for end in unread_of(evaluation) if end.value.id not in returned) if returned else iter(())


def first_states(sides: tuple[Evaluation, Evaluation]) -> tuple[list[End], list[End]]:
    """Return the memory that optimizers make and write in this step, if the other side has other contents there.

    In the next step these are memory from outside. What they are may not show in the first parameters: an average of
    squares is divided by what it lacks.
    """
    made = [list(_states_of(side)) for side in sides]
    counts = [Counter(_size(end.value) for end in ends) for ends in made]
    one, other = (
        [
            end
            for end in ends
            if end.number not in (None, *theirs.holders) and counts[0][_size(end.value)] == counts[1][_size(end.value)]
        ]
        for ends, theirs in zip(made, sides[::-1], strict=True)
    )
    return of_sizes(one, other), of_sizes(other, one)


def _states_of(evaluation: Evaluation) -> Iterator[End]:
    """Yield what calls of optimizers wrote last to memory that others of them made of no contents, as zeros."""
    flow = evaluation.flow
    calls = [call for call in flow.calls() if call.phase == "optimizer"]
    of_nothing = (call for call in calls if reads_no_elements(call.op) or not flow.reads(call))
    made = (value for call in of_nothing for _, value in flow.results(call))
    last: dict[int, End | None] = {value.storage: None for value in made if value.storage and value.numel > 1}
    for call in calls:
        for _, value in flow.results(call):
            if value.storage in last and value.version:
                last[value.storage] = End("left", call.name, value, evaluation.numbers.get(value.id))
    return (end for end in last.values() if end is not None)


def unread_of(evaluation: Evaluation) -> Iterator[End]:
    """Yield what the program got and no call reads, except views of memory from outside."""
    for value in TakenResults(evaluation.flow).all():
        maker = evaluation.flow.maker(value)
        if maker is not None and not (evaluation.flow.is_view(maker) and evaluation.flow.writer(value) is None):
            yield End("output", maker.name, value, number_of(evaluation, value))


def _by_leaf(ends: Sequence[End], evaluation: Evaluation) -> dict[int | None, End]:
    """Return the gradients of leaves without names, by the leaf's number if no other leaf has it."""
    numbers = _of_leaves(ends, evaluation)
    found: dict[int | None, End] = {}
    for end in ends:
        number = evaluation.numbers.get(end.leaf.id) if end.leaf is not None and not end.is_named else None
        if number is not None and numbers[number] == 1:
            found[number] = end
    return found


def _is_crossed(end: End, partner: End, ends: Sequence[End]) -> bool:
    """Return True if another output of the same call is at the place of an output: calls may come in any order."""
    own = [one for one in ends if one.kind == "output" and one.call == end.call]
    return end.number != partner.number and any(one.number == partner.number for one in own)
