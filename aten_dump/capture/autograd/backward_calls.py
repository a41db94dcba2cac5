"""The backward of an API or module call: gradients arriving at its outputs, gradients sent to its inputs."""

from __future__ import annotations

from typing import Any, Final

import torch

from ...store.records import CALL, TREE_DICT, TREE_LIST, TREE_TUPLE, TREE_VALUE, Tree, TreePath
from ..collector import HIDES, hide
from ..naming.call_name import BACKWARD, NODE
from ..step.open_calls import Edge, OpenCall
from ..step.step import Step
from ..step.threads import ThreadState
from ..torch_internals.quiet import quiet
from ..values.encoded_trees import mirror
from ..values.value_ids import ValueIds

_TENSOR: Final = torch.Tensor


class GradientSums:
    """What sums of gradients become in the record."""

    __slots__ = ("_keep", "_values", "are_computed")

    def __init__(self, values: ValueIds, are_computed: bool, keep: bool) -> None:
        self._values = values
        self._keep = keep  # the data of the sums
        self.are_computed = are_computed  # else they are values of which only the geometry is known

    def known(self, total: torch.Tensor) -> Tree:
        """Return the value of a sum."""
        return self._values.tree_of(total, self._keep)

    def unknown(self, like: torch.Tensor) -> Tree:
        """Return a value that stands for a sum which was not computed."""
        return (TREE_VALUE, self._values.unknown_sum(like))


class BackwardCall:
    """One run of the backward of one forward API or module call."""

    __slots__ = (
        "_partial",
        "_received",
        "_sent",
        "end_ns",
        "id",
        "owner",
        "parent_id",
        "repeat",
        "stack",
        "start_ns",
        "thread",
        "visible",
    )

    def __init__(self, number: int, owner: OpenCall, parent_id: int, thread: ThreadState, start_ns: int) -> None:
        self.id = number
        self.owner = owner
        self.parent_id = parent_id
        self.visible = number if owner.recorded else parent_id
        self.repeat = owner.backwards
        owner.backwards += 1
        self.thread = thread.number
        self.stack = thread.stack[-1].stack if thread.stack else 0
        self.start_ns = self.end_ns = start_ns
        # Key, tree, key, tree, ...: small, and nothing for Python's collector. A key that comes again replaces what
        # came before.
        self._received: tuple[Any, ...] = ()
        self._sent: tuple[Any, ...] = ()
        # Terms seen, and the sum so far: the tree of an unknown one, once a term could not be added.
        self._partial: dict[Edge, tuple[int, torch.Tensor | Tree]] | None = None

    @property
    def received(self) -> dict[TreePath, Tree]:
        """The gradients of the outputs so far."""
        return _pairs(self._received)

    @property
    def sent(self) -> dict[Edge, Tree]:
        """The gradients of the inputs so far."""
        return _pairs(self._sent)

    def receive(self, path: TreePath, tree: Tree) -> None:
        """Take the gradient of the output at `path`."""
        self._received = (*self._received, path, tree)

    def send(self, edge: Edge, gradient: torch.Tensor | None, tree: Tree, sums: GradientSums) -> None:
        """Add a gradient that a node sends along `edge`; the sum of all that the call sends there is its gradient."""
        edges = self.owner.input_edges
        terms = 0 if edges is None else edges[edge]
        if terms < 2:
            self._sent = (*self._sent, edge, tree)
            return
        if not sums.are_computed or (gradient is not None and type(gradient) is not _TENSOR):
            if gradient is not None and edge not in self._sent:
                self._sent = (*self._sent, edge, sums.unknown(gradient))
            return
        if self._partial is None:
            self._partial = {}
        seen, total = self._partial.pop(edge, (0, None))
        if gradient is not None:
            total = _sum_with(total, gradient, sums)
        if seen + 1 < terms:
            self._partial[edge] = (seen + 1, total)
        else:
            self._sent = (*self._sent, edge, sums.known(total) if isinstance(total, _TENSOR) else total)

    def complete(self, sums: GradientSums) -> None:
        """Take sums whose last terms never came: those nodes were not part of this backward."""
        if self._partial is not None:
            for edge, (_, total) in self._partial.items():
                self._sent = (*self._sent, edge, sums.known(total) if isinstance(total, _TENSOR) else total)
            self._partial = None

    def record(self, step: Step) -> None:
        """Record the call; it has ended."""
        owner = self.owner
        if not owner.recorded:
            step.coverage.add("selection")
            return
        args, kwargs = self.arguments()
        entry = step.numbered(owner)
        step.emit_call(
            (
                CALL,
                self.id,
                self.parent_id,
                entry.op,
                owner.n,
                self.repeat,
                BACKWARD,
                self.thread,
                self.start_ns,
                self.end_ns - self.start_ns,
                None,
                self.stack,
                owner.module,
                owner.id,
                args,
                kwargs,
                self.results(),
            )
        )

    def arguments(self) -> tuple[list[Tree], dict[str, Tree] | None]:
        """Return the gradients of the outputs, in the shape of the outputs."""
        outputs = self.owner.outputs
        if not isinstance(outputs, tuple):
            return [None], None
        if outputs[0] == TREE_VALUE:
            return [self._received[-1] if self._received else None], None
        grown = mirror(outputs, self.received)
        if outputs[0] in (TREE_LIST, TREE_TUPLE):
            return list(grown[1:]), None
        if outputs[0] == TREE_DICT:
            return [], {str(k): v for k, v in zip(grown[1::2], grown[2::2], strict=True)}
        return [grown], None

    def results(self) -> Tree:
        """Return the gradients of the inputs, in the shape of the inputs; keyed where keywords have gradients."""
        owner = self.owner
        positional: list[Tree] = [None] * len(owner.args)
        within: dict[TreePath, Tree] | None = None  # of tensors in lists and the like, and of keywords
        edge_paths = owner.edge_paths
        if edge_paths:
            sent = _pairs(self._sent)
            for at in range(0, len(edge_paths), 2):
                gradient: Tree = sent.get(edge_paths[at])
                path = edge_paths[at + 1]
                if len(path) == 1 and type(path[0]) is int:
                    positional[path[0]] = gradient
                elif within is None:
                    within = {path: gradient}
                else:
                    within[path] = gradient
        if within is None:
            return (TREE_TUPLE, *positional)
        for i in {path[0] for path in within if type(path[0]) is int}:
            positional[i] = mirror(owner.args[i], within, (i,))
        keywords = {k: g for k, tree in (owner.kwargs or {}).items() if (g := _gradients(tree, within, k))}
        if not keywords:
            return (TREE_TUPLE, *positional)
        keyed: list[Tree] = [TREE_DICT]
        for key, tree in [*enumerate(positional), *keywords.items()]:
            keyed += (key, tree)
        return tuple(keyed)


