"""Call and Calls: executions of ops, Python APIs, modules and autograd nodes, as light handles over records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, overload

from ..store import records
from ..store.write_only_inputs import read_inputs
from .argument_decoding import Frame, decode, output_slots, slots
from .call_filter import CallFilter
from .values import Value

if TYPE_CHECKING:
    from .rank import RankDump

_RECOMPUTE: Final = records.PHASES.index("recompute")


class Call:
    """One execution of an op, a Python API, a module or an autograd node."""

    __slots__ = ("_rank", "_record")

    def __init__(self, rank: RankDump, record: records.Call) -> None:
        self._rank = rank
        self._record = record

    @property
    def rank(self) -> RankDump:
        """The step and rank it was recorded in."""
        return self._rank

    @property
    def id(self) -> int:
        """Counts from 1 in the order in which calls began."""
        return self._record.id

    @property
    def name(self) -> str:
        """``{Prefix}.{api}.{n}.{phase}``, as in ``Aten.addmm.3.forward``."""
        return self._rank.tables.call_name(self._record)

    @property
    def op(self) -> str:
        """``"aten::add_.Tensor"``, ``"torch.nn.functional.linear"``, a module's class, a node's name."""
        return self._rank.tables.op(self._record.op).op

    @property
    def api(self) -> str:
        """Prefix and api of the name, as in ``Functional.linear``."""
        op = self._rank.tables.op(self._record.op)
        return f"{op.prefix}.{op.api}"

    @property
    def kind(self) -> str:
        """``"aten"``, ``"api"``, ``"module"`` or ``"node"``."""
        return records.CALL_KINDS[self._rank.tables.op(self._record.op).call_kind]

    @property
    def phase(self) -> str:
        """``"forward"``, ``"recompute"``, ``"backward"`` or ``"optimizer"``."""
        return records.PHASES[self._record.phase]

    @property
    def n(self) -> int:
        """The number in the name: calls of this prefix and api before this one."""
        return self._record.n

    @property
    def repeat(self) -> int:
        """0, or k for the k-th further backward of the same forward call."""
        return self._record.repeat

    @property
    def parent(self) -> Call | None:
        """The call that it ran in; None at the root and where the parent was cut short before it was recorded."""
        return self._rank.find(self._record.parent)

    @property
    def parent_id(self) -> int:
        return self._record.parent

    @property
    def children(self) -> list[Call]:
        """The calls that ran directly in it, in execution order."""
        return self._rank.children_of(self._record.id)

    @property
    def module(self) -> str:
        """Path of the innermost module it ran in, ``""`` outside of modules."""
        return self._rank.tables.text(self._record.module)

    @property
    def stack(self) -> list[Frame]:
        """Source lines, innermost first; empty when stacks were not recorded."""
        return self._rank.tables.stack(self._record.stack)

    @property
    def source(self) -> Frame | None:
        """The innermost line of the user's own code."""
        return next((frame for frame in self.stack if frame.user), None)

    @property
    def thread(self) -> int:
        """0 is the thread that entered the mode."""
        return self._record.thread

    @property
    def start_ns(self) -> int:
        """Unix time."""
        return self._rank.tables.header.start_unix_ns + self._record.start_ns

    @property
    def duration_ns(self) -> int:
        return self._record.duration_ns

    @property
    def sequence_nr(self) -> int | None:
        """Autograd's number of the node that was made (forward) or that ran (backward)."""
        return self._record.sequence_nr

    @property
    def error(self) -> str | None:
        """``"RuntimeError: ..."`` when the call raised."""
        return self._record.error

    @property
    def finished(self) -> bool:
        """False for a module call that was cut short: it began and no end was recorded."""
        return self._record.id not in self._rank.tables.unfinished

    @property
    def inputs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments, as trees of Value and plain literals."""
        value = self._rank.value_by_id
        args = tuple(decode(tree, value) for tree in self._record.args)
        return args, {name: decode(tree, value) for name, tree in (self._record.kwargs or {}).items()}

    @property
    def outputs(self) -> Any:
        """A tree of Value and plain literals."""
        return decode(self._record.outputs, self._rank.value_by_id)

    @property
    def mutated(self) -> tuple[str, ...]:
        """Names of the arguments that were written in place."""
        return tuple((self._record.written or [])[::2])

    @property
    def mutated_values(self) -> dict[str, Any]:
        """The arguments that were written in place, as they were after the write."""
        written = self._record.written or []
        return {
            name: decode(tree, self._rank.value_by_id) for name, tree in zip(written[::2], written[1::2], strict=False)
        }

    @property
    def arguments(self) -> tuple[str, ...]:
        """Argument names of the op's schema, in order; empty where unknown."""
        return tuple(self._rank.tables.op(self._record.op).arguments)

    @property
    def forward(self) -> Call | None:
        """The forward call that this backward or recomputed call belongs to."""
        record = self._record
        if record.phase == _RECOMPUTE and not record.forward:
            return self._rank.find(self._rank.links.originals.get(record.id, 0))
        return self._rank.find(record.forward)

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
        tables = self._rank.tables
        record = tables.random.get(self._record.id)
        if record is None or record.blob not in tables.blobs:
            return None
        nbytes = tables.blobs[record.blob].nbytes
        return tables.text(record.device), bytes(self._rank.read_blob(record.blob, 0, nbytes))

    def input_values(self) -> list[tuple[str, Value]]:
        """Return (slot, value) of every tensor in the inputs."""
        return self._values(self.input_slots())

    def output_values(self) -> list[tuple[str, Value]]:
        """Return (slot, value) of every tensor in the outputs."""
        return self._values(output_slots(self._record.outputs))

    def written_values(self) -> list[tuple[str, Value]]:
        """Return (slot, value) of every tensor that was written in place, after the write."""
        return self._values(self.written_slots())

    def input_slots(self) -> Iterator[tuple[str, int]]:
        """Yield (slot, value id) of the inputs."""
        for number, tree in enumerate(self._record.args):
            yield from slots(tree, f"input.{number}")
        for name, tree in (self._record.kwargs or {}).items():
            yield from slots(tree, f"input.{name}")

    def read_value_ids(self) -> set[int]:
        """Return the ids of the inputs but those that the call only wrote to, as an ``out=`` or a ``zero_`` does."""
        trees = read_inputs(self._rank.tables.op(self._record.op), self._record)
        return {value for tree in trees for _, value in slots(tree, "")}

    def output_slots(self) -> Iterator[tuple[str, int]]:
        """Yield (slot, value id) of the outputs."""
        return output_slots(self._record.outputs)

    def written_slots(self) -> Iterator[tuple[str, int]]:
        """Yield (slot, value id) of the arguments written in place."""
        written = self._record.written or []
        for name, tree in zip(written[::2], written[1::2], strict=False):
            yield from slots(tree, f"mutated.{name}")

    def _values(self, found: Iterator[tuple[str, int]]) -> list[tuple[str, Value]]:
        return [(slot, self._rank.value_by_id(number)) for slot, number in found]

    @property
    def record(self) -> records.Call:
        """The record as it is in the index, for tools that work on ids."""
        return self._record

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Call) and self._record.id == other._record.id and self._rank == other._rank

    def __hash__(self) -> int:
        return hash((self._rank, self._record.id))

    def __repr__(self) -> str:
        return f"<Call {self.id} {self.name}>"


