"""Calls in progress, and what a thread is doing."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import FrameType
from typing import Any, Final

import torch

from ...store.records import Tree, TreePath
from ..naming.call_name import FORWARD, CallName

Edge = tuple[int, int]  # an edge of the autograd graph: (sequence number, or -id of a leaf; output number)


_NOTHING: Final[list[Tree]] = []


class OpenCall:
    """A Python-level call, module or autograd node that has begun; aten ops have no children and need none.

    It outlives its end for as long as its autograd nodes do, since its backward is rendered from it.
    """

    # Most calls keep most of these; the class holds them, so that only what differs is set.
    recorded = True
    n = -1  # of the call's name; given when first needed, so that calls that are dropped use up no number
    phase = FORWARD
    module = 0  # the fqn's text id
    fqn = ""
    stack = 0
    forward = 0
    start_ns = 0
    sequence_start = 0
    writes = 0  # writes to any storage that were seen before it began
    backwards = 0  # how often its backward ran
    is_function = False  # a torch.autograd.Function of the program's
    frame: FrameType | None = None
    sequence_nr: int | None = None
    kwargs: dict[str, Tree] | None = None
    outputs: Tree = None
    raw: tuple[Any, ...] = ()  # its positional arguments, while an op in it may be given the same
    given: list[tuple[TreePath, torch.Tensor]] | None = None  # its tensors, while it is open
    input_edges: dict[Edge, list[TreePath]] | None = None
    expected: dict[Edge, int] | None = None  # how many gradients its own nodes send along each of these edges

    def __init__(self, number: int, kind: int, name: CallName, parent: OpenCall | None) -> None:
        self.id = number
        self.visible = number  # what children name as their parent: this call, or an ancestor that is recorded
        self.kind = kind
        self.name = name
        self.parent = parent
        self.args: list[Tree] = _NOTHING
        if parent is None:
            self.parent_id = 0
        else:
            self.parent_id = parent.visible
            self.fqn = parent.fqn
            self.module = parent.module


class Counter:
    """Counts the calls of one prefix and api in a step: the n of their names."""

    __slots__ = ("n",)

    def __init__(self) -> None:
        self.n = 0

    def next(self) -> int:
        """Return how many came before, and count one more."""
        n = self.n
        self.n = n + 1
        return n


class ThreadState:
    """What the recorder knows of one thread of the program."""

    __slots__ = (
        "aside",
        "busy",
        "claimed",
        "compiled_nodes",
        "delegated",
        "first",
        "last_call",
        "last_output",
        "lock",
        "made",
        "made_around",
        "made_before",
        "noted",
        "number",
        "optimizer_depth",
        "optimizer_pass",
        "own_ns",
        "stack",
        "storages_before",
    )

    def __init__(self, number: int, claimed: int) -> None:
        self.number = number
        self.lock: AbstractContextManager[bool] | None = None  # guards the recorder's tables once threads share them
        self.stack: list[OpenCall] = []
        self.busy = False  # inside the recorder's own code
        self.own_ns = 0  # time spent in it
        self.aside = 0  # compiled calls, and backwards of such, that run compiled
        self.compiled_nodes = 0  # runs of the backward of compiled code under way
        self.storages_before = 0  # the mark of the values when the last of those began
        self.delegated: Any = None  # op that was handed on to a tensor subclass and is about to come back
        self.first = claimed  # autograd sequence number of this thread when it was first seen in the step
        self.claimed = claimed  # autograd sequence numbers below this were given to calls
        self.made: dict[int, int] = {}  # autograd sequence number -> the aten call that made the node
        self.made_before: dict[int, int] = {}  # the same for nodes made after a call's kernel: the call before
        self.made_around: dict[int, int] = {}  # nodes made before their kernel ran -> the first call in between
        self.noted = claimed  # numbers below this are in `made` or `made_around`
        self.last_call = 0  # the last aten call
        self.last_output: tuple[int, Tree] | None = None  # its result, if that was one tensor: id() and tree
        self.optimizer_depth = 0
        self.optimizer_pass = -1  # the backward pass that the optimizer's step began in, -1 for none

    def optimizer_runs_in_backward(self) -> bool:
        """Tell whether an optimizer's step runs in a hook of the present backward pass; not a pass run by a closure."""
        return self.optimizer_pass == torch._C._current_graph_task_id()
