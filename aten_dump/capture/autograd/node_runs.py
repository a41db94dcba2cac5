"""The runs of autograd nodes, as calls on a thread's stack."""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING

import torch
from torch._C._autograd import _get_sequence_nr
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode

from ..naming.call_name import BACKWARD, NODE
from ..step.open_calls import OpenCall, ThreadState

if TYPE_CHECKING:
    from ..calls.step_recorder import StepRecorder
    from .backward_calls import BackwardCall
    from .graph_links import NodeTag


def begin_node(recorder: StepRecorder, thread: ThreadState, tag: NodeTag, parent: BackwardCall | None) -> OpenCall:
    """Open the run of an autograd node."""
    top = thread.stack[-1] if thread.stack else None
    call = OpenCall(recorder.next_id(), NODE, tag.name, top)
    if parent is not None:
        call.parent_id = parent.visible
    elif top is None:
        call.parent_id = recorder.main_parent()
    call.phase, call.forward = BACKWARD, tag.forward
    if tag.leaf is None:
        call.sequence_nr = tag.sequence_nr
    place = tag.maker or tag.owner
    if place is not None:
        call.fqn, call.module = place.fqn, place.module
    if top is not None:
        call.stack = top.stack
    if not recorder.records_everything and not recorder.filter.records(NODE, call.name, call.fqn):
        call.recorded = False
        call.visible = call.parent_id
        recorder.coverage.add("selection")
    call.sequence_start = _get_sequence_nr()
    call.start_ns = perf_counter_ns() - recorder.start_ns
    thread.stack.append(call)
    return call


def push_function_mode(mode: TorchFunctionMode) -> bool:
    """Let a node's Python code (hooks, custom functions, recompute) be seen; tell whether there was a need to.

    ``Tensor.backward`` is itself a call that the function mode sees, so the mode is off the stack in it. Should the
    node raise, the engine puts the stack back as it was.
    """
    stack = range(torch._C._len_torch_function_stack())
    if any(torch._C._get_function_stack_at(i) is mode for i in stack):
        return False
    _push_mode(mode)
    return True


def pop_function_mode(mode: TorchFunctionMode) -> None:
    """Take the mode away again after the node's run."""
    stack = torch._C._len_torch_function_stack()
    if stack and torch._C._get_function_stack_at(stack - 1) is mode:
        _pop_mode()
