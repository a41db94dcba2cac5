"""Call, Value and the recording that they are in: light handles over the records of one step and rank.

Call and Value know each other by nature, so they are one file; what needs no other call or value is in their bases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import FormatError
from ..store import records
from ..torch_names import DTYPES
from .argument_decoding import decode
from .call_facts import CallFacts
from .index.links import Links
from .index.source import Source
from .index.summary import Summary, shard_sizes, summarize
from .index.tables import Tables
from .kernels import CompiledKernel, Kernels
from .shown.callers import Callers
from .shown.command_lines import command_line
from .shown.notebook_html import call_html, value_html
from .shown.source_lines import source_lines
from .tensors.packed_blobs import find_packed
from .tensors.partial_reading import Index, load_blocks
from .tensors.recent_tensors import RecentTensors
from .tensors.tensor_reading import load
from .value_facts import ValueFacts

_RECOMPUTE: Final = records.PHASES.index("recompute")
_MOST_HANDLES: Final = 1 << 17  # calls, and values, whose handles are kept


class Call(CallFacts):
    """One execution of an op, a Python API, a module or an autograd node.

    It has more than twenty methods, a property for each relation to other calls and values: it is the public `Call`.

    Example:
        >>> call = open_dump("dump").step(0).rank(0)["Functional.linear.0.forward"]
        >>> call.module, [one.name for one in call.backward]
        ('block.mlp', ['Functional.linear.0.backward'])
    """

    __slots__ = ("_inputs", "_rank", "_values")

    def __init__(self, rank: Recording, record: records.Call) -> None:
        super().__init__(rank.tables, record)
        self._rank = rank
        self._inputs: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self._values: dict[str, list[tuple[str, Value]]] = {}  # by what they are to the call

    @property
    def rank(self) -> Recording:
        """The step and rank it was recorded in."""
        return self._rank

    @property
    def parent(self) -> Call | None:
        """The call that it ran in; None at the root and where the parent was cut short before it was recorded."""
        return self._rank.find(self._record.parent)

    @property
    def children(self) -> list[Call]:
        """The calls that ran directly in it, in execution order."""
        return self._rank.children_of(self._record.id)

    @property
    def inputs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments, as trees of Value and plain literals."""
        value = self._rank.value_by_id
        args = tuple(decode(tree, value) for tree in self._record.args)
        return args, {name: decode(tree, value) for name, tree in (self._record.kwargs or {}).items()}

    def shared_inputs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the same to who does not change it: what was decoded is kept."""
        if self._inputs is None:
            self._inputs = self.inputs
        return self._inputs

    @property
    def kernel(self) -> CompiledKernel | None:
        """What it computes, if it is a call of a kernel that a compiler generated (``compile="kernels"``)."""
        return self._rank.kernels.of(self._record.op)

    @property
    def outputs(self) -> Any:
        """A tree of Value and plain literals."""
        return decode(self._record.outputs, self._rank.value_by_id)

    @property
    def mutated_values(self) -> dict[str, Any]:
        """The arguments that were written in place, as they were after the write."""
        written = self._record.written or []
        return {
            name: decode(tree, self._rank.value_by_id) for name, tree in zip(written[::2], written[1::2], strict=False)
        }

    @property
    def forward(self) -> Call | None:
        """The forward call that this backward or recomputed call belongs to."""
        record = self._record
        if record.phase == _RECOMPUTE and not record.forward:
            return self._rank.find(self._rank.links.originals.get(record.id, 0))
        return self._rank.find(record.forward)

    @property
    def where(self) -> str:
        """Where the program makes it; see `source_lines`.

        A backward call in code of the program's own, as a custom ``Function.backward`` has, is made there; any other
        where its forward call is made.
        """
        return self._tables.told(self._stack_text, source_lines)

    @property
    def called_from(self) -> str:
        """The caller's line where `where` is called from several places, and the line alone is ambiguous; else ""."""
        return str(self._rank.callers.of(self._stack_text) or "")

    @property
    def _stack_text(self) -> int:
        stack = self._record.stack
        if self.phase != "backward" or self._rank.callers.is_within_backward(stack):
            return stack
        return (self.forward or self).record.stack

    @property
    def backward(self) -> list[Call]:
        """The calls of every kind of its backward, in execution order."""
        return [call for call in self._rank.belonging_to(self._record.id) if call.phase == "backward"]

    @property
    def recomputed(self) -> list[Call]:
        """The calls that ran it again for checkpointing, in execution order."""
        return [call for call in self._rank.belonging_to(self._record.id) if call.phase == "recompute"]

    @property
    def random_state(self) -> tuple[str, bytes] | None:
        """Device and state (bytes of ``Generator.get_state()``) of the generator it drew from; None if not recorded."""
        tables = self._tables
        record = tables.random.get(self._record.id)
        if record is None or record.blob not in tables.blobs:
            return None
        nbytes = tables.blobs[record.blob].nbytes
        return tables.text(record.device), bytes(self._rank.read_blob(record.blob, 0, nbytes))

    def input_values(self) -> list[tuple[str, Value]]:
        """Return (slot, value) of every tensor in the inputs."""
        return self._found("inputs", self.input_slots)

    def output_values(self) -> list[tuple[str, Value]]:
        """Return (slot, value) of every tensor in the outputs."""
        return self._found("outputs", self.output_slots)

    def written_values(self) -> list[tuple[str, Value]]:
        """Return (slot, value) of every tensor that was written in place, after the write."""
        return self._found("written", self.written_slots)

    def result_values(self) -> list[tuple[str, Value]]:
        """Return (slot, value) of every tensor that the call made: its outputs, then what it wrote in place."""
        return [*self.output_values(), *self.written_values()]

    def all_values(self) -> list[tuple[str, Value]]:
        """Return (slot, value) of every tensor of the call: inputs, outputs, what it wrote in place."""
        return [*self.input_values(), *self.result_values()]

    def _found(self, role: str, slots: Callable[[], Iterator[tuple[str, int]]]) -> list[tuple[str, Value]]:
        found = self._values.get(role)
        if found is None:
            found = self._values[role] = [(slot, self._rank.value_by_id(number)) for slot, number in slots()]
        return found.copy()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Call) and self._record.id == other._record.id and self._rank == other._rank

    def __hash__(self) -> int:
        return hash((self._rank, self._record.id))

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle it as a place in its recording, which is read again."""
        return _call_of, (self._rank, self._record.id)

    def __repr__(self) -> str:
        return f"<Call {self.id} {self.name}>"

    def _repr_html_(self) -> str:
        return call_html(self, self.all_values(), self.forward)


class Value(ValueFacts):
    """One tensor at one moment: a storage, its write version and a geometry on it.

    Example:
        >>> value = open_dump("dump").step(0).rank(0)["Aten.addmm.0.forward"].outputs
        >>> value.shape, value.dtype, value.producer[0].name
        (torch.Size([3, 4]), torch.float32, 'Aten.addmm.0.forward')
    """

    __slots__ = ("_rank",)

    def __init__(self, rank: Recording, record: records.Value) -> None:
        super().__init__(rank.tables, record)
        self._rank = rank

    @property
    def nbytes(self) -> int:
        """Bytes of its elements: more than its storage has when it is expanded, those of its parts when sparse."""
        parts = self.parts
        if parts and self._record.storage == 0:
            return sum(part.nbytes for part in parts.values())
        dtype = DTYPES.get(self.dtype_name)
        return self.numel * (1 if dtype is None else dtype.itemsize)

    @property
    def parts(self) -> dict[str, Value]:
        """The tensors it is made of, by name: ``indices`` and ``values`` of a sparse one; empty for most."""
        parts = (self._record.extra or {}).get("parts") or {}
        return {name: self._rank.value_by_id(number) for name, number in parts.items() if isinstance(number, int)}

    @property
    def private_memory(self) -> Value | None:
        """Its memory as it lay in `private_format`, of the padded shape; None without ``private_formats="both"``."""
        found = (self._record.extra or {}).get("memory")
        return None if found is None else self._rank.value_by_id(found)

    @property
    def has_data(self) -> bool:
        """True when its bytes, or those of its parts, were recorded."""
        if self.data is not None:
            return True
        return bool(parts := self.parts) and all(part.has_data for part in parts.values())

    @property
    def rank(self) -> Recording:
        """The step and rank it was recorded in."""
        return self._rank

    @property
    def from_outside(self) -> bool:
        """True when no recorded call made its storage: a parameter, a buffer, an input of the step."""
        first = self._rank.links.first_value(self._record.storage, self._record.id)
        return self._rank.links.producers.get(first) is None

    @property
    def producer(self) -> tuple[Call, str] | None:
        """The innermost call that made it and its slot there; None for what was created before this step."""
        return self._rank.producer_of(self.id)

    @property
    def consumers(self) -> list[tuple[Call, str]]:
        """The calls of every kind that read it, with the slot, in execution order."""
        return self._rank.consumers_of(self.id)

    def tensor(self) -> torch.Tensor:
        """Read the recorded bytes.

        Returns:
            A tensor on the CPU, in memory of its own, with the recorded shape, dtype and stride; with
            ``DumpConfig.sample`` a 1-D tensor of the first elements.

        Raises:
            MissingDataError: there are no bytes; the message says why and what to do.
            FormatError: the shard is damaged.
        """
        parts = {name: part.tensor for name, part in self.parts.items()}
        return load(self, self._tables, self._rank.source, parts)

    def shared_tensor(self) -> torch.Tensor:
        """Return the same to who does not write to it: what was read last is kept, and given to others as well."""
        return self._rank.recent.get(self._record.id, self.tensor)

    def blocks(self, block_bytes: int = 8 << 20) -> Iterator[tuple[Index, torch.Tensor]]:
        """Read as `tensor` does, but a block at a time: ``(index, tensor()[index])`` in row-major order.

        Only what must be read whole is one block, ``((), tensor())``: what is no larger, sparse, quantized, sampled,
        conjugate or of several ranks.
        """
        whole = self.nbytes <= block_bytes or self.data is None
        found = None if whole else load_blocks(self, self._tables, self._rank.source, block_bytes)
        yield from [((), self.tensor())] if found is None else found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Value) and self._record.id == other._record.id and self._rank == other._rank

    def __hash__(self) -> int:
        return hash((self._rank, self._record.id))

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle it as a place in its recording, which is read again."""
        return _value_of, (self._rank, self._record.id)

    def __repr__(self) -> str:
        name = f"{self.id} {self.dtype_name}{list(self._record.shape)} {self.device_name}"
        return f"<Value {name} undefined>" if self.undefined else f"<Value {name}>"

    def _repr_html_(self) -> str:
        made, read = self.producer, self.consumers
        names = [f"{call.name}.{slot}" for call, slot in ([made] if made else []) + read]
        return value_html(self, self.nbytes, names[0] if made else "", names[1:] if made else names)


