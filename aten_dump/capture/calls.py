"""Calls in progress, and what a thread is doing."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import FrameType
from typing import Any, Final, NamedTuple

import torch

from ..store.records import CALL_KINDS, PHASES, Tree
from .trees import Path

ATEN: Final = CALL_KINDS.index("aten")
API: Final = CALL_KINDS.index("api")
MODULE: Final = CALL_KINDS.index("module")
NODE: Final = CALL_KINDS.index("node")

FORWARD: Final = PHASES.index("forward")
RECOMPUTE: Final = PHASES.index("recompute")
BACKWARD: Final = PHASES.index("backward")
OPTIMIZER: Final = PHASES.index("optimizer")

Edge = tuple[int, int]  # an edge of the autograd graph: (sequence number, or -id of a leaf; output number)


class CallName(NamedTuple):
    """What a call calls: the full name, and the parts that the call's name is rendered from."""

    op: str
    prefix: str
    api: str


class OpenCall:
    """A Python-level call, module or autograd node that has begun; aten ops have no children and need none.

    It outlives its end for as long as its autograd nodes do, since its backward is rendered from it.
    """

    __slots__ = (
        "args",
        "backwards",
        "expected",
        "forward",
        "fqn",
        "frame",
        "id",
        "input_edges",
        "is_function",
        "kind",
        "kwargs",
        "module",
        "n",
        "name",
        "outputs",
        "parent",
        "parent_id",
        "phase",
        "recorded",
        "sequence_nr",
        "sequence_start",
        "stack",
        "start_ns",
        "versions",
        "visible",
    )

    def __init__(self, number: int, kind: int, name: CallName, parent: OpenCall | None) -> None:
        self.id = number
        self.kind = kind
        self.name = name
        self.parent = parent
        self.parent_id: int = 0 if parent is None else parent.visible
        self.is_function = False  # a torch.autograd.Function of the program's
        self.recorded = True
        self.visible: int = number  # what children name as their parent: this call, or an ancestor that is recorded
        self.n = -1  # given when first needed, so that calls that are dropped use up no number
        self.phase = FORWARD
        self.fqn: str = "" if parent is None else parent.fqn
        self.module: int = 0 if parent is None else parent.module  # the fqn's text id
        self.stack = 0
        self.frame: FrameType | None = None
        self.start_ns = 0
        self.forward = 0
        self.sequence_nr: int | None = None
        self.args: list[Tree] = []
        self.kwargs: dict[str, Tree] | None = None
        self.outputs: Tree = None
        self.versions: list[tuple[str, Any, Any, int]] = []  # of inputs: name, tensor, storage state, version before
        self.sequence_start = 0
        self.input_edges: dict[Edge, list[Path]] = {}
        self.expected: dict[Edge, int] = {}  # how many gradients the call's own nodes send along each of these edges
        self.backwards = 0  # how often its backward ran


class ThreadState:
    """What the recorder knows of one thread of the program."""

    __slots__ = (
        "aside",
        "busy",
        "claimed",
        "delegated",
        "first",
        "last_call",
        "lock",
        "made",
        "made_around",
        "made_before",
        "noted",
        "number",
        "optimizer_depth",
        "optimizer_pass",
        "stack",
        "storages_before",
    )

    def __init__(self, number: int, claimed: int) -> None:
        self.number = number
        self.lock: AbstractContextManager[bool] | None = None  # guards the recorder's tables once threads share them
        self.stack: list[OpenCall] = []
        self.busy = False  # inside the recorder's own code
        self.aside = 0  # compiled calls, and backwards of such, that run compiled
        self.storages_before = 0  # the mark of the values when the last of those began
        self.delegated: Any = None  # op that was handed on to a tensor subclass and is about to come back
        self.first = claimed  # autograd sequence number of this thread when it was first seen in the step
        self.claimed = claimed  # autograd sequence numbers below this were given to calls
        self.made: dict[int, int] = {}  # autograd sequence number -> the aten call that made the node
        self.made_before: dict[int, int] = {}  # the same for nodes made after a call's kernel: the call before
        self.made_around: dict[int, int] = {}  # nodes made before their kernel ran -> the first call in between
        self.noted = claimed  # numbers below this are in `made` or `made_around`
        self.last_call = 0  # the last aten call
        self.optimizer_depth = 0
        self.optimizer_pass = -1  # the backward pass that the optimizer's step began in, -1 for none

    def optimizer_runs_in_backward(self) -> bool:
        """Tell whether an optimizer's step runs in a hook of the present backward pass; not a pass run by a closure."""
        return self.optimizer_pass == torch._C._current_graph_task_id()
