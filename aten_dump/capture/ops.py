"""Records aten ops, one Call each, from inside `__torch_dispatch__`. This is the hot path."""

from __future__ import annotations

from typing import Any

import torch

from ..store.records import CALL, Call, Tree
from .autograd import COMPILED_NODE, running_node
from .calls import API, ATEN, BACKWARD, FORWARD, NODE, OPTIMIZER, RECOMPUTE, OpenCall, ThreadState
from .collectives import WAIT_TENSOR, name_group
from .interning import calling_frame
from .recorder import StepRecorder
from .schemas import WRITES_RESULT, OpPlan
from .trees import encode


class PendingOp:
    """An op between its inputs having been recorded and its outputs."""

    __slots__ = (
        "args",
        "forward",
        "fqn",
        "id",
        "kwargs",
        "module",
        "n",
        "parent_id",
        "phase",
        "recorded",
        "sequence_nr",
        "stack",
        "start_ns",
    )

    def __init__(self, number: int, sequence_nr: int | None, top: OpenCall | None) -> None:
        self.id = number
        self.sequence_nr = sequence_nr
        self.phase = FORWARD
        self.forward = 0
        self.stack = 0
        self.recorded = True
        self.start_ns = 0
        self.n = -1  # of the call's name; given at the end, unless inner ops come before that
        self.args: list[Tree] = []
        self.kwargs: dict[str, Tree] | None = None
        if top is None:
            self.parent_id, self.module, self.fqn = 0, 0, ""
        else:
            self.parent_id, self.module, self.fqn = top.visible, top.module, top.fqn


