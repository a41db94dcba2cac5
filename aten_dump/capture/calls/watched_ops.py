"""Ops that may be more than a computation on plain tensors: looked at before and after they run.

They write to their arguments, or wait for other threads or ranks, or run other ops in Python, or are of namespaces
whose kernels may do so without a word in their schemas.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any, Final

import torch

from ...store.op_names import OUT_ARGUMENTS, WAIT_TENSOR
from ...store.records import OPEN, Open, Tree
from ..memory.storage_table import states_of
from ..memory.storages import StorageState
from ..naming.call_name import API, ATEN
from ..naming.op_schemas import WRITES_RESULT, OpPlan
from ..step.collectives import Message, name_group
from ..step.threads import ThreadState
from ..torch_internals.engine import running_node
from ..values.argument_encoding import encode, encode_all
from ..values.containers import tensors_in
from ..values.value_ids import ValueIds
from .op_entries import OpEntry
from .ops import Ops, PendingOp

_TENSOR: Final = torch.Tensor


def watch(
    ops: Ops, thread: ThreadState, entry: OpEntry, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> WatchedOp | None:
    """Record the inputs of an op that is about to run, as they are before it; None where the recorder failed."""
    try:
        with thread.own:
            op = WatchedOp()
            op.node = node = running_node()
            op.tag = None if node is None else ops.tags.of(node)  # `Ops.start` has entered it
            op.begin(ops, thread, entry)
            op.take(args, kwargs)
            op.start_ns = perf_counter_ns() - ops.step.start_ns
            return op
    except Exception as error:  # noqa: BLE001 - `failed` raises or reports it
        ops.step.failed(error)
        return None


class WatchedOp(PendingOp):
    """An op under way that is looked at before and after its run."""

    __slots__ = ()

    def take(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record the inputs of the op, which is about to run."""
        ops = self.ops
        thread = self.thread
        plan = self.entry.plan
        if self.sequence_nr is None and plan.writes:
            self.sequence_nr = ops.claims.claim_ahead(thread, self.before, self.id, args)
        elif plan.may_be_ahead:
            self._note_ahead(args)
        ops.places.find(self, thread)
        if ops.flights.pending and plan.reads and plan.name.op != WAIT_TENSOR:
            ops.flights.reading(args, kwargs)
        if self.entry.locate is not None:
            self.entry.locate(self, ops.step.interner)
        if ops.step.threads.doubts and (thread.aside or thread.compiled_nodes):
            ops.values.storages.seen_bytes.doubt(_storages_of((args, kwargs), ops))
        self.recorded = ops.step.selection.records(ATEN, plan.name, self.fqn, self.phase, self.forward)
        if not self.recorded:
            ops.step.coverage.add("selection")
            return
        self.args = encode_all(args, ops.values, ops.keep_inputs)
        if kwargs:
            self.kwargs = {k: encode(v, ops.values, ops.keep_inputs) for k, v in kwargs.items()}
        if plan.random and ops.random_states.wanted:
            ops.random_states.keep(self.id, args, kwargs)
        if plan.collective:
            name_group(plan, self.args, args)
            if plan.name.op != WAIT_TENSOR and plan.name.op not in WRITES_RESULT:
                is_on_host = all(tensor.device.type == "cpu" for _, tensor in tensors_in((args, kwargs)))
                self._report_begun(wait=is_on_host)

    def _report_begun(self, *, wait: bool) -> None:
        """Write that a collective begins: should it hang, or end the process, the dump says in which.

        On a device it only begins to be written: the program runs ahead of the device, and is not to wait for it.
        """
        entry, step = self.entry, self.ops.step
        if not entry.number:
            entry.number = step.interner.op(ATEN, entry.plan.name, entry.plan.arguments)
        self.n = entry.counter.next()
        number, start_ns = self.thread.number, perf_counter_ns() - step.start_ns
        begun = (self.id, self.parent, entry.number, self.n, self.phase, number, start_ns, self.stack, self.module)
        step.emit(Open(OPEN, *begun, self.args, self.kwargs))
        step.sink.settle(wait=wait)

    def _record(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, error: BaseException | None, duration_ns: int
    ) -> None:
        plan = self.entry.plan
        values = self.ops.values
        keep = self.ops.keep_outputs
        if plan.collective and error is None and self._departs(args, kwargs, result, duration_ns):
            return
        has_run = error is None
        if plan.moves and has_run:
            values.storages.moved(args[0])
        written = note_writes(plan, args, kwargs, values, keep if self.recorded and has_run else None)
        if plan.undefined_output and has_run:
            values.storages.undefined(result)
        elif plan.copies and not plan.writes and has_run and isinstance(args[0], _TENSOR):
            values.storages.cloned(result, args[0])
        if (
            has_run
            and self.ops.step.threads.doubts
            and (self.thread.aside or self.thread.compiled_nodes)
            and not plan.undefined_output
        ):
            targets = [args[at] if at < len(args) else kwargs.get(name) for at, name in plan.writes]
            values.storages.seen_bytes.believe(_storages_of((result, targets), self.ops))
        if self.recorded:
            self._emit(duration_ns, encode(result, values, keep), written, error)

    def _departs(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, duration_ns: int) -> bool:
        """Return True if the op started a collective whose result is still to come: its record waits for it."""
        ops = self.ops
        plan = self.entry.plan
        if plan.name.op == WAIT_TENSOR:
            ops.flights.waited_tensor(args[0])
            return False
        if plan.name.op in WRITES_RESULT:
            written = result[WRITES_RESULT[plan.name.op]]
            if OUT_ARGUMENTS[plan.name.op] not in plan.arguments:
                ops.values.storages.undefined(written)
            ops.values.storages.written(written)
            return False
        top = ops.step.top(self.thread)
        flight = ops.flights.depart(plan, args, kwargs, result, top if top is not None and top.kind == API else None)
        if flight is None:
            return False
        if not self.recorded:
            return True
        if self.n < 0:
            self.n = self.entry.counter.next()
        flight.op = self

        is_message = isinstance(flight, Message)  # whose result is a Work, which holds what is sent: not kept
        returned = encode(result, ops.values, ops.keep_outputs) if is_message else result

        def finish() -> None:
            outputs = returned if is_message else encode(returned, ops.values, ops.keep_outputs)
            written: list[Tree] = []
            for name, target in flight.targets.items():
                written += (name, encode(target, ops.values, ops.keep_outputs))
            self._emit(duration_ns, outputs, written or None, None)

        flight.finishers.append(finish)
        return True


