"""What the program itself adds to the dump: tensors under a name, marks, and scopes as levels of the tree.

Theory of operation
    Each is a Python-level call of a prefix of its own, which no level and no selection leaves out: `Saved.{name}` with
    the tensor as its input, `Mark.{text}`, and `Scope.{name}` around the calls in it. The gradient of a saved tensor is
    `Saved.{name}.{n}.backward`. It is seen by a hook where autograd computes it, before the node that made the tensor
    runs (of a leaf: on the tensor, as the node that accumulates into it may not be there yet). The hooks hold ids and
    no tensor, and go with the step.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from types import FrameType
from typing import Any, Protocol

import torch

from ...store.records import CALL
from ..naming.call_name import BACKWARD, SCOPE, CallName
from ..step.open_calls import OpenCall
from ..step.step import Step, text_of
from ..step.threads import ThreadState
from ..torch_internals.engine import is_functorch_wrapper, node_of
from ..values.value_table import ValueTable


class Opener(Protocol):
    """Opens calls where the program is: `PythonCalls`."""

    def sees(self, name: str) -> bool: ...

    def open_remark(self, name: CallName, frame: FrameType | None, thread: ThreadState) -> OpenCall: ...

    def emit_begun(self, call: OpenCall, thread: ThreadState) -> None: ...


class Remarks:
    """What the program says in one step."""

    def __init__(self, step: Step, values: ValueTable, calls: Opener) -> None:
        self._step = step
        self._values = values
        self._calls = calls
        self._hooks: list[Any] = []

    def save(self, name: str, tensor: torch.Tensor, frame: FrameType | None) -> None:
        """Record a tensor as `name`, and its gradient whenever backward computes it."""
        call = self._report(CallName("aten_dump.save", "Saved", name), frame, tensor)
        if call is None:
            return
        try:
            with self._step.here.state.own:  # function modes see the reading of attributes
                self._watch_gradient(call, tensor)
        except Exception as error:  # noqa: BLE001 - `failed` raises or reports it
            self._step.failed(error)

    def _watch_gradient(self, call: OpenCall, tensor: torch.Tensor) -> None:
        if not tensor.requires_grad or is_functorch_wrapper(tensor):
            return
        node = node_of(tensor)
        hook = _GradientHook(self, call, None if node is None else tensor.output_nr)
        self._hooks.append(tensor.register_hook(hook) if node is None else node.register_prehook(hook))

    def mark(self, text: str, frame: FrameType | None) -> None:
        """Record a text where the program is."""
        self._report(CallName("aten_dump.mark", "Mark", text), frame, None)

    def _report(self, name: CallName, frame: FrameType | None, tensor: torch.Tensor | None) -> OpenCall | None:
        step = self._step
        if not self._calls.sees(name.api):
            return None
        thread = step.here.state
        try:
            with thread.own:
                call = self._calls.open_remark(name, frame, thread)
                if tensor is not None:
                    call.args = [self._values.tree_of(tensor, True)]
                call.end_ns = call.start_ns
                step.emit_open(thread, call, None, None, None)
        except Exception as error:  # noqa: BLE001 - `failed` raises or reports it
            step.failed(error)
            return None
        return call

    def gradient(self, call: OpenCall, gradient: torch.Tensor) -> None:
        """Record the gradient of a tensor that was saved as `call`."""
        step = self._step
        thread = step.here.state
        if not step.is_on or thread.own.depth:
            return
        try:
            with thread.own:
                parent = thread.stack[-1].visible if thread.stack else step.main_parent()
                value = self._values.tree_of(gradient, True)
                op, repeat = step.numbered(call).op, call.backwards
                call.backwards += 1
                begun = (step.next_id(), parent, op, call.n, repeat, BACKWARD, thread.number, step.now_ns())
                rest = (0, None, call.stack, call.module, call.id, [value], None, None, None, None)
                step.emit_call((CALL, *begun, *rest))
        except Exception as error:  # noqa: BLE001 - `failed` raises or reports it
            step.failed(error)

    # -- scopes

    def begin_scope(self, name: str, frame: FrameType | None) -> OpenCall | None:
        """Open a level of the tree."""
        named = CallName("aten_dump.scope", SCOPE, name)
        if not self._calls.sees(name):
            return None
        thread = self._step.here.state
        try:
            with thread.own:
                call = self._calls.open_remark(named, frame, thread)
                self._calls.emit_begun(call, thread)
                thread.stack.append(call)
        except Exception as error:  # noqa: BLE001 - `failed` raises or reports it
            self._step.failed(error)
            return None
        return call

    def end_scope(self, call: OpenCall, error: BaseException | None) -> None:
        """Close it, unless its step has ended meanwhile; those that opened after it stay, as those of another task."""
        step = self._step
        thread = step.here.state
        if not step.is_on or call not in thread.stack:
            return
        call.end_ns = step.now_ns()
        try:
            with thread.own:
                step.top(thread)  # without nodes of a backward pass that has failed in it
                thread.stack.remove(call)
                step.emit_open(thread, call, None, None, None if error is None else text_of(error))
        except Exception as own:  # noqa: BLE001 - `failed` raises or reports it
            step.failed_beside(error, own)

    def close(self) -> None:
        """Take the hooks away: the program may keep the graph."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()


class _GradientHook:
    """Reports the gradient of one saved tensor to the remarks."""

    __slots__ = ("_call", "_output_nr", "_remarks")

    def __init__(self, remarks: Remarks, call: OpenCall, output_nr: int | None) -> None:
        self._remarks = weakref.ref(remarks)
        self._call = call
        self._output_nr = output_nr  # of the node that made it; None for a leaf

    def __call__(self, found: torch.Tensor | Sequence[torch.Tensor | None]) -> None:
        remarks = self._remarks()
        gradient = found if isinstance(found, torch.Tensor) else found[self._output_nr or 0]
        if remarks is not None and gradient is not None:
            remarks.gradient(self._call, gradient)
