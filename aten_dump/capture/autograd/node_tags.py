"""What is known of autograd nodes: a tag in the node's own ``metadata``, so that the identity is exact."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from types import FrameType
from typing import Any, Final

import torch
import torch.utils.checkpoint

from ..naming.call_name import CallName
from ..step.open_calls import OpenCall
from ..step.program_frames import program_frame
from ..step.threads import Threads, ThreadState
from ..torch_internals.engine import ACCUMULATE_GRAD, asked_for_graph, current_graph_task_id, is_grad_enabled, runs_hook
from .sequence_claims import SequenceClaims

Gradients = tuple["torch.Tensor | None", ...]
KEY: Final = "aten_dump"  # our entry in a node's metadata
_CHECKPOINT: Final = str(torch.utils.checkpoint.__file__)
_ENGINE: Final = str(torch.autograd.graph.__file__)


class Runs(ABC):
    """What is called when nodes run."""

    @abstractmethod
    def runs_in(self, tag: NodeTag, thread: ThreadState) -> None:
        """An op or a call begins in the run of a node that has no hook before it, or is about another run of its."""

    @abstractmethod
    def begins(self, tag: NodeTag, grad_outputs: Gradients) -> None:
        """A node is about to run; it gets `grad_outputs`."""

    @abstractmethod
    def has_run(self, tag: NodeTag, grad_inputs: Gradients, grad_outputs: Gradients) -> None:
        """A node has run; it got `grad_outputs` and sends `grad_inputs` on."""


class NodeTag:
    """What the recorder knows of one autograd node, and of its present or last run. It is both hooks of that run.

    It has more than fifteen attributes as each node has one: a second object for a run is more for Python's collector.
    """

    __slots__ = (
        *(
            "call",
            "creates_graph",
            "forward",
            "handle",
            "is_late",
            "leaf",
            "maker",
            "mode_off",
            "name",
            "others",
        ),
        *("owner", "pushed", "receives", "runs", "runs_python", "sends", "sequence_nr", "tags", "thread"),
    )

    def __init__(self, tags: NodeTags, name: CallName, sequence_nr: int, forward: int, owner: OpenCall | None) -> None:
        self.tags = tags  # those of the step that it belongs to: tags of earlier steps mean nothing
        self.name = name
        self.sequence_nr = sequence_nr
        self.forward = forward
        self.owner = owner  # the innermost API or module call that made the node
        self.maker: OpenCall | None = None  # the autograd node in whose run it was made (create_graph=True)
        self.leaf: int | None = None  # id of the leaf tensor that this node accumulates into
        # In threes, as each object is one more for Python's collector to look through; None stands for the owner.
        self.sends: tuple[Any, ...] = ()  # output slot, a call, the edge of its inputs that this leads to
        self.receives: tuple[Any, ...] = ()  # input slot, a call, the path of its output
        self.runs_python = True  # its run may call into Python: custom functions, hooks of the program's (any leaf's)
        self.call: OpenCall | None = None  # its present run, or its last one until another node of the thread runs
        self.creates_graph = False  # its run is itself differentiated (create_graph=True)
        self.runs: Runs | None = None  # called when it runs
        self.handle: Any = None  # of the hooks
        self.is_late = False  # it has no hook before its run: what runs in it shows that it runs
        # What only a run needs.
        self.thread: ThreadState | None = None  # runs it now
        self.mode_off = False  # our dispatch mode is off the stack
        self.pushed = False  # the function mode was put back on the stack
        self.others: tuple[tuple[Any, ...], ...] = ()  # all that, of runs under way in other passes

    def __call__(self, first: Gradients, second: Gradients | None = None) -> None:
        """Run by the engine before the node, with the gradients that it gets; after it, with those it sends and got."""
        runs = self.runs
        assert runs is not None, "it was set before the hooks were put on"
        if second is None:
            runs.begins(self, first)
        else:
            runs.has_run(self, first, second)

    def has_call(self) -> bool:
        """Return True if the node's run in this pass has begun: it is under way, or what it sent is added up. From
        then on the tag is about that run.
        """
        number = current_graph_task_id()
        call = self.call
        if call is not None and call.graph_task == number:
            return True
        for run in self.others:
            if run[0].graph_task == number:
                self.set_aside(run)
                self.call, self.thread, self.creates_graph, self.mode_off, self.pushed = run
                return True
        return False

    def set_aside(self, other: tuple[Any, ...] | None = None) -> None:
        """Be about another run from now on: a new one, or one that was set aside."""
        runs = (self.call, self.thread, self.creates_graph, self.mode_off, self.pushed), *self.others
        self.others = tuple(run for run in runs if run is not other and _is_under_way(run))
        self.mode_off = self.pushed = False


def _is_under_way(run: tuple[Any, ...]) -> bool:
    call, thread = run[:2]
    return thread is not None and call in thread.stack


class NodeTags:
    """The tags of one step, and what they say of the node that runs."""

    __slots__ = ("_threads", "claims")

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self.claims = SequenceClaims(threads.all)

    def of(self, node: Any) -> NodeTag | None:
        """Return the tag of an autograd node, if this step has put one on it."""
        tag: NodeTag | None = node.metadata.get(KEY)
        return tag if tag is not None and tag.tags is self else None

    def entered(self, node: Any, thread: ThreadState) -> NodeTag | None:
        """Return the tag of a node that runs on this thread, as `of` does; its formula's run has a call from now on."""
        tag: NodeTag | None = node.metadata.get(KEY)
        if tag is None or tag.tags is not self:
            return None
        if tag.is_late or tag.others:
            stack = thread.stack
            if not stack or stack[-1] is not tag.call or stack[-1].graph_task != current_graph_task_id():
                runs = tag.runs
                assert runs is not None, "it was set before the hooks were put on"
                runs.runs_in(tag, thread)
        return tag

    def forward_of(self, node: Any) -> int:
        """Return the forward call of a node that the engine runs and that has no call of its own; 0 unknown."""
        tag = self.of(node)
        if tag is not None:
            return tag.forward
        number = node._sequence_nr()
        if number == ACCUMULATE_GRAD:
            return 0
        return self.claims.made_by(number, node.name(), self._threads.here.state, None) or 0

    def recomputes(self, node: Any, thread: ThreadState) -> bool:
        """Return True if what runs under `node` is forward again: a graph is made in a pass that makes none itself."""
        if not is_grad_enabled():
            return False
        tag = self.of(node)
        if tag is None:
            return _checkpoint_runs()
        if not tag.is_late:
            return not tag.creates_graph or _checkpoint_runs()
        frame = program_frame()
        if not runs_hook(frame, thread.number == 0):
            return False
        makes_graph = asked_for_graph(frame)
        if makes_graph is None:  # a device's thread: the thread that waits for it knows
            makes_graph = asked_for_graph(self._threads.main_frame())
        return makes_graph is False or _checkpoint_runs()


def _checkpoint_runs() -> bool:
    """Return True if torch's checkpoint is running a function again, where a backward pass is itself differentiated."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        file = frame.f_code.co_filename
        if file == _CHECKPOINT:
            return True
        if file == _ENGINE and frame.f_code.co_name == "_engine_run_backward":
            return False
        frame = frame.f_back
    return False
