"""Calls in progress."""

from __future__ import annotations

from collections.abc import Sequence
from types import FrameType
from typing import Any
from weakref import ref

import torch

from ...store.records import Tree, TreePath
from ..naming.call_name import FORWARD, CallName

Edge = int  # of the autograd graph: one number for a node and which of its outputs it is, -id() of a leaf


class OpenCall:
    """A Python-level call, module or autograd node that has begun; aten ops have no children and need none.

    It outlives its end for as long as its autograd nodes do, since its backward is rendered from it. So it, and what
    else is kept of each call or node, has slots: what is set late takes four times the room in the dict of an instance.
    What hangs on it is made of numbers, text and tuples of such, which Python's collector need not walk.
    """

    __slots__ = (
        *("args", "backwards", "edge_paths", "end_ns", "forward", "fqn", "frame", "given", "graph_task", "id"),
        *("inner", "input_edges", "is_function", "kind", "kwargs", "module", "n", "name", "outputs", "parent"),
        *("parent_id", "phase", "raw", "recorded", "sequence_nr", "sequence_start", "stack", "start_ns"),
        *("visible", "writes"),
    )

    def __init__(self, number: int, kind: int, name: CallName, parent: OpenCall | None) -> None:
        self.id = number
        self.visible = number  # what children name as their parent: this call, or an ancestor that is recorded
        self.kind = kind
        self.name = name
        self.parent = parent
        self.args: Sequence[Tree] = ()
        if parent is None:
            self.parent_id = 0
            self.fqn = ""
            self.module = 0  # the fqn's text id
        else:
            self.parent_id = parent.visible
            self.fqn = parent.fqn
            self.module = parent.module
        self.recorded = True
        self.n = -1  # of the call's name; given when first needed, so that calls that are dropped use up no number
        self.phase = FORWARD
        self.stack = 0
        self.forward = 0
        self.graph_task = -1  # number of the backward pass that a node runs in
        self.start_ns = 0
        self.sequence_start = 0
        self.writes = 0  # writes to any storage that were seen before it began
        self.backwards = 0  # how often its backward ran
        self.is_function = False  # a torch.autograd.Function of the program's
        self.frame: FrameType | None = None
        # Of a module's call, while it is open: the frame around `forward`, where that is, its stack.
        self.inner: tuple[FrameType, int, int] | None = None
        self.sequence_nr: int | None = None
        self.end_ns = 0
        self.kwargs: dict[str, Tree] | None = None
        self.outputs: Tree = None
        self.raw: tuple[Any, ...] = ()  # its positional arguments, while an op in it may be given the same
        # Its tensors, while it is open; those in containers by weak references, as the program may take them out.
        self.given: Sequence[tuple[TreePath, torch.Tensor | ref[torch.Tensor]]] | None = None
        # The edges that lead to its inputs, with how many gradients its own nodes send along each; and the edge and the
        # path of each tensor among its arguments that needs a gradient.
        self.input_edges: dict[Edge, int] | None = None
        self.edge_paths: tuple[Any, ...] = ()

    def let_go(self) -> None:
        """Hold nothing of the program's any more: nobody will report its end."""
        self.given = self.frame = self.inner = None
        self.raw = ()
