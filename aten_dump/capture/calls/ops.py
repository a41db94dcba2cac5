"""Records aten ops, one Call each, from inside `__torch_dispatch__`. This is the hot path.

Theory of operation
    Most ops write nothing: their inputs are the same values after the op as before it, so all of such a call is
    recorded in one go when it has returned (`record`). Ops that write, start a collective or run other ops in Python
    are looked at twice: `begin_op` takes the inputs before, `end_op` the rest. What can be known of an op once is in
    its `OpEntry`; the recorder holds one for each op that it has seen in the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns
from typing import Any, Final, NamedTuple

import torch
from torch._C import _get_tracing_state as get_tracing_state
from torch._C import _len_torch_dispatch_stack as len_dispatch_stack
from torch._C._autograd import _get_sequence_nr as get_sequence_nr

from ...store.op_names import WAIT_TENSOR
from ...store.records import CALL, TREE_VALUE, Call, Tree
from ..autograd.graph_links import is_grad_enabled, running_node
from ..naming.call_name import API, ATEN, BACKWARD, FORWARD, NODE, OPTIMIZER, RECOMPUTE
from ..naming.op_schemas import WRITES_RESULT, OpPlan, plan_of
from ..step.collectives import name_group
from ..step.open_calls import Counter, ThreadState
from ..step.own_code import OwnCode
from ..step.program_frames import program_frame
from ..torch_internals.tracing import kind_of_types
from ..values.argument_encoding import encode, encode_all
from .op_writes import note_writes
from .step_recorder import StepRecorder, text_of

_INT64: Final = 2**63 - 1
_TENSOR: Final = torch.Tensor
_new: Final = tuple.__new__  # of a record, without the checks of a NamedTuple's own


class OpEntry:
    """What a step knows of one op."""

    __slots__ = ("counter", "func", "is_simple", "number", "plan")

    def __init__(self, func: Any, plan: OpPlan, counter: Counter, is_simple: bool) -> None:
        self.func = func  # keeps its id, under which this is found: hashing an OpOverload costs more
        self.plan = plan
        self.counter = counter
        self.is_simple = is_simple  # `record` does for it
        self.number = 0  # Op id; 0 as long as none of its calls is recorded


def entry_of(recorder: StepRecorder, func: Any) -> OpEntry:
    """Return the step's entry of an op."""
    return recorder.op_entries.get(id(func)) or _new_entry(recorder, func)


def _new_entry(recorder: StepRecorder, func: Any) -> OpEntry:
    plan = plan_of(func)
    is_simple = plan.name.prefix == "Aten" and not (  # other kernels may write more than their schemas say
        plan.writes
        or plan.collective
        or plan.undefined_output
        or plan.is_question
        or plan.is_higher_order
        or (plan.random and recorder.random_states.wanted)
    )
    entry = recorder.op_entries[id(func)] = OpEntry(func, plan, recorder.counter(plan.name), is_simple)
    return entry


class PendingOp:
    """An op under way."""

    __slots__ = (
        "args",
        "before",
        "entry",
        "id",
        "kwargs",
        "n",
        "place",
        "recorded",
        "sequence_nr",
        "start_ns",
        "thread",
    )

    def __init__(self, recorder: StepRecorder, thread: ThreadState, entry: OpEntry) -> None:
        number = self.id = recorder.next_id()
        self.entry = entry
        self.thread = thread.number
        claims = get_sequence_nr() != thread.claimed
        self.sequence_nr = recorder.links.claims.claim(thread, number) if claims else None
        self.before = thread.last_call  # the aten call before it on this thread
        self.place = _NOWHERE
        self.recorded = True
        self.n = -1  # of the call's name; given at the end, unless inner ops come before that
        self.args: list[Tree] = []
        self.kwargs: dict[str, Tree] | None = None
        self.start_ns = 0

    def start(self, recorder: StepRecorder, thread: ThreadState) -> None:
        """Note that the op runs from now on."""
        thread.last_call = self.id
        thread.last_output = None
        self.start_ns = perf_counter_ns() - recorder.start_ns


class Place(NamedTuple):
    """Where a call belongs."""

    parent: int
    phase: int
    sequence_nr: int | None
    stack: int
    module: int
    forward: int
    fqn: str