def _storages_of(item: Any, ops: Ops) -> list[StorageState]:
    return states_of((tensor for _, tensor in tensors_in(item)), ops.values.storages)


def note_writes(
    plan: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any], values: ValueIds, keep: bool | None
) -> list[Tree] | None:
    """Begin new versions of what the op wrote, and return [name, tree, ...] of it.

    Args:
        plan: of the op.
        args: what it was given.
        kwargs: by name.
        values: of the step.
        keep: keep the data of what was written; None: return nothing, the call is not recorded.
    """
    if not plan.writes:
        return None
    if plan.enabled_by is not None and not (
        args[plan.enabled_by] if plan.enabled_by < len(args) else kwargs.get(plan.arguments[plan.enabled_by])
    ):
        return None
    written: list[Tree] = []
    for position, name in plan.writes:
        target = args[position] if position < len(args) else kwargs.get(name)
        tensors = [t for t in (target if isinstance(target, (list, tuple)) else (target,)) if isinstance(t, _TENSOR)]
        _begin_versions(values, plan, args, tensors)
        if keep is not None and tensors:
            written += (name, encode(target, values, keep))
    return written or None


def _begin_versions(values: ValueIds, plan: OpPlan, args: tuple[Any, ...], tensors: list[torch.Tensor]) -> None:
    """Begin new versions of `tensors`, which the op wrote."""
    if plan.copies and len(args) > 1 and isinstance(args[1], _TENSOR):
        values.storages.copied(tensors[0], args[1])
        return
    storages = values.storages
    for tensor in tensors:
        if not plan.reshapes or storages.state_of(tensor) is None:  # to reshape a sparse tensor writes to its parts
            storages.written(tensor)
