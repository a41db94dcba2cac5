"""What an index says of one call: its record, and what the record names."""

from __future__ import annotations

from collections.abc import Iterator

from ..store import records
from ..store.argument_trees import output_slots, slots, written_slots
from ..store.op_names import read_inputs
from .argument_decoding import Frame
from .index.tables import Tables


class CallFacts:
    """The facts of one call, without its relations to values and other calls.

    It has a property for each fact, more than twenty, as it is the base of the public `Call`.
    """

    __slots__ = ("_op", "_record", "_tables")

    def __init__(self, tables: Tables, record: records.Call) -> None:
        self._tables = tables
        self._record = record
        self._op: records.Op | None = None

    @property
    def _op_record(self) -> records.Op:
        """What it calls; looked up once, as it is asked for at every step of an analysis."""
        found = self._op
        if found is None:
            found = self._op = self._tables.op(self._record.op)
        return found

    @property
    def id(self) -> int:
        """Counts from 1 in the order in which calls began."""
        return self._record.id

    @property
    def name(self) -> str:
        """``{Prefix}.{api}.{n}.{phase}``, as in ``Aten.addmm.3.forward``."""
        return self._tables.call_name(self._record)

    @property
    def op(self) -> str:
        """``"aten::add_.Tensor"``, ``"torch.nn.functional.linear"``, a module's class, a node's name."""
        return self._op_record.op

    @property
    def api(self) -> str:
        """Prefix and api of the name, as in ``Functional.linear``."""
        op = self._op_record
        return f"{op.prefix}.{op.api}"

    @property
    def kind(self) -> str:
        """``"aten"``, ``"api"``, ``"module"`` or ``"node"``."""
        return records.CALL_KINDS[self._op_record.call_kind]

    @property
    def phase(self) -> str:
        """``"forward"``, ``"recompute"``, ``"backward"`` or ``"optimizer"``."""
        return records.PHASES[self._record.phase]

    @property
    def grad_enabled(self) -> bool | None:
        """True if grad mode was on where it began; None in recordings that do not say."""
        return self._tables.modes.grad(self._tables.positions[self._record.id])

    @property
    def training(self) -> bool | None:
        """True if the module it ran in, or its forward call, was in training; None outside of modules."""
        return self._tables.modes.training(self._tables.positions[self._record.id])

    @property
    def n(self) -> int:
        """The number in the name: calls of this prefix and api before this one."""
        return self._record.n

    @property
    def repeat(self) -> int:
        """0, or k for the k-th further backward of the same forward call."""
        return self._record.repeat

    @property
    def parent_id(self) -> int:
        return self._record.parent

    @property
    def module(self) -> str:
        """Path of the innermost module it ran in, ``""`` outside of modules."""
        return self._tables.text(self._record.module)

    @property
    def stack(self) -> list[Frame]:
        """Source lines, innermost first; empty when stacks were not recorded."""
        return self._tables.stack(self._record.stack)

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
        return self._tables.header.start_unix_ns + self._record.start_ns

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
        return self._record.id not in self._tables.unfinished

    @property
    def mutated(self) -> tuple[str, ...]:
        """Names of the arguments that were written in place."""
        return tuple((self._record.written or [])[::2])

    @property
    def arguments(self) -> tuple[str, ...]:
        """Argument names of the op's schema, in order; empty where unknown."""
        return tuple(self._op_record.arguments)

    def input_slots(self) -> Iterator[tuple[str, int]]:
        """Yield (slot, value id) of the inputs."""
        for number, tree in enumerate(self._record.args):
            yield from slots(tree, f"input.{number}")
        for name, tree in (self._record.kwargs or {}).items():
            yield from slots(tree, f"input.{name}")

    def output_slots(self) -> Iterator[tuple[str, int]]:
        """Yield (slot, value id) of the outputs."""
        return output_slots(self._record.outputs)

    def written_slots(self) -> Iterator[tuple[str, int]]:
        """Yield (slot, value id) of the arguments written in place."""
        return written_slots(self._record.written)

    def read_value_ids(self) -> set[int]:
        """Return the ids of the inputs but those that the call only wrote to, as an ``out=`` or a ``zero_`` does."""
        trees = read_inputs(self._op_record, self._record, self._tables.header.rank)
        return {value for tree in trees for _, value in slots(tree, "")}

    @property
    def record(self) -> records.Call:
        """The record as it is in the index, for tools that work on ids."""
        return self._record
