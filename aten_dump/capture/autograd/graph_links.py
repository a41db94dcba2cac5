"""Ties autograd nodes to the forward calls that made them.

Theory of operation
    Autograd numbers its nodes per thread. At dispatch time the number before the counter is that of the node which
    the running op has just made: `SequenceClaims` keeps that. When a Python-level call or a module ends,
    `GraphLinks.track` walks the graph from its outputs over the nodes not seen before and puts a `NodeTag` on each,
    and hooks around its run (`NodeRuns`). The tag knows the forward call, and which of the node's edges leave an API
    call or module for one of its inputs: what is sent along those edges is the gradient of that input.

    No saved-tensor hooks are used: they change what they watch (they hide "modified by an inplace operation", are
    refused by torch.func, and push aside checkpoint's). What a node saved is read from its ``_raw_saved_*``
    attributes, which unpack nothing. Nothing here keeps a gradient, a graph or an activation alive: hooks hold ids;
    values are recorded when seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import torch
from torch.autograd.function import BackwardCFunction

from ...store.records import SAVED, TreePath
from ..collector import HIDES, HIDES_DICTS, hide
from ..naming.call_name import MODULE, NODE, CallName
from ..step.open_calls import Edge, OpenCall
from ..step.step import Step
from ..step.threads import ThreadState
from ..torch_internals.engine import ACCUMULATE_GRAD, get_sequence_nr, node_of, top_saved_hooks
from ..torch_internals.packed_tensors import PackedTensor
from ..torch_internals.saved_tensors import saved_tensors_of
from ..values.value_ids import ValueIds
from .node_tags import KEY, NodeTag, NodeTags

COMPILED_NODE: Final = "CompiledFunctionBackward"  # AOTAutograd's: its first run compiles it
_PYTHON_NODE: Final = BackwardCFunction
_TENSOR: Final = torch.Tensor
OUTPUT_BITS: Final = 32  # of an edge's number: which output of its node

SavedBy = Callable[[int, int, list[PackedTensor]], list[int]]  # see `SavedPacks.saved_by`


def ignore(*told: object) -> None:
    """Replace the listener once the step has ended: the two would keep each other alive."""


class GraphLinks:
    """The autograd graph of one step, seen from the calls that made it."""

    __slots__ = ("_names", "_names_by_type", "_saved_by", "_step", "_values", "put_hooks", "tags")

    def __init__(
        self,
        step: Step,
        values: ValueIds,
        tags: NodeTags,
        put_hooks: Callable[[Any, NodeTag], None],
        saved_by: SavedBy | None = None,
    ) -> None:
        """Begin a step; `put_hooks` watches the runs of a node with its tag, `saved_by` knows what hooks saw saved."""
        self._saved_by = saved_by
        self._step = step
        self._values = values
        self.tags = tags
        self.put_hooks = put_hooks
        self._names: dict[str, CallName] = {}  # of nodes, by what they call themselves
        self._names_by_type: dict[type, CallName] = {}  # of those whose type is called so

    def track(self, call: OpenCall, outputs: Iterable[tuple[TreePath, torch.Tensor]], thread: ThreadState) -> None:
        """Tag the nodes that were made on the way to `outputs`, and note which of them are outputs of `call`."""
        for path, tensor in outputs:
            self.track_one(call, path, tensor, thread)

    def track_one(self, call: OpenCall, path: TreePath, tensor: torch.Tensor, thread: ThreadState) -> None:
        """Do what `track` does for one output, which is at `path`."""
        node = tensor.grad_fn if type(tensor) is _TENSOR else node_of(tensor)
        if node is None:
            return
        metadata: Any = node.metadata
        tag: NodeTag | None = metadata.get(KEY)
        if tag is None or tag.tags is not self.tags:
            self.track_nodes((node,), call, thread)
            tag = metadata.get(KEY)
        if tag is not None and tag.tags is self.tags and tag.sequence_nr >= call.sequence_start:
            tag.receives = (*tag.receives, tensor.output_nr, None if call is tag.owner else call, path)
            if HIDES:
                hide(tag.receives)

    def track_nodes(
        self, roots: Iterable[Any], call: OpenCall | None, thread: ThreadState, maker: OpenCall | None = None
    ) -> None:
        """Tag the nodes that are new on the way to `roots`.

        Args:
            roots: autograd nodes; None among them is left out.
            call: the innermost API or module call that may have made them.
            thread: the running thread.
            maker: the autograd node in whose run they were made.
        """
        pending: list[tuple[Any, int]] = [(node, 0) for node in roots if node is not None]
        while pending:
            node, consumer = pending.pop()
            known: NodeTag | None = node.metadata.get(KEY)
            if known is not None and known.tags is self.tags:
                if known.leaf is not None and consumer:
                    known.forward = min(known.forward, consumer)
                continue
            tag = self._tag(node, call, consumer, thread, maker)
            if tag is not None and tag.leaf is None:
                edges: tuple[Any, ...] = node.next_functions
                if tag.owner is not None:
                    _note_edges(tag, edges, tag.owner)
                for edge in edges:  # before Python 3.12 a comprehension is a call
                    following = edge[0]
                    if following is not None:
                        pending.append((following, tag.forward))

    def _tag(
        self, node: Any, call: OpenCall | None, consumer: int, thread: ThreadState, maker: OpenCall | None
    ) -> NodeTag | None:
        number: int = node._sequence_nr()
        name = self._name_of(node)
        if number == ACCUMULATE_GRAD:
            if not hasattr(node, "variable"):
                return None  # a node that only raises (once_differentiable)
            tag = NodeTag(self.tags, name, number, consumer, _module_of(call))
            tag.leaf = id(node.variable)
        else:
            begun_by = maker or call
            own_from = begun_by.sequence_start if begun_by else thread.claimed
            forward = self.tags.claims.made_by(number, name.op, thread, own_from)
            if forward is None:
                return None  # made before the step
            owner: OpenCall | None = call
            while owner is not None and owner.sequence_start > number:
                owner = owner.parent
            is_python = isinstance(node, _PYTHON_NODE)
            if owner is not None and owner.is_function and owner.recorded and f"{owner.name.api}Backward" == name.op:
                forward = owner.id  # a custom autograd function: its backward is written for all of its forward
            elif is_python:
                forward = self.tags.claims.made_around(number, thread) or forward
            tag = NodeTag(self.tags, name, number, forward, owner)
            if maker is not None and number >= maker.sequence_start:
                tag.maker = maker
            is_hooked = self._note_saved(tag, node, thread)
            tag.runs_python = is_python or is_hooked or name.op == COMPILED_NODE
        metadata: Any = node.metadata
        metadata[KEY] = tag
        self.put_hooks(node, tag)
        if HIDES:
            hide(tag)
            if HIDES_DICTS and len(metadata) == 1:
                hide(metadata)
        return tag

    def _name_of(self, node: Any) -> CallName:
        """Return what a node is called; by its type, unless that is the one of all C++ functions without their own."""
        kind = type(node)
        name = self._names_by_type.get(kind)
        if name is None:
            full = node.name()
            name = self._names.get(full)
            if name is None:
                short = full.rpartition("::")[2]
                name = self._names[full] = CallName(short, "Node", short)
            if kind.__name__ == name.op:
                self._names_by_type[kind] = name
        return name

    def _note_saved(self, tag: NodeTag, node: Any, thread: ThreadState) -> bool:
        """Record what a node saved; return True if some of it is under saved-tensor hooks of the program's."""
        tensors, packed, is_hooked = saved_tensors_of(node)
        values = self._values
        # Python numbers are left out: tensors without dimensions, of memory of their own.
        ids = [values.value_of(t, False) for t in tensors if t.dim() or values.storages.knows(t)]
        if self._saved_by is not None:
            ids += self._saved_by(tag.sequence_nr, thread.number, packed)
        if ids and tag.forward:
            self._step.emit((SAVED, tag.forward, tag.name.op, ids))
        if not tensors and not packed and top_saved_hooks(False) is not None:
            self._step.coverage.add("saved_hooks")
            return True
        return is_hooked