def begin_op(
    recorder: StepRecorder, thread: ThreadState, plan: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> PendingOp:
    """Record the inputs of an op that is about to run, as they are before it."""
    top = recorder.top(thread)
    number = recorder.next_id()
    op = PendingOp(number, recorder.links.claims.claim(thread, number), top)
    _place(recorder, thread, op, top)
    if recorder.flights.pending and plan.reads and plan.name.op != WAIT_TENSOR:
        recorder.flights.reading(args, kwargs)
    if thread.aside or (top is not None and top.kind == NODE and top.name.op == COMPILED_NODE):
        recorder.values.invalidate_since(thread.storages_before)
    op.recorded = recorder.filter.records(ATEN, plan.name, op.fqn)
    if not op.recorded:
        recorder.coverage.add("selection")
    else:
        keep = recorder.keep_inputs
        value_of = recorder.values.value_of
        op.args = [encode(a, value_of, keep) for a in args]
        op.kwargs = {k: encode(v, value_of, keep) for k, v in kwargs.items()} if kwargs else None
        if plan.random and recorder.random_states.wanted:
            recorder.random_states.keep(number, args, kwargs)
        if plan.collective:
            name_group(plan, op.args, args)
    thread.last_call = op.id
    op.start_ns = recorder.now_ns()
    return op


def _place(recorder: StepRecorder, thread: ThreadState, op: PendingOp, top: OpenCall | None) -> None:
    """Set phase, forward link and stack, and the parent where it is not the top of the thread's stack."""
    node = running_node()
    if node is not None and thread.optimizer_depth and thread.optimizer_runs_in_backward():
        node = None
    if node is not None and (recorder.links.recomputes(node) or (top is not None and top.phase == RECOMPUTE)):
        op.phase = RECOMPUTE  # the reader finds the original call: it has the same inputs
    elif node is not None:
        call, op.forward, running = recorder.links.run_of(node)
        op.phase = BACKWARD
        if call is None:
            op.sequence_nr = node._sequence_nr() & (2**63 - 1)
        else:
            op.sequence_nr = call.sequence_nr
            op.module, op.fqn = call.module, call.fqn
            if not running or top is None:  # gradients are added up after the node's run; or another thread runs it
                op.parent_id = call.visible
    elif thread.optimizer_depth and not torch.is_grad_enabled():
        op.phase = OPTIMIZER
    if top is not None and top.kind in (API, NODE):
        op.stack = top.stack
    elif recorder.stacks:
        anchor = recorder.anchor(thread)
        op.stack = recorder.interner.stack(
            calling_frame(3), anchor.frame if anchor else None, anchor.stack if anchor else 0
        )


def end_op(
    recorder: StepRecorder,
    thread: ThreadState,
    plan: OpPlan,
    op: PendingOp,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    result: Any,
    error: BaseException | None,
) -> None:
    """Record what an op returned and wrote."""
    duration_ns = recorder.now_ns() - op.start_ns
    if plan.collective and error is None and _departs(recorder, thread, plan, op, args, kwargs, result, duration_ns):
        return
    written = _written(recorder, plan, args, kwargs, op.recorded and error is None)
    if plan.undefined_output and error is None:
        recorder.values.undefined(result)
    elif plan.copies and not plan.writes and error is None:
        recorder.values.cloned(result, args[0])
    if not op.recorded:
        return
    outputs = encode(result, recorder.values.value_of, recorder.keep_outputs)
    text = None if error is None else f"{type(error).__name__}: {error}"
    n = recorder.count(plan.name) if op.n < 0 else op.n
    _emit(recorder, thread.number, plan, op, n, duration_ns, outputs, written, text)


def _departs(
    recorder: StepRecorder,
    thread: ThreadState,
    plan: OpPlan,
    op: PendingOp,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    result: Any,
    duration_ns: int,
) -> bool:
    """Tell whether the op started a collective whose result is still to come: its record is written when it has."""
    if plan.name.op == WAIT_TENSOR:
        recorder.flights.waited_tensor(args[0])
        return False
    if plan.name.op in WRITES_RESULT:
        recorder.values.written(result[WRITES_RESULT[plan.name.op]])
        return False
    top = recorder.top(thread)
    flight = recorder.flights.depart(plan, args, kwargs, result, top if top is not None and top.kind == API else None)
    if flight is None:
        return False
    n = (recorder.count(plan.name) if op.n < 0 else op.n) if op.recorded else 0

    def finish() -> None:
        outputs = encode(result, recorder.values.value_of, recorder.keep_outputs)
        written: list[Tree] = []
        for name, target in flight.targets.items():
            written += (name, encode(target, recorder.values.value_of, recorder.keep_outputs))
        _emit(recorder, thread.number, plan, op, n, duration_ns, outputs, written or None, None)

    if op.recorded:
        flight.finishers.append(finish)
    return True


def _emit(
    recorder: StepRecorder,
    thread: int,
    plan: OpPlan,
    op: PendingOp,
    n: int,
    duration_ns: int,
    outputs: Tree,
    written: list[Tree] | None,
    text: str | None,
) -> None:
    number = recorder.interner.op(ATEN, plan.name, plan.arguments)
    recorder.calls += 1
    recorder.emit(
        Call(
            CALL,
            op.id,
            op.parent_id,
            number,
            n,
            0,
            op.phase,
            thread,
            op.start_ns,
            duration_ns,
            op.sequence_nr,
            op.stack,
            op.module,
            op.forward,
            op.args,
            op.kwargs,
            outputs,
            written,
            text,
        )
    )


def _written(
    recorder: StepRecorder, plan: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any], record: bool
) -> list[Tree] | None:
    """Begin new versions of what the op wrote, and return [name, tree, ...] of it."""
    if not plan.writes:
        return None
    if plan.enabled_by is not None and not (
        args[plan.enabled_by] if plan.enabled_by < len(args) else kwargs.get(plan.arguments[plan.enabled_by])
    ):
        return None
    written: list[Tree] = []
    for position, name in plan.writes:
        target = args[position] if position < len(args) else kwargs.get(name)
        tensors = [
            t for t in (target if isinstance(target, (list, tuple)) else (target,)) if isinstance(t, torch.Tensor)
        ]
        _note_write(recorder, plan, args, tensors)
        if plan.bumps_versions:
            _bump_versions(tensors)
        if record and tensors:
            written += (name, encode(target, recorder.values.value_of, recorder.keep_outputs))
    return written or None


def _note_write(recorder: StepRecorder, plan: OpPlan, args: tuple[Any, ...], tensors: list[torch.Tensor]) -> None:
    """Begin new versions of `tensors`, which the op wrote."""
    values = recorder.values
    if plan.copies and len(args) > 1 and isinstance(args[1], torch.Tensor):
        values.copied(tensors[0], args[1])
        return
    note = values.version_of if plan.reshapes else values.written
    for tensor in tensors:
        note(tensor)


def _bump_versions(tensors: list[torch.Tensor]) -> None:
    """Count a write in autograd's version counters, as the bare program does.

    ``aten::_foreach_*_`` ops write through inner in-place ops, which count the write; under any dispatch mode those run
    below the key that counts. Without this, "modified by an inplace operation" would not be raised.
    """
    torch.autograd.graph.increment_version([t for t in tensors if not t.is_inference()])
