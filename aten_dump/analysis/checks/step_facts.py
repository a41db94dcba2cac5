"""What the rules ask of one recorded step and rank: its ops by name, parameters, gradients and optimizers' steps.

Theory of operation
    A parameter is a leaf: memory from outside the step that requires grad and that the forward reads. Its name comes
    with its gradient. An optimizer's step begins with a range that torch has the profiler note, also where it has
    nothing to do; what follows in the phase ``optimizer`` is its work.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import torch
import xxhash

from ...dump import Call, RankDump, Value
from ...store.op_names import is_collective, read_op_name
from ...store.records import CALL_KINDS
from ..facts.batch import batch_of
from ..flow.data_flow import DataFlow
from ..flow.leaves import LeafGradient, accumulations, leaf_gradients
from ..flow.roots import roots_of
from ..nonfinite.value_range import Contents, ContentsTable

_RANGE: Final = "_record_function_enter_new"
_RANGE_ENDS: Final = "_record_function_exit"
_STEP: Final = "Optimizer.step#"
_CLEARS: Final = "Optimizer.zero_grad#"
_OF_MODELS: Final = -1
_OF_OTHERS: Final = -2
_BACKWARD: Final = ("torch.Tensor.backward", "torch.autograd.backward", "torch.autograd.grad")


@dataclass(frozen=True, slots=True)
class OptimizerStep:
    """One step of an optimizer: where it is called, and the ops that it ran."""

    name: str  # class of the optimizer
    begins: Call
    calls: tuple[Call, ...]

    @property
    def writes(self) -> set[int]:
        """The storages that it wrote."""
        return {value.storage for call in self.calls for _, value in call.written_values()}

    @property
    def reads(self) -> set[int]:
        """The storages that it read."""
        return {value.storage for call in self.calls for _, value in call.input_values()}


class StepFacts:
    """One recorded step and rank, as rules ask for it; more than twenty questions, each answered once.

    Attributes:
        rank: the recording.
        before: the step before, of the same rank, if it was recorded.
        has_peers: whether other ranks recorded the step.
        lacking: why a rule cannot run that needs something, "" if it can; each is asked for once.
    """

    def __init__(self, rank: RankDump, before: StepFacts | None = None, *, has_peers: bool = False) -> None:
        self.rank = rank
        self.before = before
        self.has_peers = has_peers
        self.lacking: dict[str, str] = {}
        self._bits: dict[int, str | bytes | None] = {}

    # -- calls -------------------------------------------------------------------------------------------------------

    @cached_property
    def flow(self) -> DataFlow:
        return DataFlow(self.rank, "aten")

    @cached_property
    def _positions(self) -> dict[tuple[str, str], list[int]]:
        """Positions of calls by kind and name of the op, without namespace, overload and ``_`` of in-place ops."""
        ops = {op.id: (CALL_KINDS[op.call_kind], _base(op.op)) for op in self.rank.tables.ops.records()}
        found: dict[tuple[str, str], list[int]] = defaultdict(list)
        for position, op in enumerate(self.rank.tables.calls.column("op").tolist()):
            if op in ops:
                found[ops[op]].append(position)
        return found

    def has_kind(self, kind: str) -> bool:
        """Return True if calls of a kind were recorded."""
        return any(one == kind for one, _ in self._positions)

    def ops(self, *names: str) -> Iterator[Call]:
        """Yield the aten ops of some names in order; ``"add"`` is ``aten::add.Tensor``, ``aten::add_.Scalar``, ..."""
        yield from self._calls("aten", names)

    def apis(self, *names: str) -> Iterator[Call]:
        """Yield the Python-level forward calls of some functions (``"cross_entropy"``), in order."""
        yield from (call for call in self._calls("api", names) if call.phase != "backward")

    def _calls(self, kind: str, names: Sequence[str]) -> Iterator[Call]:
        positions = sorted(position for name in names for position in self._positions.get((kind, name), ()))
        yield from map(self.rank.call_at, positions)

    @cached_property
    def contents_table(self) -> ContentsTable:
        return ContentsTable(self.rank)

    def contents(self, value: Value) -> Contents | None:
        """Return range and counts of a value's elements, None where nothing is known."""
        return self.contents_table.of(value)

    def is_zero(self, value: Value) -> bool:
        """Return True if all elements of a value are known to be zero."""
        contents = self.contents(value)
        return contents is not None and contents.finite and contents.low == 0 and contents.high == 0

    def bits(self, value: Value) -> str | bytes | None:
        """Return what values with the same bits have alike: their hash, or a digest of the bytes; None without both."""
        if value.id not in self._bits:
            self._bits[value.id] = value.hash or _digest(value)
        return self._bits[value.id]

    @cached_property
    def batch(self) -> list[Value]:
        """The tensors that outermost modules are given, and no module made."""
        return [value for value in batch_of(self.rank) if value.numel > 1]

    @cached_property
    def reduces(self) -> bool:
        """True if it has collectives that reduce."""
        return any("reduce" in call.op and is_collective(call.op) for call in self.flow.calls())

    @cached_property
    def meets_in_forward(self) -> bool:
        """True if the forward of a model has collectives: its ranks share more than gradients."""
        return any(is_collective(call.op) and call.module and call.phase == "forward" for call in self.flow.calls())

    def runs_in(self, call: Call, file: str, *functions: str) -> bool:
        """Return True if a call was made by one of some functions of torch's, in a file of this name."""
        return any(
            frame.function.rpartition(".")[2] in functions and frame.file.replace("\\", "/").endswith(file)
            for frame in call.stack
        )

    # -- backward ----------------------------------------------------------------------------------------------------

    @cached_property
    def losses(self) -> list[Value]:
        """What backward was called on."""
        return roots_of(self.rank)

    @cached_property
    def backward_calls(self) -> list[Call]:
        """The calls that began a backward pass."""
        return [c for c in self.rank.calls.filter(kind="api") if c.op in _BACKWARD and c.forward is None]

    @cached_property
    def behind_loss(self) -> dict[int, Call]:
        """The ops that the losses are computed with, through floating tensors, by id; detached ones too."""
        return self.behind(self.losses)

    @cached_property
    def into_loss(self) -> dict[int, Call]:
        """The ops that the losses depend on in any way: choices, indices and masks too."""
        return self.behind(self.losses, of_all_types=True)

    def behind(self, values: Sequence[Value], *, of_all_types: bool = False) -> dict[int, Call]:
        """Return the forward ops that some values are computed with, through floating tensors or all, by id."""
        found: dict[int, Call] = {}
        waiting, seen = list(values), {value.id for value in values}
        while waiting:
            value = waiting.pop()
            maker = self.flow.maker(value)
            written = self.flow.writer(value)
            for call in [maker, written[0] if written is not None else None]:
                if call is None or call.id in found or call.phase != "forward":
                    continue
                found[call.id] = call
                for _, given in self.flow.reads(call):
                    if (of_all_types or given.is_floating) and given.id not in seen:
                        seen.add(given.id)
                        waiting.append(given)
        return found

    # -- parameters and their gradients ------------------------------------------------------------------------------

    @cached_property
    def accumulated(self) -> dict[int, LeafGradient]:
        """What was accumulated into which leaf, by id of the call."""
        return leaf_gradients(self.flow)

    @cached_property
    def knows_all_gradients(self) -> bool:
        """True if it is known of every gradient that was accumulated which leaf it is of."""
        return all(call.id in self.accumulated for call in accumulations(self.flow))

    @cached_property
    def named(self) -> dict[str, tuple[Value, int]]:
        """The parameters that got a gradient, by name, each with the id of the last call that accumulated into it."""
        found: dict[str, tuple[Value, int]] = {}
        last: dict[tuple[object, ...], int] = {}
        for number, one in self.accumulated.items():
            place = one.leaf.record.place
            last[place] = max(last.get(place, 0), number)
        for record in self.rank.tables.gradients:
            if record.call in self.accumulated:
                leaf = self.accumulated[record.call].leaf
                found[record.name] = leaf, last[leaf.record.place]
        return found

    @cached_property
    def leaves(self) -> dict[tuple[object, ...], tuple[Value, Call]]:
        """The leaves that the forward computes gradients through, by place, each with its first reader."""
        found: dict[tuple[object, ...], tuple[Value, Call]] = {}
        for call in self.flow.calls():
            if call.phase != "forward" or call.grad_enabled is not True or call.sequence_nr is None:
                continue
            for _, value in self.flow.reads(call):
                if value.requires_grad and value.is_floating and not value.opaque and self.flow.maker(value) is None:
                    found.setdefault(value.record.place, (value, call))
        return found

    @cached_property
    def parameters_read(self) -> dict[int, tuple[Value, Call]]:
        """The leaves that the forward reads, with or without grad, by their storage, each with its first reader.

        Leaves that share one storage are left out: nobody knows which of them a view is of.
        """
        places: dict[int, set[tuple[object, ...]]] = defaultdict(set)
        leaves: dict[int, Value] = {}
        for record in self.rank.tables.values.records():
            value = self.rank.value_by_id(record.id)
            is_candidate = value.requires_grad and value.is_floating and value.storage and not value.opaque
            if is_candidate and self.flow.writer(value) is None:
                places[value.storage].add(tuple(sorted(value.shape)))
                leaves.setdefault(value.storage, value)
        found: dict[int, tuple[Value, Call]] = {}
        for call in self.flow.calls():
            if call.phase == "forward" and not self.flow.is_view(call):
                for _, value in self.flow.reads(call):
                    leaf = leaves.get(value.storage)
                    if leaf is not None and value.version == leaf.version and len(places[value.storage]) == 1:
                        found.setdefault(value.storage, (leaf, call))
        return found

    @cached_property
    def gradient_storages(self) -> dict[int, str]:
        """Names of parameters by the storage that their gradient lies in; only of gradients with one of their own."""
        found: dict[int, list[str]] = defaultdict(list)
        for name, gradient in self.rank.gradients.items():
            found[gradient.storage].append(name)
        return {storage: names[0] for storage, names in found.items() if storage and len(names) == 1}

    # -- optimizers --------------------------------------------------------------------------------------------------

    @cached_property
    def held(self) -> dict[int, list[str]]:
        """Names of what the optimizers that stepped hold, by number of the optimizer; "" for those of no model."""
        return {row.optimizer: list(row.names) for row in self.rank.tables.parameters if row.optimizer >= 0}

    @cached_property
    def held_by_others(self) -> list[str] | None:
        """Names of what the optimizers hold that did not step; None where those that stepped hold every parameter."""
        return next((list(row.names) for row in self.rank.tables.parameters if row.optimizer == _OF_OTHERS), None)

    @cached_property
    def trainable(self) -> list[str]:
        """Names of the models' parameters that require grad."""
        return [n for row in self.rank.tables.parameters if row.optimizer == _OF_MODELS for n in row.names]

    @cached_property
    def optimizer_steps(self) -> list[OptimizerStep]:
        """The steps of optimizers, in order; those within a step of another are part of it."""
        found = []
        for position in self._positions.get(("aten", _RANGE), ()):
            begins = self.rank.call_at(position)
            text = _first_text(begins)
            if begins.phase != "optimizer" and text.startswith(_STEP):
                name = text.removeprefix(_STEP).removesuffix(".step")
                found.append(OptimizerStep(name, begins, tuple(self._ran_in_range(position))))
        return found

    def _ran_in_range(self, position: int) -> Iterator[Call]:
        """Yield the ops of the optimizer that ran in the range that begins at a position; its hooks may run others."""
        has_ends, depth = ("aten", _RANGE_ENDS) in self._positions, 1
        calls = self.rank.calls
        for later in range(position + 1, len(calls)):
            call = calls[later]
            if call.kind != "aten":
                continue
            depth += (_base(call.op) == _RANGE) - (_base(call.op) == _RANGE_ENDS)
            if not depth or not (has_ends or call.phase == "optimizer"):
                break
            if call.phase == "optimizer":
                yield call

    @cached_property
    def clearings(self) -> list[Call]:
        """The calls at which optimizers clear gradients."""
        return [call for call in self.ops(_RANGE) if _first_text(call).startswith(_CLEARS)]

    @cached_property
    def applied_gradients(self) -> dict[str, Value]:
        """The gradients as optimizers first read them, by name of the parameter."""
        places = {value.record.place: name for name, value in self.rank.gradients.items() if value.storage}
        found: dict[str, Value] = {}
        for optimizer in self.optimizer_steps:
            for _, value in (item for call in optimizer.calls for item in call.input_values()):
                name = places.get(value.record.place)
                if name is not None and value.version >= self.rank.gradients[name].version:
                    found.setdefault(name, value)
        return found

    def applied(self, name: str) -> list[OptimizerStep]:
        """Return the optimizers' steps that wrote a parameter that got a gradient; [] of one that nobody knows."""
        if name not in self.named:
            return []
        storage = self.named[name][0].storage
        return [step for step in self.optimizer_steps if storage in step.writes]


def _base(op: str) -> str:
    name = read_op_name(op)
    return name.name.rstrip("_") if name.namespace else op.rpartition(".")[2]


def _first_text(call: Call) -> str:
    given: Any = call.record.args[0] if call.record.args else ""
    return given if isinstance(given, str) else ""


def calls_around(call: Call) -> list[Call]:
    """Return the calls that a call is part of, the innermost first."""
    found = []
    while call.parent is not None:
        call = call.parent
        found.append(call)
    return found


def _digest(value: Value) -> bytes | None:
    tensor = value.shared_tensor() if value.has_data else None
    if tensor is None or tensor.layout is not torch.strided:
        return None
    return xxhash.xxh3_128_digest(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