def _pairs(flat: tuple[Any, ...]) -> dict[Any, Tree]:
    """Return what a tuple has as key, tree, key, tree, ..."""
    found: dict[Any, Tree] = {}
    for at in range(0, len(flat), 2):
        found[flat[at]] = flat[at + 1]
    return found


def _gradients(tree: Tree, found: dict[TreePath, Tree], step: int | str) -> Tree:
    """Return the gradients in the shape of one argument; None where it holds no tensor that can have one."""
    if any(path[0] == step for path in found):
        return mirror(tree, found, (step,))
    return None


def _sum_with(total: torch.Tensor | Tree, term: torch.Tensor, sums: GradientSums) -> torch.Tensor | Tree:
    """Return a sum with one more term; what torch cannot add up stays unknown, and is no matter of the program's."""
    if isinstance(total, tuple):
        return total
    try:
        return _add(total, term)
    except (RuntimeError, TypeError):
        return sums.unknown(term)


def _add(total: torch.Tensor | None, term: torch.Tensor) -> torch.Tensor:
    """Add a term, in autograd's order. The sum is the recorder's own memory: holding the program's tensors would
    change how autograd adds. It is made on the host where the device has no memory left for it.
    """
    with quiet():
        if total is not None:
            term = term.to(total.device)
            if total.is_sparse and not term.is_sparse:  # which becomes dense, as in autograd
                return term.clone().add_(total)
            return total.add_(term)
        try:
            return term.clone()
        except torch.OutOfMemoryError:
            return term.cpu()


class BackwardTask:
    """One pass of the autograd engine: the calls whose backward it runs."""

    __slots__ = ("_root", "_step", "_sums", "calls", "creates_graph", "leaves")

    def __init__(self, step: Step, sums: GradientSums, thread: ThreadState) -> None:
        self._step = step
        self._sums = sums
        self.calls: dict[int, BackwardCall] = {}
        self._root = thread.stack[-1].visible if thread.stack else step.main_parent()
        self.creates_graph: bool | None = None  # None until a node has run
        self.leaves: dict[int, int] = {}  # id of a leaf tensor -> its AccumulateGrad call

    def call_of(self, owner: OpenCall | None, thread: ThreadState) -> BackwardCall | None:
        """Return the backward of `owner` in this pass, begun now if need be, and so its parents'."""
        if owner is None or owner.kind == NODE:
            return None
        call = self.calls.get(owner.id)
        if call is None:
            outer = owner.parent
            parent = None if outer is None else self.calls.get(outer.id) or self.call_of(outer, thread)
            parent_id = self._root if parent is None else parent.visible
            call = BackwardCall(self._step.next_id(), owner, parent_id, thread, self._step.now_ns())
            self.calls[owner.id] = call
            if HIDES:
                hide(call)
        return call

    def finish(self) -> None:
        """Record every backward call of the pass."""
        calls = sorted(self.calls.values(), key=lambda c: c.id)
        for call in reversed(calls):  # inner ones first: an outer one lasts as long
            parent = call.owner.parent
            outer = None if parent is None else self.calls.get(parent.id)
            if outer is not None and outer.end_ns < call.end_ns:
                outer.end_ns = call.end_ns
        self.calls.clear()
        calls.reverse()
        while calls:  # each is let go of when it is recorded: their records may wait for the writer
            call = calls.pop()
            call.complete(self._sums)
            call.record(self._step)