def _call_of(rank: Recording, id: int) -> Call:
    return rank.call_at(rank.tables.positions[id])


def _value_of(rank: Recording, id: int) -> Value:
    return rank.value_by_id(id)


class Recording:
    """The calls and values of one step and rank, by id and position: what handles stand on.

    `RankDump` adds what a user asks of it. It has more than twenty methods: all that handles ask of it is here.

    Attributes:
        line_names: names that lines have in another version of the program, if it is compared with one.
    """

    line_names: Mapping[str, str] = MappingProxyType({})

    def __init__(self, directory: Path, step: int, rank: int, verify: bool = True) -> None:
        self.directory = directory
        self.step = step
        self.rank = rank
        self.source = Source(directory, verify)
        self.recent = RecentTensors()
        self._calls: dict[int, Call] = {}
        self._handles: dict[int, Value] = {}

    @property
    def where(self) -> str:
        """Path, step and rank, as errors name them."""
        return f"{self.directory.parent.parent} (step {self.step}, rank {self.rank})"

    def let_go(self) -> None:
        """Free all that was read and close the files, of a recording that nobody uses any more.

        Handles and their recording hold each other: of a thousand ranks read in turn, all would stay in memory.
        """
        self.__dict__.clear()

    def command(self, name: str, *arguments: str) -> str:
        """Return a command about this step and rank, to paste: ``aten-dump show dump --step 3 --rank 0``."""
        return command_line(name, self.directory.parent.parent, *arguments, step=self.step, rank=self.rank)

    @cached_property
    def tables(self) -> Tables:
        """The records of the index by kind and id, for tools that work on ids."""
        return self.source.tables(self.where)

    @cached_property
    def links(self) -> Links:
        """The relations between calls and values, for tools that work on ids."""
        return Links(self.tables)

    @cached_property
    def kernels(self) -> Kernels:
        """The kernels that a compiler generated, by the id of their op."""
        return Kernels(self.tables)

    @cached_property
    def callers(self) -> Callers:
        """From where lines of the program are called, for tools that say which of several calls of a helper it is."""
        return Callers(self.tables)

    @property
    def config(self) -> dict[str, Any]:
        """The DumpConfig it was recorded with, as plain values."""
        return self.tables.header.config

    def summary(self) -> Summary:
        """Return what the two ends of the index say, and sizes."""
        return summarize(self.directory)

    @property
    def shard_bytes(self) -> int:
        """The bytes of its shards."""
        return sum(shard_sizes(self.directory))

    def call_at(self, position: int) -> Call:
        """Return the call at a position of `calls`."""
        found = self._calls.get(position)
        if found is None or found._tables is not self.tables:
            if len(self._calls) >= _MOST_HANDLES:
                self._calls.clear()
            found = self._calls[position] = Call(self, self.tables.calls[position])
        return found

    def find(self, id: int) -> Call | None:
        """Return a call by id, or None."""
        position = self.tables.positions.get(id)
        return None if position is None else self.call_at(position)

    def value_by_id(self, id: int) -> Value:
        """Return a value by id.

        Raises:
            FormatError: the index has none of that id.
        """
        found = self._handles.get(id)
        if found is None or found._tables is not self.tables:
            record = self.tables.values.find(id)
            if record is None:
                text = f"{self.where} names value {id}, which its index does not hold; run `aten-dump verify`"
                raise FormatError(text)
            if len(self._handles) >= _MOST_HANDLES:
                self._handles.clear()
            found = self._handles[id] = Value(self, record)
        return found

    def number_of(self, call: int) -> int:
        """Return the rank that made a call, by id."""
        return self.rank

    def children_of(self, id: int) -> list[Call]:
        """Return the calls that ran directly in a call; in none for id 0."""
        return [self.call_at(position) for position in self.links.children.get(id, ())]

    def belonging_to(self, id: int) -> list[Call]:
        """Return the backward and recomputed calls of a forward call."""
        return [self.call_at(position) for position in self.links.belonging.get(id, ())]

    def producer_of(self, value: int) -> tuple[Call, str] | None:
        """Return the call that made a value, and its slot there."""
        position = self.links.producers.get(value)
        if position is None:
            return None
        call = self.call_at(position)
        made = [*call.output_slots(), *call.written_slots()]
        return call, next(slot for slot, number in made if number == value)

    def consumers_of(self, value: int) -> list[tuple[Call, str]]:
        """Return the calls that read a value, with the slots."""
        calls = (self.call_at(position) for position in self.links.consumers.get(value, ()))
        return [(call, slot) for call in calls for slot, number in call.input_slots() if number == value]

    def read_blob(self, blob: int, start: int, stop: int) -> NDArray[np.uint8]:
        """Read bytes [start, stop) of a blob, into memory of their own."""
        return self.source.read(self.tables, self.tables.blobs[blob], start, stop)

    @cached_property
    def packed_blobs(self) -> frozenset[int]:
        """Blobs that hold several stretches of memory side by side: small tensors, stored together."""
        return find_packed(self.tables, self.value_by_id)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Recording) and self.directory == other.directory)

    def __hash__(self) -> int:
        return hash(self.directory)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.where}>"
