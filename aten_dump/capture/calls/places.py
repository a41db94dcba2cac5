"""Where an op belongs: its parent, phase, module, stack, and the forward call of its backward."""

from __future__ import annotations

from typing import Any, Final

from ..autograd.node_tags import NodeTag, NodeTags
from ..naming.call_name import API, ATEN, BACKWARD, FORWARD, NODE, OPTIMIZER, RECOMPUTE
from ..step.program_frames import program_frame
from ..step.step import Step
from ..step.threads import ThreadState
from ..torch_internals.engine import current_graph_task_id

_INT64: Final = 2**63 - 1


class Place:
    """Where a call belongs. What runs it is set when it begins, the rest by `Places.find`."""

    __slots__ = ("forward", "fqn", "module", "node", "parent", "phase", "sequence_nr", "stack", "tag")

    node: Any  # the autograd node in whose run it is made, None in none
    tag: NodeTag | None  # of the node
    parent: int
    phase: int
    sequence_nr: int | None  # of the autograd node that it made, or that runs it
    stack: int
    module: int
    forward: int
    fqn: str


class Places:
    """Finds the places of a step's ops."""

    __slots__ = ("_keeps_stacks", "_step", "_tags")

    def __init__(self, step: Step, tags: NodeTags, keeps_stacks: bool) -> None:
        self._step = step
        self._tags = tags
        self._keeps_stacks = keeps_stacks

    def find(self, place: Place, thread: ThreadState) -> None:
        """Set where an op belongs, whose `sequence_nr` is that of the autograd node that it made.

        When it began, `thread.grad` was set to its grad mode.
        """
        node = place.node
        top = thread.stack[-1] if thread.stack else None
        tag = place.tag
        call = None if tag is None else tag.call
        if top is not None and top is not call and top.kind == NODE:
            top = self._step.top(thread)
        place.forward = 0
        if top is None:
            # On a device's thread, what the engine runs hooks for is the program's that waits for it.
            place.parent = 0 if node is None else self._step.main_parent()
            place.module = place.stack = 0
            place.fqn = ""
        else:
            place.parent, place.module, place.fqn, place.stack = top.visible, top.module, top.fqn, top.stack
        if self._keeps_stacks and (top is None or top.kind not in (API, NODE)):
            place.stack = self._step.stack_of(program_frame(), thread)
        if node is None or (thread.optimizer_depth and thread.optimizer_runs_in_backward()):
            place.phase = OPTIMIZER if thread.optimizer_depth and not thread.grad else FORWARD
            return
        tags = self._tags
        if (top is not None and top.phase == RECOMPUTE) or (thread.grad and tags.recomputes(node, thread)):
            place.phase = RECOMPUTE  # the reader finds the original call
            return
        place.phase = BACKWARD
        if call is not None and call is not top and call.graph_task != current_graph_task_id():
            call = None  # of an earlier pass: a hook goes before the run
        if tag is None or call is None:
            place.sequence_nr = node._sequence_nr() & _INT64
            place.forward = tags.forward_of(node)
            return
        if call is not top and (top is None or (tag.thread is None and top.kind != ATEN)):
            place.parent = call.visible  # gradients are added up after the node's run; or another thread runs it
        place.sequence_nr, place.module, place.forward, place.fqn = call.sequence_nr, call.module, tag.forward, call.fqn
