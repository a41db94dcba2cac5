"""RankDump: everything that one rank recorded in one step."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from itertools import islice
from typing import Any, Final

import numpy as np
import torch

from ..errors import MissingDataError
from ..store import records
from ..store.argument_trees import items, walk
from .argument_decoding import decode
from .handle_sequences import Calls, Values
from .handles import Call, Recording, Value
from .index.tables import Tables
from .loss_scale import LossScale, loss_scales_of
from .named_by_program import (
    Mark,
    RecordedModule,
    SavedTensor,
    gradients,
    marks,
    recorded_module,
    saved_tensors,
    scopes,
)
from .optimizer_groups import OptimizerGroup, optimizer_groups
from .saved_for_backward import PackedTensor, SavedForBackward, SavedValues, distinct_nbytes
from .shown.notebook_html import rank_html
from .unseen_writes import UNSEEN, UnseenWrite, named, unseen_writes
from .wholeness import State, lacks_of, state_of
from .why_absent import missing_parts, no_such_call, why_no_calls

_MOST_COMPLETIONS: Final = 100_000  # names: more would make each Tab wait


class RankDump(Recording):
    """What one rank recorded in one step. Its index is read at first use, its shards where a tensor is asked for.

    It has more than twenty methods: it is all that can be asked of a recording, in one place.

    Example:
        >>> rank = open_dump("dump").step(0).rank(0)
        >>> rank.calls.filter(op="addmm", phase="forward")[0].name
        'Aten.addmm.0.forward'
        >>> rank.tensor("Aten.addmm.0.forward.output.0").shape
        torch.Size([3, 4])
        >>> rank.module("block.mlp").outputs
        <...>
    """

    def anew(self, like: Tables | None = None) -> RankDump:
        """Return it as it was when opened: nothing that has been read is held.

        Args:
            like: tables of another step or rank, which save time where this one says the same.
        """
        fresh = RankDump(self.directory, self.step, self.rank, self.source.verify)
        fresh.source.like = like
        return fresh

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle it as it was when opened: neither what has been read nor open files travel."""
        if type(self) is not RankDump:
            raise TypeError(f"a {type(self).__name__} is not copied; copy what it was made of")
        return RankDump, (self.directory, self.step, self.rank, self.source.verify)

    @property
    def header(self) -> records.Header:
        """The header of the index: format version, step, rank, world size and config."""
        return self.tables.header

    @property
    def complete(self) -> bool:
        """True when the step was committed, by the program or a recovery; `state` says whether all of it is there."""
        return self.tables.commit is not None

    @property
    def state(self) -> State:
        """``complete``, ``interrupted`` or ``damaged``; of what is not complete no tool says that nothing is wrong."""
        return state_of(self.tables, self._lost_blobs)

    @cached_property
    def missing(self) -> list[str]:
        """What a recording lacks that is not whole, in sentences; empty for a whole one."""
        return missing_parts(self.tables, self._lost_blobs)

    @property
    def lacks(self) -> str:
        """State and missing parts as a clause; "" for a complete one."""
        return "" if self.state == "complete" else lacks_of(self.state, self.missing)

    @cached_property
    def index_lacks(self) -> str:
        """The same of the index alone: for who reads no bytes, or notes which of them are gone."""
        state = state_of(self.tables, 0)
        return "" if state == "complete" else lacks_of(state, missing_parts(self.tables, 0))

    @cached_property
    def _lost_blobs(self) -> int:
        return len(self.source.lost_blobs(self.tables))

    @property
    def notes(self) -> list[records.Note]:
        """What was not seen, not stored, or went wrong while recording."""
        return [named(self.values, note) if note.code == UNSEEN else note for note in self.tables.notes]

    @property
    def unseen_writes(self) -> list[UnseenWrite]:
        """Memory that changed although no op wrote to it, if the recording looked for that (``dedup``)."""
        return unseen_writes(self.values)

    @property
    def why_no_calls(self) -> str | None:
        """Where the configuration left out every call, the sentence that says so; None elsewhere."""
        return why_no_calls(self.where, len(self.calls), self.notes)

    @property
    def seconds(self) -> dict[str, float]:
        """What recording cost, by part; empty without a commit record."""
        return {} if self.tables.commit is None else dict(self.tables.commit.seconds)

    @cached_property
    def calls(self) -> Calls:
        """All calls, in execution order."""
        return Calls(self, range(len(self.tables.calls)))

    def calls_by_kind(self) -> Counter[str]:
        """Count the calls of each kind."""
        kinds = {number: records.CALL_KINDS[op.call_kind] for number, op in self.tables.ops.items()}
        ops, counts = np.unique(self.tables.calls.column("op"), return_counts=True)
        found: Counter[str] = Counter()
        for op, count in zip(ops.tolist(), counts.tolist(), strict=True):
            found[kinds.get(op, "unknown")] += count
        return found

    @property
    def roots(self) -> list[Call]:
        """The calls that ran in no other recorded call."""
        return self.children_of(0)

    @cached_property
    def values(self) -> Values:
        """All values, in order of id."""
        return Values(self, self.tables.values.places.in_order())

    @cached_property
    def gradients(self) -> dict[str, Value]:
        """The gradient of each parameter at the end of the last backward, by the parameter's path."""
        return gradients(self)

    @cached_property
    def saved(self) -> dict[str, SavedTensor]:
        """The tensors that ``DumpMode.save`` recorded, by name, each with its gradients."""
        return saved_tensors(self, self.calls)

    @cached_property
    def marks(self) -> list[Mark]:
        """The texts that ``DumpMode.mark`` recorded, in execution order."""
        return marks(self.calls)

    @cached_property
    def scopes(self) -> dict[str, list[Call]]:
        """The scopes that the program entered (``DumpMode.scope``), by name, in execution order."""
        return scopes(self.calls)

    def module(self, path: str) -> RecordedModule:
        """Return what a module did: ``rank.module("layer4").outputs``; ``""`` is the model itself.

        Raises:
            MissingDataError: none of its calls was recorded; the message names some that were.
        """
        return recorded_module(self, self.calls, path)

    @cached_property
    def loss_scales(self) -> list[LossScale]:
        """What gradient scalers did: scale, whether Inf or NaN was found and the optimizer's step skipped, next scale.

        Needs data of the scaler's ops: ``data`` of statistic, tensor or full.
        """
        return loss_scales_of(self.calls)

    @property
    def loss_scale(self) -> float | None:
        """The loss scale of the step, of the last update where there were several; None without one."""
        return self.loss_scales[-1].scale if self.loss_scales else None

    @cached_property
    def optimizers(self) -> tuple[OptimizerGroup, ...]:
        """Learning rate, weight decay, betas and the like of each parameter group of the optimizers that stepped."""
        return optimizer_groups(self.tables.optimizer_groups)

    def __getitem__(self, name: str) -> Call:
        """Return a call by name.

        Raises:
            MissingDataError: there is none; the message has the nearest names.
        """
        position = self.links.names.get(name)
        if position is None:
            raise MissingDataError(no_such_call(name, self.links.names, self.where, self.command("show")))
        return self.call_at(position)

    def __contains__(self, name: object) -> bool:
        return name in self.links.names

    def _ipython_key_completions_(self) -> list[str]:
        return list(islice(self.links.names, _MOST_COMPLETIONS))

    def _repr_html_(self) -> str:
        return rank_html(self.where, self.tables, self.missing)

    def call(self, id: int) -> Call:
        """Return a call by id.

        Raises:
            MissingDataError: there is none.
        """
        found = self.find(id)
        if found is None:
            last = self.tables.calls[-1].id if len(self.tables.calls) else 0
            raise MissingDataError(
                f"no call {id} in {self.where}; ids go from 1 to {last}: list them with `{self.command('show')}`"
            )
        return found

    def tensor(self, name: str) -> torch.Tensor:
        """Read a tensor by name.

        Args:
            name: a call's name and a slot: ``Aten.addmm.3.forward.output.0``, ``….input.1``, ``….input.0.2``
                (item of a list), ``….input.alpha``, ``….mutated.self`` (after the write).

        Returns:
            A tensor on the CPU with the recorded shape, dtype and stride.

        Raises:
            MissingDataError: no such call or slot, no tensor there, or no bytes of it; the message says why.
        """
        return self.value(name).tensor()

    def value(self, name: str) -> Value:
        """Return a value by the same names as `tensor`."""
        call, slot = self._split(name)
        group, _, steps = slot.partition(".")
        tree = _group_tree(call, group)
        try:
            found = decode(walk(tree, _named_step(call, group, steps, tree)), self.value_by_id)
        except KeyError:
            raise MissingDataError(self._no_slot(call, slot)) from None
        if isinstance(found, Value):
            return found
        kind = "a tree of several values" if isinstance(found, (list, tuple, dict)) else f"{found!r}, not a tensor"
        raise MissingDataError(f"{name} in {self.where} is {kind}; {_slots_text(call)}")

    def _split(self, name: str) -> tuple[Call, str]:
        """Split a tensor's name into the longest call name that begins it, and the slot."""
        names = self.links.names
        head, dot, _ = name.rpartition(".") if isinstance(name, str) else ("", "", "")
        while dot:
            if head in names:
                return self.call_at(names[head]), name[len(head) + 1 :]
            head, dot, _ = head.rpartition(".")
        if name in names:
            raise MissingDataError(f"{name} in {self.where} is a call, not a tensor; {_slots_text(self[name])}")
        raise MissingDataError(no_such_call(name, names, self.where, self.command("show")))

    def _no_slot(self, call: Call, slot: str) -> str:
        return f"no {slot!r} in call {call.name} of {self.where}; {_slots_text(call)}"

    def saved_for_backward(self) -> SavedForBackward:
        """Return which forward calls keep which values alive for backward, and how many bytes."""
        found = []
        for record in self.tables.saved:
            values = tuple(self.value_by_id(number) for number in record.values)
            found.append(SavedValues(self.find(record.call), record.node, values, distinct_nbytes(values)))
        return SavedForBackward(found)

    def packed_tensors(self) -> list[PackedTensor]:
        """Return what was saved for backward and fetched again, in the order in which hooks saw it saved.

        Empty unless the program was recorded with ``saved_tensors="hooks"``.
        """
        fetched: dict[int, list[tuple[Call | None, int]]] = {}
        for record in self.tables.fetched:
            fetched.setdefault(record.packed, []).append((self.find(record.call), record.at_ns))
        return [
            PackedTensor(
                self.value_by_id(packed.value) if packed.value else None,
                self.find(packed.call),
                packed.at_ns,
                tuple(fetched.get(packed.id, ())),
            )
            for _, packed in sorted(self.tables.packed.items())
        ]


def _group_tree(call: Call, group: str) -> Any:
    """Return what a call was given, returned or wrote, as a tagged tree."""
    record = call.record
    if group == "output":
        return record.outputs if items(record.outputs) is not None else (records.TREE_TUPLE, record.outputs)
    if group == "input":
        named = [item for pair in enumerate(record.args) for item in pair]
        named += [item for pair in (record.kwargs or {}).items() for item in pair]
        return (records.TREE_DICT, *named)
    return (records.TREE_DICT, *(record.written or ())) if group == "mutated" else None


def _named_step(call: Call, group: str, steps: str, tree: Any) -> str:
    """Turn the schema's name of a positional argument into its number."""
    if group != "input":
        return steps
    name, dot, rest = steps.partition(".")
    given = {key for key, _ in items(tree) or ()}
    if name not in given and name in call.arguments:
        return f"{call.arguments.index(name)}{dot}{rest}"
    return steps


def _slots_text(call: Call) -> str:
    """Return the slots of a call's tensors, for an error."""
    found = [slot for part in (call.input_slots(), call.output_slots(), call.written_slots()) for slot, _ in part]
    return f"its tensors are {', '.join(found)}" if found else "it has no tensors"
