"""Calls in progress."""

from __future__ import annotations

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
    end_ns = 0
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
