"""Records aten ops, one Call each, from inside `__torch_dispatch__`. This is the hot path."""

from __future__ import annotations

from typing import Any

import torch

from ..store.records import CALL, Call, Tree
from .autograd import running_node
from .calls import API, ATEN, BACKWARD, FORWARD, NODE, OPTIMIZER, RECOMPUTE, OpenCall, ThreadState
from .interning import calling_frame
from .recorder import StepRecorder
from .schemas import OpPlan
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
    op.recorded = recorder.filter.records(ATEN, plan.name, op.fqn)
    if op.recorded:
        keep = recorder.keep_inputs
        value_of = recorder.values.value_of
        op.args = [encode(a, value_of, keep) for a in args]
        op.kwargs = {k: encode(v, value_of, keep) for k, v in kwargs.items()} if kwargs else None
    thread.last_call = op.id
    op.start_ns = recorder.now_ns()
    return op


def _place(recorder: StepRecorder, thread: ThreadState, op: PendingOp, top: OpenCall | None) -> None:
    """Set phase, forward link and stack, and the parent where it is not the top of the thread's stack."""
    node = running_node()
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
    written = _written(recorder, plan, args, kwargs, op.recorded and error is None)
    if plan.undefined_output and error is None:
        recorder.values.undefined(result)
    if not op.recorded:
        return
    outputs = encode(result, recorder.values.value_of, recorder.keep_outputs)
    text = None if error is None else f"{type(error).__name__}: {error}"
    number = recorder.interner.op(ATEN, plan.name, plan.arguments)
    recorder.calls += 1
    recorder.emit(
        Call(
            CALL,
            op.id,
            op.parent_id,
            number,
            recorder.count(plan.name),
            0,
            op.phase,
            thread.number,
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
        for tensor in tensors:
            recorder.values.written(tensor)
        if plan.bumps_versions:
            _bump_versions(tensors)
        if record and tensors:
            written += (name, encode(target, recorder.values.value_of, recorder.keep_outputs))
    return written or None


def _bump_versions(tensors: list[torch.Tensor]) -> None:
    """Count a write in autograd's version counters, as the bare program does.

    ``aten::_foreach_*_`` ops write through inner in-place ops, which count the write; under any dispatch mode those run
    below the key that counts. Without this, "modified by an inplace operation" would not be raised.
    """
    torch.autograd.graph.increment_version([t for t in tensors if not t.is_inference()])
