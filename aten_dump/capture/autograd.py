"""Ties every autograd node, and so every op of a backward pass, to the forward call that made it.

Theory of operation
    Autograd numbers its nodes per thread. At dispatch time the number before the counter is that of the node which
    the running op has just made: `SequenceClaims` keeps that. When a Python-level call or a module ends,
    `GraphLinks.track` walks the graph from its outputs over the nodes not seen before and puts a `NodeTag` on each:
    in the node's own ``metadata``, so the identity is exact, and with a hook before and one after its run. The tag
    knows the forward call, and which of the node's edges leave an API call or module for one of its inputs: what is
    sent along those edges is the gradient of that input.

    No saved-tensor hooks are used: they change what they watch (they hide "modified by an inplace operation", are
    refused by torch.func, and push aside checkpoint's). What a node saved is read from its ``_raw_saved_*``
    attributes, which unpack nothing. Nothing here keeps a gradient, a graph or an activation alive: hooks hold ids;
    values are recorded when seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import torch
from torch._C._autograd import _get_sequence_nr

from .backward import BackwardTask
from .calls import MODULE, NODE, Edge, OpenCall, ThreadState
from .trees import Path

if TYPE_CHECKING:
    from .recorder import StepRecorder

running_node: Final[Callable[[], Any]] = torch._C._current_autograd_node  # None outside of a backward pass
_KEY: Final = "aten_dump"  # our entry in a node's metadata
_ACCUMULATE_GRAD: Final = 2**64 - 1  # the sequence number of nodes that accumulate into a leaf


class SequenceClaims:
    """Which aten call made which autograd node, by sequence number."""

    __slots__ = ("_calls", "_previous")

    def __init__(self) -> None:
        self._calls: dict[int, int] = {}
        self._previous: dict[int, int] = {}  # for numbers that may belong to the call before: made after its kernel

    def claim(self, thread: ThreadState, call: int) -> int | None:
        """Give the nodes made since the thread's last call to `call`; return the number of the one it made itself."""
        now: int = _get_sequence_nr()
        first = thread.claimed
        if now == first:
            return None
        thread.claimed = now
        for number in range(first, now):
            self._calls[number] = call
            self._previous[number] = thread.last_call
        return now - 1 if torch.is_grad_enabled() else None

    def made_by(self, number: int, node: str, last_call: int) -> int:
        """Return the aten call that made node `number`; 0 when it was made before the step.

        Args:
            number: sequence number of the node.
            node: the node's name. ``CopySlices`` is made after the in-place op on a view has run, so the next call
                claimed it.
            last_call: the thread's last aten call: nodes that no later call claimed are its own.
        """
        if number not in self._calls:
            return last_call
        return self._previous[number] if node == "CopySlices" else self._calls[number]


class NodeTag:
    """What the recorder knows of one autograd node; lives in the node's metadata and in its hooks."""

    __slots__ = (
        "call",
        "creates_graph",
        "forward",
        "leaf",
        "links",
        "name",
        "owner",
        "pushed",
        "receives",
        "running",
        "sends",
        "sequence_nr",
    )

    def __init__(self, links: GraphLinks, name: str, sequence_nr: int, forward: int, owner: OpenCall | None) -> None:
        self.links = links
        self.name = name
        self.sequence_nr = sequence_nr
        self.forward = forward
        self.owner = owner  # the innermost API or module call that made the node
        self.leaf: int | None = None  # id of the leaf tensor that this node accumulates into
        self.sends: list[tuple[int, OpenCall, Edge]] = []  # output slot -> input edge of that call
        self.receives: list[tuple[int, OpenCall, Path]] = []  # input slot -> output of that call
        self.call: OpenCall | None = None  # its present or last run
        self.running = False
        self.pushed = False  # the function mode was put back on the stack for its run
        self.creates_graph = False  # its run is itself differentiated (create_graph=True)

    def enter(self, grad_outputs: tuple[torch.Tensor | None, ...]) -> None:
        self.links.enter(self, grad_outputs)

    def leave(
        self, grad_inputs: tuple[torch.Tensor | None, ...], grad_outputs: tuple[torch.Tensor | None, ...]
    ) -> None:
        self.links.leave(self, grad_inputs)


