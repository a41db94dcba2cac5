"""One side of a comparison: all ranks of a step, evaluated as one graph, with the ends of each rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from ...dump import Call, Step, Value
from ...dump.across_ranks.part_grids import Grid
from ...dump.across_ranks.part_holders import Spec, spec_of
from ...errors import ReplayError
from ...geometry import reach
from ...store.op_names import is_collective
from ..ends.ends import AS_LEFT, End, Left, ends_of, phases_of_readers, starts_of_roots, wanted_of
from ..evaluation.evaluation import EvaluatedStep, Evaluation, Shared
from ..evaluation.memory import Memory
from ..flow.data_flow import DataFlow, Slots
from ..flow.flat_memory import with_parts
from ..flow.left_memory import LeftPlace
from ..meetings.collective_reference import asked_by, got, input_splits_of, name_of
from ..meetings.meeting_points import group_of
from ..pairing.call_keys import normal_module
from .groups import Group
from .joined_rank import JoinedRank, own_name

Brought = dict[int, dict[str, torch.Tensor]]


@dataclass(slots=True)
class Kept:
    """The tensors of an evaluation that belong to ends, by value id."""

    ends: dict[int, Tensor] = field(default_factory=dict)
    left: dict[int, Tensor] = field(default_factory=dict)


class Side:
    """The ranks of one step as one graph.

    Attributes:
        rank: the recording.
        flow: its flow of data.
        left: the memory that it leaves.
        step: the same, for evaluations.
        evaluation: the evaluation whose numbers count.
        kept: the tensors of its ends.
        moved: the same from an evaluation with every result moved a little.
        means: names of gradients that the optimizer does not read: what is computed from them counts.
    """

    evaluation: Evaluation
    kept: Kept

    def __init__(self, step: Step) -> None:
        self.rank = JoinedRank({number: with_parts(step.rank(number)) for number in step.ranks})
        self.flow = JoinedFlow(self.rank, "aten", wrapped=False)
        self.left = Left(self.flow)
        buffers = [value for value, _ in self.left.buffers]
        transfers = JoinedTransfers(self.flow)
        wanted = wanted_of(self.flow) | {value.id for found in self.left.changed.values() for value in found}
        self._wanted = wanted
        self.step = EvaluatedStep(self.flow, buffers, wanted, starts_of_roots(self.flow), transfers)
        self.moved = Kept()
        self.means: set[str] = set()

    def run(self, shared: Shared, stand_ins: Mapping[int, Tensor], *, leads: bool) -> None:
        """Evaluate the step; `stand_ins` are contents of sources, by value id."""
        self.evaluation = Evaluation(self.step, shared, stand_ins, leads=leads)
        self.kept = self._run(self.evaluation)

    def run_moved(self, stand_ins: Mapping[int, Tensor], jitter: float) -> Evaluation:
        """Evaluate the step again, with every result moved a little."""
        found = Evaluation(self.step, Shared(), stand_ins, leads=True, jitter=jitter)
        self.moved = self._run(found)
        return found

    def depends_on(self, source: Value, contents: Tensor, stand_ins: Mapping[int, Tensor], ends: Sequence[End]) -> bool:
        """Return True if other contents of a source change one of some ends.

        Args:
            source: something that the step begins with.
            contents: its contents now.
            stand_ins: contents of sources, by value id.
            ends: of this side.
        """
        if not contents.is_floating_point():
            return True
        moved = self._run(Evaluation(self.step, Shared(), {**stand_ins, source.id: contents + 1.0}, leads=True))
        for end in ends:
            key, now, then = end.value.id, self.kept.ends, moved.ends
            if end.buffer is not None:
                key, now, then = end.buffer.id, self.kept.left, moved.left
            if key not in now or key not in then or not torch.equal(now[key].nan_to_num(), then[key].nan_to_num()):
                return True
        return False

    def renumber(self, shared: Shared, noise: Mapping[int, float]) -> None:
        """Number all values again; `noise` is how far rounding moves them."""
        self.evaluation.renumber(shared, noise)
        self.__dict__.pop("ends", None)

    def _run(self, evaluation: Evaluation) -> Kept:
        kept = Kept()

        def look(value: Value) -> None:
            tensor = evaluation.held(value)
            if tensor is not None:
                kept.ends[value.id] = tensor.detach().clone()

        def after(call: Call) -> None:
            for value in self._made_by.get(call.id, ()):
                look(value)

        def left(value: Value, tensor: Tensor) -> None:
            kept.left[value.id] = tensor.detach().clone()

        evaluation.watch_calls, evaluation.watch_left = after, left
        evaluation.run()
        return kept

    @cached_property
    def _made_by(self) -> dict[int, list[Value]]:
        """The values that may be ends, by the call that wrote them."""
        found: dict[int, list[Value]] = defaultdict(list)
        for number in self._wanted:
            value = self.rank.value_by_id(number)
            writer = self.flow.writer(value)
            maker = writer[0] if writer is not None else self.flow.maker(value)
            if maker is not None:
                found[maker.id].append(value)
        return found

    # -- ends --------------------------------------------------------------------------------------------------------

    @cached_property
    def ends(self) -> list[End]:
        """The ends of all ranks; gradients have their names on one rank."""
        found = ends_of(self.evaluation, self.left)
        return [replace(end, name=_on_one_rank(end.name)) if end.kind == "gradient" else end for end in found]

    def groups(self, kind: str) -> dict[str, Group]:
        """Return the gradients, as the optimizer gets them, or the outputs of all ranks by name."""
        found: dict[str, Group] = {}
        chosen = [end for end in self.ends if end.kind == kind]
        if kind == "gradient":
            named = [end for end in chosen if end.is_named or end.name.endswith(AS_LEFT)]
            chosen = sorted(filter(self._is_taken, named), key=lambda end: end.name.endswith(AS_LEFT))
            self.means = {_tensor_name(end) for end in named} - {_tensor_name(end) for end in chosen}
        for end in chosen:
            self._add(found, _tensor_name(end), end.value)
        self._finish(found)
        return found

    def _is_taken(self, end: End) -> bool:
        """Return True if the optimizer or nothing reads a gradient; otherwise it only leads to what the optimizer
        reads.

        A distributed gradient that is a term of a sum is reduced by its reader.
        """
        spec = self._specs.get((end.value.storage, tuple(end.value.shape)))
        if spec is not None and any(placement.kind in ("sum", "avg") for placement in spec.placements):
            return False
        phases = self._phases.get((end.value.storage, end.value.version), set())
        return not phases or "optimizer" in phases

    @cached_property
    def _phases(self) -> dict[tuple[int, int], set[str]]:
        return phases_of_readers(self.flow)

    def _add(self, found: dict[str, Group], name: str, value: Value) -> None:
        number = self.rank.rank_of_value(value.id)
        tensor = self.kept.ends.get(value.id)
        if tensor is None:
            return
        group = found.setdefault(name, Group(name))
        group.values[number], group.now[number] = value, tensor
        if value.id in self.moved.ends:
            group.moved[number] = self.moved.ends[value.id]

    def _finish(self, groups: Mapping[str, Group]) -> None:
        """Return the placements of the distributed tensors of groups."""
        for group in groups.values():
            grids: dict[tuple[int, ...], Grid] = {}
            for value in group.values.values():
                spec = self._specs.get((value.storage, tuple(value.shape)))
                if spec is not None:
                    grids[spec.ranks] = Grid(spec.mesh, spec.ranks, spec.placements)
            group.grids = tuple(grids.values())

    @cached_property
    def _specs(self) -> dict[tuple[int, tuple[int, ...]], Spec]:
        """Mesh and placements of the distributed tensors, by the memory of what holds their elements."""
        found: dict[tuple[int, tuple[int, ...]], Spec] = {}
        values = self.rank.tables.values
        for record in values.records():
            spec = spec_of(record.extra)
            local = values.find((record.extra or {}).get("local", 0))
            if spec is not None and local is not None:
                found[local.storage, tuple(local.shape)] = spec
        return found

    def left_groups(self) -> list[Group]:
        """Return the memory that the step changed; what belongs together on several ranks is one group."""
        found: dict[str, Group] = {}
        counts: dict[tuple[int, str], int] = defaultdict(int)
        for value, place in self.left.buffers:
            if value.id not in self.kept.left:
                continue
            number = self.rank.rank_of_value(value.id)
            start = self.evaluation.start_of(value)
            if start is None:
                continue
            writer = self.rank.origin(place.writer.id).name
            counts[number, writer] += 1
            name = f"{writer}/{counts[number, writer]}"
            group = found.setdefault(name, Group(name))
            changed = _changed_slice(value, place.last, start, self.kept.left[value.id])
            group.values[number], group.now[number] = value, changed(self.kept.left[value.id])
            group.before[number] = changed(start)
            if value.id in self.moved.left:
                group.moved[number] = changed(self.moved.left[value.id])
        self._finish(found)
        return list(found.values())

    @cached_property
    def places(self) -> dict[int, LeftPlace]:
        """The last writer of each buffer, by its id."""
        return {value.id: place for value, place in self.left.buffers}

    def is_read(self, value: Value) -> bool:
        """Return True if the step itself goes on to read what it wrote to a buffer."""
        return value.storage in self.left.read

    def losses(self) -> list[tuple[End, float, float]]:
        """Return the numbers that backward differentiates, and how far rounding moves each."""
        found = []
        for end in self.ends:
            if end.kind == "loss" and not self._is_means(end.value):
                tensor = self._differentiated(self.kept, end.value)
                if tensor is not None:
                    moved = self._differentiated(self.moved, end.value)
                    found.append((end, tensor, 0.0 if moved is None else 10 * abs(tensor - moved)))
        return found

    def _is_means(self, root: Value) -> bool:
        """Return True if backward starts there from what another rank sent, or the loss depends on unwritten memory."""
        start = self.step.starts.get(root.id)
        value = None if start is None else self.rank.value_by_id(start)
        maker = None if value is None else self.flow.maker(value)
        while maker is not None and self.flow.is_view(maker):
            maker = self.flow.maker(self.flow.reads(maker)[0][1])
        return (maker is not None and is_collective(maker.op)) or self.evaluation.depends(root)

    def _differentiated(self, kept: Kept, root: Value) -> float | None:
        tensor, start = kept.ends.get(root.id), self.step.starts.get(root.id)
        if tensor is None:
            return None
        begun = None if start is None else kept.ends.get(start)
        weighted = tensor if begun is None or begun.shape != tensor.shape else tensor * begun
        return float(weighted.to(torch.float64).sum())


def _tensor_name(end: End) -> str:
    return end.name.removesuffix(AS_LEFT)


def _on_one_rank(name: str) -> str:
    suffix = AS_LEFT if name.endswith(AS_LEFT) else ""
    return normal_module(own_name(name.removesuffix(suffix))) + suffix


def _changed_slice(whole: Value, written: Value, start: Tensor, now: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a view of the written slice of memory if the rest (padding) is unchanged; else the whole."""
    first = written.storage_offset - whole.storage_offset
    is_slice = first >= 0 and first + reach(written.shape, written.stride) <= start.numel() and start.shape == now.shape

    def slice_of(tensor: Tensor) -> Tensor:
        return tensor.contiguous().view(-1).as_strided(written.shape, written.stride, first)

    if is_slice and whole.dtype == written.dtype and written.numel < whole.numel:
        rest = now.contiguous().clone()
        slice_of(rest).copy_(slice_of(start))
        if torch.equal(rest.nan_to_num(), start.nan_to_num()):
            return slice_of
    return lambda tensor: tensor