def note_input_edges(call: OpenCall, tensors: Iterable[tuple[TreePath, torch.Tensor]]) -> None:
    """Note through which edges gradients will leave a call that is given these tensors.

    Where its arguments are replaced, nodes may send along the edges of those before already. Nodes are numbered per
    thread: of an input that another thread made no edge is noted if a node of this call, or of another input of it, may
    have its number. Its gradient is not known then.
    """
    edges = call.input_edges
    paths: list[Any] = []
    newest = -1
    for path, tensor in tensors:
        if tensor.requires_grad:
            node = tensor.grad_fn if type(tensor) is _TENSOR else node_of(tensor)
            if node is None:
                edge = -id(tensor)
            else:
                number: int = node._sequence_nr()
                if newest < 0:
                    newest = get_sequence_nr()
                if number >= newest:
                    continue  # this thread has yet to make a node of that number
                edge = (number << OUTPUT_BITS) + tensor.output_nr
            if edges is None:
                edges = {edge: 0}
            elif edge not in edges:
                edges[edge] = 0
            elif node is not None and _is_of_several(edge, tensors):
                paths = [*_without(edge, paths)]
                continue
            paths += (edge, path)
    call.input_edges, call.edge_paths = edges, tuple(paths)


def _is_of_several(edge: Edge, tensors: Iterable[tuple[TreePath, torch.Tensor]]) -> bool:
    """Return True if an edge's number is that of several nodes among those that made some tensors."""
    nodes = [node_of(tensor) for _, tensor in tensors if tensor.requires_grad]
    return len({id(node) for node in nodes if node is not None and node._sequence_nr() == edge >> OUTPUT_BITS}) > 1


def _without(edge: Edge, paths: Sequence[Any]) -> Iterator[Any]:
    """Yield edges and paths, in twos, but those of one edge."""
    for at in range(0, len(paths), 2):
        if paths[at] != edge:
            yield from paths[at : at + 2]


def _note_edges(tag: NodeTag, next_functions: tuple[Any, ...], owner: OpenCall | None) -> None:
    """Note which of the node's edges leave calls that made it for an input of theirs."""
    edges: list[tuple[int, Edge]] | None = None
    sends: tuple[Any, ...] = ()
    while owner is not None and owner.kind != NODE:
        inputs = owner.input_edges
        if inputs is not None:
            if edges is None:
                edges = []
                for slot, (following, nr) in enumerate(next_functions):
                    if following is not None:
                        edges.append((slot, _edge_to(following, nr)))
            for slot, edge in edges:
                terms = inputs.get(edge)
                if terms is not None:
                    inputs[edge] = terms + 1
                    sends = (*sends, slot, None if owner is tag.owner else owner, edge)
        owner = owner.parent
    if sends:
        tag.sends = sends


def _module_of(call: OpenCall | None) -> OpenCall | None:
    while call is not None and call.kind != MODULE:
        call = call.parent
    return call


def _edge_to(node: Any, output_nr: int) -> Edge:
    number: int = node._sequence_nr()
    leaf = getattr(node, "variable", None) if number == ACCUMULATE_GRAD else None
    return (number << OUTPUT_BITS) + output_nr if leaf is None else -id(leaf)