_NOWHERE: Final = Place(0, FORWARD, None, 0, 0, 0, "")


def _place(recorder: StepRecorder, thread: ThreadState, sequence_nr: int | None) -> Place:
    """Return where an op belongs; `sequence_nr` is that of the autograd node that it made."""
    top = recorder.top(thread) if thread.stack else None
    node = running_node()
    if top is None:
        parent = module = stack = 0
        fqn = ""
    else:
        parent, module, fqn, stack = top.visible, top.module, top.fqn, top.stack
    if recorder.stacks and (top is None or top.kind not in (API, NODE)):
        stack = _stack(recorder, thread)
    if node is None or (thread.optimizer_depth and thread.optimizer_runs_in_backward()):
        phase = OPTIMIZER if thread.optimizer_depth and not is_grad_enabled() else FORWARD
        return _new(Place, (parent, phase, sequence_nr, stack, module, 0, fqn))
    links = recorder.links
    if (top is not None and top.phase == RECOMPUTE) or links.recomputes(node):
        return Place(parent, RECOMPUTE, sequence_nr, stack, module, 0, fqn)  # the reader finds the original call
    tag = links.tag_of(node)
    call = None if tag is None else tag.call
    if tag is None or call is None:
        return Place(parent, BACKWARD, node._sequence_nr() & _INT64, stack, module, links.forward_of(node), fqn)
    if call is not top and (top is None or (not tag.running and top.kind != ATEN)):
        parent = call.visible  # gradients are added up after the node's run; or another thread runs it
    return _new(Place, (parent, BACKWARD, call.sequence_nr, stack, call.module, tag.forward, call.fqn))


def _stack(recorder: StepRecorder, thread: ThreadState) -> int:
    """Return the stack of the op that runs; that of the call around it where no frame of the program is on it."""
    anchor = recorder.anchor(thread)
    frame = program_frame()
    if anchor is None:
        return recorder.interner.stack(frame, None, 0)
    return anchor.stack if frame is None else recorder.interner.stack(frame, anchor.frame, anchor.stack)


def start_op(recorder: StepRecorder, thread: ThreadState, func: Any, types: Any) -> PendingOp | None:
    """Begin an op that is recorded when it has run, by `record`; None where the op is to be watched closely."""
    entry = entry_of(recorder, func)
    if (
        not entry.is_simple
        or (types and kind_of_types(types))
        or thread.aside
        or thread.compiled_nodes
        or recorder.flights.pending
        or get_tracing_state() is not None
        or len_dispatch_stack()
    ):
        return None
    op = PendingOp(recorder, thread, entry)
    op.start(recorder, thread)
    return op


def record(
    recorder: StepRecorder,
    thread: ThreadState,
    op: PendingOp,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    result: Any,
    error: BaseException | None,
) -> None:
    """Record an op that has run and written nothing."""
    duration_ns = recorder.now_ns() - op.start_ns
    with OwnCode(thread):
        plan = op.entry.plan
        op.place = _place(recorder, thread, op.sequence_nr)
        if not recorder.records_everything and not recorder.filter.records(ATEN, plan.name, op.place.fqn):
            recorder.coverage.add("selection")
            return
        top = thread.stack[-1] if thread.stack else None
        if top is not None and op.before < top.id:  # nothing was run since the call around it was recorded
            _note_inputs(recorder, op, args, kwargs, top.raw, top.args)
        else:
            _note_inputs(recorder, op, args, kwargs)
        if type(result) is _TENSOR:
            if plan.copies and isinstance(args[0], _TENSOR):
                recorder.values.storages.cloned(result, args[0])
            outputs: Tree = [TREE_VALUE, recorder.values.value_of(result, recorder.keep_outputs)]
            thread.last_output = (id(result), outputs)
        else:
            outputs = encode(result, recorder.values, recorder.keep_outputs)
        _emit(recorder, op, duration_ns, outputs, None, text_of(error))


def _note_inputs(
    recorder: StepRecorder,
    op: PendingOp,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    known: tuple[Any, ...] = (),
    known_trees: Sequence[Tree] = (),
) -> None:
    """Record what an op was given; see `encode_all` for what is known."""
    values, keep = recorder.values, recorder.keep_inputs
    op.args = encode_all(args, values, keep, known, known_trees)
    if kwargs:
        op.kwargs = {k: encode(v, values, keep) for k, v in kwargs.items()}