class Calls(Sequence[Call]):
    """Calls in execution order; each handle is made when asked for."""

    __slots__ = ("_positions", "_rank")

    def __init__(self, rank: RankDump, positions: Sequence[int]) -> None:
        self._rank = rank
        self._positions = positions

    @overload
    def __getitem__(self, at: int) -> Call: ...

    @overload
    def __getitem__(self, at: slice) -> Calls: ...

    def __getitem__(self, at: int | slice) -> Call | Calls:
        if isinstance(at, slice):
            return Calls(self._rank, self._positions[at])
        return self._rank.call_at(self._positions[at])

    def __len__(self) -> int:
        return len(self._positions)

    def __contains__(self, call: object) -> bool:
        if not isinstance(call, Call) or call.rank != self._rank:
            return False
        position = self._rank.tables.positions.get(call.id)
        return position is not None and position in self._positions

    def filter(
        self,
        op: str | None = None,
        kind: str | None = None,
        phase: str | None = None,
        module: str | None = None,
        name: str | None = None,
    ) -> Calls:
        """Return the calls that match all of what is given.

        Args:
            op: an exact name (``"aten::addmm"``, ``"Functional.linear"``), a part of one in any case, or
                ``"regex:..."``, tried on the op and on prefix and api of the call's name.
            kind: ``"aten"``, ``"api"``, ``"module"`` or ``"node"``.
            phase: ``"forward"``, ``"recompute"``, ``"backward"`` or ``"optimizer"``.
            module: glob on the module path; a match takes in everything inside the module.
            name: as `op`, tried on the whole call name.

        Raises:
            ConfigError: an unknown kind or phase, or a regular expression that does not compile.
        """
        wanted = CallFilter(self._rank.tables, op=op, kind=kind, phase=phase, module=module, name=name)
        return Calls(self._rank, wanted.select(self._positions))

    def __repr__(self) -> str:
        return f"<{len(self)} calls of {self._rank.where}>"
