"""Where an op belongs: its parent, phase, module, stack, and the forward call of its backward."""

from __future__ import annotations

from typing import Final, NamedTuple

from ..autograd.node_tags import NodeTags
from ..naming.call_name import API, ATEN, BACKWARD, FORWARD, NODE, OPTIMIZER, RECOMPUTE
from ..step.program_frames import program_frame
from ..step.step import Step
from ..step.threads import ThreadState
from ..torch_internals.engine import is_grad_enabled, running_node

_INT64: Final = 2**63 - 1
_new: Final = tuple.__new__  # of a record, without the checks of a NamedTuple's own


class Place(NamedTuple):
    """Where a call belongs."""

    parent: int
    phase: int
    sequence_nr: int | None
    stack: int
    module: int
    forward: int
    fqn: str


NOWHERE: Final = Place(0, FORWARD, None, 0, 0, 0, "")


class Places:
    """Finds the places of a step's ops."""

    __slots__ = ("_keeps_stacks", "_step", "_tags")

    def __init__(self, step: Step, tags: NodeTags, keeps_stacks: bool) -> None:
        self._step = step
        self._tags = tags
        self._keeps_stacks = keeps_stacks

    def of_op(self, thread: ThreadState, sequence_nr: int | None) -> Place:
        """Return where an op belongs; `sequence_nr` is that of the autograd node that it made."""
        node = running_node()
        top = thread.stack[-1] if thread.stack else None
        if node is None and top is not None and top.kind == NODE:
            top = self._step.top(thread)
        if top is None:
            parent = module = stack = 0
            fqn = ""
        else:
            parent, module, fqn, stack = top.visible, top.module, top.fqn, top.stack
        if self._keeps_stacks and (top is None or top.kind not in (API, NODE)):
            stack = self._step.stack_of(program_frame(), thread)
        if node is None or (thread.optimizer_depth and thread.optimizer_runs_in_backward()):
            phase = OPTIMIZER if thread.optimizer_depth and not is_grad_enabled() else FORWARD
            return _new(Place, (parent, phase, sequence_nr, stack, module, 0, fqn))
        tags = self._tags
        if (top is not None and top.phase == RECOMPUTE) or tags.recomputes(node):
            return _new(
                Place, (parent, RECOMPUTE, sequence_nr, stack, module, 0, fqn)
            )  # the reader finds the original call
        tag = tags.of(node)
        call = None if tag is None else tag.call
        if tag is None or call is None:
            number = node._sequence_nr() & _INT64
            return _new(Place, (parent, BACKWARD, number, stack, module, tags.forward_of(node), fqn))
        if call is not top and (top is None or (not tag.running and top.kind != ATEN)):
            parent = call.visible  # gradients are added up after the node's run; or another thread runs it
        return _new(Place, (parent, BACKWARD, call.sequence_nr, stack, call.module, tag.forward, call.fqn))