def begin_op(
    recorder: StepRecorder, thread: ThreadState, entry: OpEntry, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> PendingOp:
    """Record the inputs of an op that is about to run, as they are before it."""
    with OwnCode(thread):
        plan = entry.plan
        op = PendingOp(recorder, thread, entry)
        op.place = _place(recorder, thread, op.sequence_nr)
        if recorder.flights.pending and plan.reads and plan.name.op != WAIT_TENSOR:
            recorder.flights.reading(args, kwargs)
        if thread.aside or thread.compiled_nodes:
            recorder.values.storages.invalidate_since(thread.storages_before)
        op.recorded = recorder.filter.records(ATEN, plan.name, op.place.fqn)
        if not op.recorded:
            recorder.coverage.add("selection")
        else:
            _note_inputs(recorder, op, args, kwargs)
            if plan.random and recorder.random_states.wanted:
                recorder.random_states.keep(op.id, args, kwargs)
            if plan.collective:
                name_group(plan, op.args, args)
        op.start(recorder, thread)
        return op


def end_op(
    recorder: StepRecorder,
    thread: ThreadState,
    op: PendingOp,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    result: Any,
    error: BaseException | None,
) -> None:
    """Record what an op that `begin_op` began returned and wrote."""
    duration_ns = recorder.now_ns() - op.start_ns
    with OwnCode(thread):
        plan = op.entry.plan
        if plan.collective and error is None and _departs(recorder, thread, op, args, kwargs, result, duration_ns):
            return
        written = note_writes(recorder, plan, args, kwargs, op.recorded and error is None)
        if plan.undefined_output and error is None:
            recorder.values.storages.undefined(result)
        elif plan.copies and not plan.writes and error is None and isinstance(args[0], _TENSOR):
            recorder.values.storages.cloned(result, args[0])
        if op.recorded:
            outputs = encode(result, recorder.values, recorder.keep_outputs)
            _emit(recorder, op, duration_ns, outputs, written, text_of(error))


def _departs(
    recorder: StepRecorder,
    thread: ThreadState,
    op: PendingOp,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    result: Any,
    duration_ns: int,
) -> bool:
    """Tell whether the op started a collective whose result is still to come: its record is written when it has."""
    plan = op.entry.plan
    if plan.name.op == WAIT_TENSOR:
        recorder.flights.waited_tensor(args[0])
        return False
    if plan.name.op in WRITES_RESULT:
        recorder.values.storages.written(result[WRITES_RESULT[plan.name.op]])
        return False
    top = recorder.top(thread)
    flight = recorder.flights.depart(plan, args, kwargs, result, top if top is not None and top.kind == API else None)
    if flight is None:
        return False
    if op.recorded and op.n < 0:
        op.n = op.entry.counter.next()

    def finish() -> None:
        outputs = encode(result, recorder.values, recorder.keep_outputs)
        written: list[Tree] = []
        for name, target in flight.targets.items():
            written += (name, encode(target, recorder.values, recorder.keep_outputs))
        _emit(recorder, op, duration_ns, outputs, written or None, None)

    if op.recorded:
        flight.finishers.append(finish)
    return True


def _emit(
    recorder: StepRecorder,
    op: PendingOp,
    duration_ns: int,
    outputs: Tree,
    written: list[Tree] | None,
    error: str | None,
) -> None:
    entry = op.entry
    plan = entry.plan
    if not entry.number:
        entry.number = recorder.interner.op(ATEN, plan.name, plan.arguments)
    n = entry.counter.next() if op.n < 0 else op.n
    recorder.count_call()
    parent, phase, sequence_nr, stack, module, forward, _ = op.place
    recorder.emit(
        _new(
            Call,
            (
                CALL,
                op.id,
                parent,
                entry.number,
                n,
                0,
                phase,
                op.thread,
                op.start_ns,
                duration_ns,
                sequence_nr,
                stack,
                module,
                forward,
                op.args,
                op.kwargs,
                outputs,
                written,
                error,
            ),
        )
    )