class JoinedFlow(DataFlow):
    """The data flow of all ranks, in which a collective computes its results from the inputs of all of them."""

    rank: JoinedRank

    def behind(self, call: Call, slot: str) -> Slots:
        others = (self.rank.call(number) for number in self.rank.meetings.get(call.id, ()) if number != call.id)
        return [*super().behind(call, slot), *(read for other in others for read in self.reads(other))]


class JoinedTransfers:
    """Runs the collectives of a recording of all ranks."""

    def __init__(self, flow: JoinedFlow) -> None:
        self._flow = flow
        self._rank = flow.rank

    def __contains__(self, call: object, /) -> bool:
        return call in self._rank.meetings

    def run(self, call: Call, memory: Memory) -> Brought:
        """Return the results of each call of a collective, by its id and slot.

        Raises:
            ReplayError: the right result of such a collective is unknown.
        """
        calls = [self._rank.call(number) for number in self._rank.meetings[call.id]]
        sent = [[memory.find(value).detach().clone() for _, value in self._flow.reads(one)] for one in calls]
        if group_of(call) is None:
            raise ReplayError("a collective of an unknown group")
        is_message = any(name_of(one).startswith(("send", "recv")) for one in calls)
        found: Brought = {}
        numbers = [self._rank.number_of(one.id) for one in calls]
        splits = [input_splits_of(one) for one in calls]
        for place, one in enumerate(calls):
            results: list[torch.Tensor] | None
            if is_message:
                results = sent[0] if place else []
            else:
                results = got(name_of(one), sent, asked_by(one, place, numbers, splits))
            if results is None:
                raise ReplayError(f"a collective: what {one.op} must deliver is not known here")
            found[one.id] = dict(_laid(one, results, memory))
        return found


def _laid(call: Call, results: list[torch.Tensor], memory: Memory) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each result of a call, by slot, in the memory that the call got for it."""
    given = {value.record.place: value for _, value in call.input_values() if value.storage}
    made: dict[int, tuple[Value, list[str]]] = {}
    for slot, value in call.result_values():
        made.setdefault(value.id, (value, []))[1].append(slot)
    if made and len(made) != len(results):
        raise ReplayError("a collective: its results are not as many as its ranks sent")
    for (value, names), result in zip(made.values(), results, strict=False):
        there = given.get(value.record.place)
        tensor = result.reshape(value.shape) if there is None else memory.blank(there)
        if there is not None:
            tensor.copy_(result.reshape(tensor.shape))
        yield from ((name, tensor) for name in names)