class GraphLinks:
    """The autograd graph of one step, seen from the calls that made it."""

    def __init__(self, recorder: StepRecorder) -> None:
        self._recorder = recorder
        self.claims = SequenceClaims()
        self._first_sequence = _get_sequence_nr()
        self._handles: list[Any] = []
        self._tasks: dict[int, BackwardTask] = {}
        self.closed = False

    # -- forward

    def note_inputs(self, call: OpenCall, tensors: Iterable[tuple[Path, torch.Tensor]]) -> None:
        """Remember through which edges gradients will leave `call`: an in-place op changes them."""
        call.sequence_start = _get_sequence_nr()
        for path, tensor in tensors:
            if tensor.requires_grad:
                node = tensor.grad_fn
                edge = (-id(tensor), 0) if node is None else (node._sequence_nr(), tensor.output_nr)
                call.input_edges.setdefault(edge, []).append(path)

    def track(self, call: OpenCall, outputs: list[tuple[Path, torch.Tensor]], thread: ThreadState) -> None:
        """Tag the nodes that were made on the way to `outputs`, and note which of them are outputs of `call`."""
        pending: list[tuple[Any, int]] = [(node, 0) for _, t in outputs if (node := t.grad_fn) is not None]
        while pending:
            node, consumer = pending.pop()
            known = node.metadata.get(_KEY)
            if known is not None and known.links is self:
                if known.leaf is not None and consumer:
                    known.forward = min(known.forward, consumer)
                continue
            tag = self._tag(node, call, consumer, thread)
            if tag is not None:
                pending += [(following, tag.forward) for following, _ in node.next_functions if following is not None]
        for path, tensor in outputs:
            tag = self.tag_of(tensor.grad_fn)
            if tag is not None and tag.sequence_nr >= call.sequence_start:
                tag.receives.append((tensor.output_nr, call, path))

    def tag_of(self, node: Any) -> NodeTag | None:
        """Return the tag of an autograd node, if this step has put one on it."""
        if node is None:
            return None
        tag: NodeTag | None = node.metadata.get(_KEY)
        return tag if tag is not None and tag.links is self else None

    def _tag(self, node: Any, call: OpenCall, consumer: int, thread: ThreadState) -> NodeTag | None:
        number: int = node._sequence_nr()
        name: str = node.name().rpartition("::")[2]
        if number == _ACCUMULATE_GRAD:
            tag = NodeTag(self, name, number, consumer, _module_of(call))
            tag.leaf = id(node.variable)
        elif number < self._first_sequence:
            return None  # made before the step
        else:
            owner: OpenCall | None = call
            while owner is not None and owner.sequence_start > number:
                owner = owner.parent
            tag = NodeTag(self, name, number, self.claims.made_by(number, name, thread.last_call), owner)
            self._note_edges(tag, node)
            self._note_saved(tag, node)
        node.metadata[_KEY] = tag
        self._handles += (node.register_prehook(tag.enter), node.register_hook(tag.leave))
        return tag

    def _note_edges(self, tag: NodeTag, node: Any) -> None:
        edges = [
            (slot, _edge_to(following, nr))
            for slot, (following, nr) in enumerate(node.next_functions)
            if following is not None
        ]
        owner = tag.owner
        while owner is not None and owner.kind != NODE:
            for slot, edge in edges:
                if edge in owner.input_edges:
                    tag.sends.append((slot, owner, edge))
                    owner.expected[edge] = owner.expected.get(edge, 0) + 1
            owner = owner.parent

    def _note_saved(self, tag: NodeTag, node: Any) -> None:
        tensors = list(saved_tensors_of(node))
        if tensors and tag.forward:
            self._recorder.saved(tag.forward, tag.name, tensors)

    # -- backward

    def enter(self, tag: NodeTag, grad_outputs: tuple[torch.Tensor | None, ...]) -> None:
        """A node begins to run with these gradients of its outputs."""
        thread = self._recorder.thread()
        if self.closed or thread is None or thread.busy:
            return
        with self._recorder.hook_code(thread):
            task = self._task(thread)
            parent = task.call_of(tag.owner, thread)
            call = self._recorder.begin_node(thread, tag, parent)
            call.args = [self._recorder.tree(g, is_input=True) for g in grad_outputs]
            tag.call, tag.running, tag.creates_graph = call, True, torch.is_grad_enabled()
            tag.pushed = self._recorder.push_function_mode()
            for slot, owner, path in tag.receives:
                received = task.call_of(owner, thread)
                if received is not None and slot < len(call.args):
                    received.received[path] = call.args[slot]

    def leave(self, tag: NodeTag, grad_inputs: tuple[torch.Tensor | None, ...]) -> None:
        """A node has run and sends these gradients on."""
        thread = self._recorder.thread()
        call = tag.call
        if self.closed or thread is None or thread.busy or call is None or not tag.running:
            return
        tag.running = False
        if tag.pushed:
            self._recorder.pop_function_mode()
        with self._recorder.hook_code(thread):
            trees = [self._recorder.tree(g, is_input=False) for g in grad_inputs]
            self._recorder.end_node(thread, call, trees)
            task = self._task(thread)
            for slot, owner, edge in tag.sends:
                sender = task.call_of(owner, thread)
                if sender is not None and slot < len(trees):
                    sender.send(edge, grad_inputs[slot], trees[slot], self._recorder)
            if tag.leaf is not None:
                task.leaves[tag.leaf] = call.id
            task.call_of(tag.owner, thread)

    def _task(self, thread: ThreadState) -> BackwardTask:
        number = torch._C._current_graph_task_id()
        task = self._tasks.get(number)
        if task is None:
            task = self._tasks[number] = BackwardTask(self._recorder, thread)
            torch.autograd.Variable._execution_engine.queue_callback(lambda: self._finish(number))
        return task

    def _finish(self, number: int) -> None:
        """The engine has run the last node of a backward pass."""
        task = self._tasks.pop(number, None)
        thread = self._recorder.thread()
        if task is not None and thread is not None and not self.closed:
            with self._recorder.hook_code(thread):
                task.finish()

    def run_of(self, node: Any) -> tuple[OpenCall | None, int, bool]:
        """Return of a node that the engine runs: its call, the forward call it belongs to, and if it still runs."""
        tag = self.tag_of(node)
        if tag is None:
            number = node._sequence_nr()
            known = number != _ACCUMULATE_GRAD and number >= self._first_sequence
            return None, self.claims.made_by(number, node.name(), 0) if known else 0, False
        return tag.call, tag.forward, tag.running

    def recomputes(self, node: Any) -> bool:
        """Tell whether what runs under `node` is forward again: a graph is made in a pass that makes none itself."""
        tag = self.tag_of(node)
        return torch.is_grad_enabled() and not (tag is not None and tag.creates_graph)

    def close(self) -> None:
        """Finish backward calls that were cut short, and take every hook away."""
        for task in self._tasks.values():
            task.finish()
        self._tasks.clear()
        self.closed = True
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


def _module_of(call: OpenCall | None) -> OpenCall | None:
    while call is not None and call.kind != MODULE:
        call = call.parent
    return call


def _edge_to(node: Any, output_nr: int) -> Edge:
    number: int = node._sequence_nr()
    return (-id(node.variable), 0) if number == _ACCUMULATE_GRAD else (number, output_nr)


_saved_attributes: dict[type, tuple[str, ...]] = {}


def saved_tensors_of(node: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors that a node saved for its backward; those under saved-tensor hooks are left alone.

    Reads ``SavedTensor.data``, which neither unpacks nor checks versions. A torch without it yields nothing.
    """
    kind = type(node)
    names = _saved_attributes.get(kind)
    if names is None:
        names = _saved_attributes[kind] = tuple(n for n in dir(node) if n.startswith("_raw_saved_"))
    for name in names:
        saved = getattr(node, name)
        for one in saved if isinstance(saved, (tuple, list)) else (saved,):
            if getattr(one, "unpack_hook", None) is None:
                data = getattr(one, "data", None)
                if isinstance(data, torch.Tensor):
                    yield data
