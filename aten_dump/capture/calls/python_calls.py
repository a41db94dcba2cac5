"""Python-level calls and modules, one Call each: opened when they begin, recorded when they have ended."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter_ns
from types import FrameType
from typing import Any, Final
from weakref import ref

import torch

from ...config import DumpConfig
from ...store.records import OPEN, Open, Tree, TreePath
from ..autograd.graph_links import GraphLinks, note_input_edges
from ..collector import HIDES, hide
from ..memory.storages import CLOCK
from ..naming.call_name import API, BACKWARD, MODULE, OPTIMIZER, RECOMPUTE, CallName
from ..step.collectives import Flights
from ..step.open_calls import OpenCall
from ..step.step import Step, text_of
from ..step.threads import ThreadState, output_of
from ..torch_internals.engine import get_sequence_nr, is_grad_enabled, len_dispatch_stack, node_of, running_node
from ..torch_internals.tracing import is_traced
from ..values.argument_encoding import encode, encode_arguments
from ..values.containers import tensors_in
from ..values.value_table import ValueTable

_TENSOR: Final = torch.Tensor
_PARAMETER: Final = torch.nn.Parameter
# They run no op and make no tensor, and what they hand to Python is computed with there.
_HANDS_TO_PYTHON: Final = frozenset(("torch.Tensor.tolist", "torch.Tensor.numpy", "torch.Tensor.__array__"))
_BACKWARD_APIS: Final = frozenset(("torch.Tensor.backward", "torch.autograd.backward", "torch.autograd.grad"))


class PythonCalls:
    """The Python-level calls and modules of one step."""

    def __init__(self, config: DumpConfig, step: Step, values: ValueTable, links: GraphLinks, flights: Flights) -> None:
        self.step = step
        self._values = values
        self._links = links
        self._tags = links.tags
        self._flights = flights
        self._keep_inputs = config.io in ("all", "input")
        self._keep_outputs = config.io in ("all", "output")
        self._keeps_stacks = config.stacks

    def sees(self, name: str) -> bool:
        """Return True if a call that begins here is to be recorded; count it where it cannot be seen."""
        if len_dispatch_stack() == 0:
            self.step.coverage.add("other_threads", name)
            return False
        if self.step.here.state.own.depth:
            return False
        if is_traced():
            self.step.coverage.add("traced")
            return False
        return True

    # -- begin

    def begin(
        self,
        thread: ThreadState,
        name: CallName,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        frame: FrameType | None,
    ) -> OpenCall | None:
        """Open a call that the program makes in `frame`, on the running thread; None where the recorder failed."""
        step = self.step
        own = thread.own
        try:
            own.enter(perf_counter_ns())
            try:
                node = self._enter_node(thread)
                top = step.top(thread) if thread.stack else None
                call = OpenCall(step.next_id(), API, name, top)
                self._place(call, top, frame, thread, node)
                self._note_arguments(call, args, kwargs)
                if name.op in _BACKWARD_APIS:
                    self._links.track_nodes((node_of(t) for _, t in _given(call)), top, thread)
                elif call.recorded and not self._values.finds_unseen_writes:
                    call.raw = args
                call.sequence_start = get_sequence_nr()
                thread.stack.append(call)
            finally:
                own.leave()
        except Exception as error:  # noqa: BLE001 - `failed` raises or reports it
            step.failed(error)
            return None
        call.start_ns = own.left_ns - step.start_ns
        return call

    def begin_module(
        self, name: CallName, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType | None, fqn: str
    ) -> OpenCall | None:
        """Open a call of the module whose path is `fqn`; see `begin`."""
        step = self.step
        thread = step.here.state
        try:
            with thread.own:
                node = self._enter_node(thread)
                top = step.top(thread) if thread.stack else None
                call = OpenCall(step.next_id(), MODULE, name, top)
                call.fqn, call.module = fqn, step.interner.text(fqn)
                self._place(call, top, frame, thread, node)
                call.frame = frame
                self._note_arguments(call, args, kwargs)
                if call.recorded:
                    call.start_ns = perf_counter_ns() - step.start_ns
                    self.emit_begun(call, thread)
                call.sequence_start = get_sequence_nr()
                thread.stack.append(call)
        except Exception as error:  # noqa: BLE001 - `failed` raises or reports it
            step.failed(error)
            return None
        call.start_ns = thread.own.left_ns - step.start_ns
        return call

    def open_remark(self, name: CallName, frame: FrameType | None, thread: ThreadState) -> OpenCall:
        """Return a call that the program names itself, placed where the program is."""
        node = self._enter_node(thread)
        top = self.step.top(thread) if thread.stack else None
        call = OpenCall(self.step.next_id(), API, name, top)
        call.start_ns = perf_counter_ns() - self.step.start_ns
        self._place(call, top, frame, thread, node)
        call.sequence_start = get_sequence_nr()
        return call

    def _enter_node(self, thread: ThreadState) -> Any:
        """Return the autograd node that runs on this thread, whose run has a call from now on; None where none does."""
        node = running_node()
        if node is not None:
            self._tags.entered(node, thread)
        return node

    def _place(
        self, call: OpenCall, top: OpenCall | None, frame: FrameType | None, thread: ThreadState, node: Any
    ) -> None:
        """Set phase, forward link, visibility and stack of a call that begins in the run of `node`, or in none."""
        if is_grad_enabled() is not thread.grad:
            self.step.report_mode(thread, call.id)
        if node is not None and thread.optimizer_depth and thread.optimizer_runs_in_backward():
            node = None
        if node is not None and ((top is not None and top.phase == RECOMPUTE) or self._tags.recomputes(node, thread)):
            call.phase = RECOMPUTE
        elif node is not None:
            call.forward = self._tags.forward_of(node)
            call.phase = BACKWARD
        elif thread.optimizer_depth and not thread.grad:
            call.phase = OPTIMIZER
        if not self.step.selection.takes_all:
            self.step.leave_out(call)
        if self._keeps_stacks:
            call.stack = self.step.stack_of(frame, thread)

    def _note_arguments(self, call: OpenCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record arguments, and through which edges gradients will leave the call: an in-place op changes them."""
        keep = self._keep_inputs and call.recorded
        call.args, call.kwargs, given, in_containers = encode_arguments(args, kwargs, self._values, keep)
        call.writes = CLOCK.writes
        if is_grad_enabled():
            note_input_edges(call, given)
        if in_containers:  # a function may take one out of its list, and let go of it
            call.given = [(path, tensor if len(path) == 1 else ref(tensor)) for path, tensor in given]
        else:
            call.given = given

    def emit_begun(self, call: OpenCall, thread: ThreadState) -> None:
        """Record that a module call has begun: should the program die in it, the dump says where."""
        op = self.step.numbered(call).op
        record = Open(
            OPEN, call.id, call.parent_id, op, call.n, call.phase, thread.number, call.start_ns, call.stack, call.module
        )
        self.step.emit(record)

    def replace_arguments(self, call: OpenCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take these for the arguments of an open call: hooks have replaced those it was begun with."""
        try:
            with self.step.here.state.own:
                self._note_arguments(call, args, kwargs)
        except Exception as error:  # noqa: BLE001 - `failed` raises or reports it
            self.step.failed(error)

    # -- end

    def end(self, thread: ThreadState, call: OpenCall, result: Any, error: BaseException | None) -> None:
        """Close a call of the running thread with its result or the error it raised, unless recording stopped."""
        step = self.step
        if not step.is_on:
            return
        now_ns = perf_counter_ns()
        call.end_ns = now_ns - step.start_ns
        own = thread.own
        try:
            own.enter(now_ns)
            try:
                call.raw = ()
                stack = thread.stack
                if stack and stack[-1] is call:
                    stack.pop()
                else:
                    step.take_off(thread, call)
                if self._flights.pending and error is None and call.kind == API and self._flights.of_call(call):
                    step.numbered(call)
                    if is_grad_enabled():  # now: later calls come upon the nodes that it made before it has landed
                        self._links.track(call, list(tensors_in(result)), thread)
                    self._end_landed(thread, call, result)
                else:
                    self._end_now(thread, call, result, error)
            finally:
                own.leave()
        except Exception as failure:  # noqa: BLE001 - `failed` raises or reports it
            step.failed_beside(error, failure)

    def _end_landed(self, thread: ThreadState, call: OpenCall, result: Any) -> None:
        """Close a call when the collectives that it started have ended."""
        flights = self._flights.of_call(call)
        if flights:
            flights[-1].finishers.append(lambda: self._end_landed(self.step.here.state, call, result))
        else:
            self._end_now(thread, call, result, None, is_linked=True)

    def _end_now(
        self, thread: ThreadState, call: OpenCall, result: Any, error: BaseException | None, is_linked: bool = False
    ) -> None:
        keep = self._keep_outputs and call.recorded
        kind = type(result)
        if kind is _TENSOR or kind is _PARAMETER:
            seen = output_of(thread, result, call.id) if call.recorded else None
            call.outputs = self._values.tree_again(result, seen, keep)
            has_outputs = True
            if error is None and not is_linked and is_grad_enabled():
                self._links.track_one(call, (), result, thread)
        else:
            call.outputs = encode(result, self._values, keep)
            outputs = list(tensors_in(result))
            has_outputs = bool(outputs)
            if has_outputs and error is None and not is_linked and is_grad_enabled():
                self._links.track(call, outputs, thread)
        is_written = CLOCK.writes != call.writes or self._values.finds_unseen_writes
        written = self._written(call, keep) if is_written else None
        call.given = call.frame = call.inner = None
        if HIDES:
            hide(call)
        is_empty = call.kind == API and not has_outputs and error is None and self.step.next_id() == call.id + 1
        if is_empty and not (call.recorded and call.name.op in _HANDS_TO_PYTHON):
            if not call.recorded:
                self.step.coverage.add("selection", count=-1)
            return  # it ran no op and made no tensor: a question, not a computation
        if is_empty:
            call.outputs = None  # all elements: they are in the tensor that was given
        if call.recorded:
            self.step.emit_open(thread, call, call.outputs, written, None if error is None else text_of(error))

    def _written(self, call: OpenCall, keep: bool) -> list[Tree] | None:
        """Return [name, tree, ...] of the arguments that were written while the call ran."""
        values = self._values
        written: list[Tree] = []
        for path, tensor in _given(call):
            if values.written_since(tensor, call.writes):
                name = str(path[0]) if len(path) == 1 else ".".join(map(str, path))
                written += (name, values.tree_of(tensor, keep))
        return written or None


def _given(call: OpenCall) -> Iterator[tuple[TreePath, torch.Tensor]]:
    """Yield the tensors among the arguments of an open call that are still there, with their paths."""
    for path, held in call.given or ():
        tensor = held if isinstance(held, _TENSOR) else held()
        if tensor is not None:
            yield path, tensor
