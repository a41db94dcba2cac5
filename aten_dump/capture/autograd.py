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

import sys
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.utils.checkpoint
from torch._C._autograd import _get_sequence_nr
from torch.autograd.function import BackwardCFunction

from .backward import BackwardTask
from .calls import MODULE, NODE, Edge, OpenCall, ThreadState
from .own_formulas import OWN_FORMULA_NODES, put_mode_back, take_mode_off
from .trees import Path

if TYPE_CHECKING:
    from .recorder import StepRecorder

running_node: Final[Callable[[], Any]] = torch._C._current_autograd_node  # None outside of a backward pass
COMPILED_NODE: Final = "CompiledFunctionBackward"  # AOTAutograd's: its first run compiles it
_KEY: Final = "aten_dump"  # our entry in a node's metadata
_CHECKPOINT: Final = str(torch.utils.checkpoint.__file__)
_ENGINE: Final = str(torch.autograd.graph.__file__)
_ACCUMULATE_GRAD: Final = 2**64 - 1  # the sequence number of nodes that accumulate into a leaf


class SequenceClaims:
    """Which aten call made which autograd node, by thread and sequence number: each thread counts for itself."""

    __slots__ = ("_threads",)

    def __init__(self, threads: list[ThreadState]) -> None:
        self._threads = threads

    def claim(self, thread: ThreadState, call: int) -> int | None:
        """Give the nodes made since the thread's last call to `call`; return the number of the one it made itself."""
        now: int = _get_sequence_nr()
        first = thread.claimed
        if now == first:
            return None
        if not torch.is_grad_enabled():  # it made none: it runs in a pack hook, or in a custom function's forward
            for number in range(max(first, thread.noted), now):
                thread.made_around[number] = call
                thread.made_before[number] = thread.last_call
            thread.noted = now
            return None
        thread.claimed = now
        for number in range(first, now):
            thread.made[number] = call
            thread.made_before.setdefault(number, thread.last_call)
        return now - 1

    def made_by(self, number: int, node: str, thread: ThreadState, own_from: int | None) -> int | None:
        """Return the aten call that made a node; None when it was made before the step, 0 when nothing tells.

        Args:
            number: sequence number of the node.
            node: the node's name. ``CopySlices`` is made after the in-place op on a view has run, so the next call
                claimed it.
            thread: the running thread.
            own_from: nodes of this number and greater are surely the thread's own; None if no node is.
        """
        own = thread.first <= number < _get_sequence_nr()
        if len(self._threads) > 1 and not (own and own_from is not None and number >= own_from):
            makers = [one for one in self._threads if number in one.made]
            if own and makers not in ([], [thread]):
                return 0
            if not own:
                if len(makers) != 1:
                    return 0 if makers else None
                thread = makers[0]
        elif not own:
            return None
        if node == "CopySlices" or number not in thread.made:
            return thread.made_before.get(number, thread.last_call if own_from is not None else 0)
        return thread.made[number]

    def made_around(self, number: int, thread: ThreadState) -> int:
        """Return the first op in the forward of a custom function that has this node; 0 unknown."""
        return thread.made_around.get(number, 0)


class NodeTag:
    """What the recorder knows of one autograd node; lives in the node's metadata and in its hooks."""

    __slots__ = (
        "after",
        "before",
        "call",
        "creates_graph",
        "forward",
        "leaf",
        "links",
        "maker",
        "mode_off",
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
        self.maker: OpenCall | None = None  # the autograd node in whose run it was made (create_graph=True)
        self.before: Any = None  # handles of the two hooks
        self.after: Any = None
        self.leaf: int | None = None  # id of the leaf tensor that this node accumulates into
        self.sends: list[tuple[int, OpenCall, Edge]] = []  # output slot -> input edge of that call
        self.receives: list[tuple[int, OpenCall, Path]] = []  # input slot -> output of that call
        self.call: OpenCall | None = None  # its present or last run
        self.running = False
        self.mode_off = False  # our dispatch mode is off the stack for its run
        self.pushed = False  # the function mode was put back on the stack for its run
        self.creates_graph = False  # its run is itself differentiated (create_graph=True)

    def enter(self, grad_outputs: tuple[torch.Tensor | None, ...]) -> None:
        self.links.enter(self, grad_outputs)

    def leave(
        self, grad_inputs: tuple[torch.Tensor | None, ...], grad_outputs: tuple[torch.Tensor | None, ...]
    ) -> None:
        self.links.leave(self, grad_inputs, grad_outputs)


class GraphLinks:
    """The autograd graph of one step, seen from the calls that made it."""

    def __init__(self, recorder: StepRecorder) -> None:
        self._recorder = recorder
        self.claims = SequenceClaims(recorder.all_threads)
        self._handles: list[Any] = []
        self._tasks: dict[int, BackwardTask] = {}
        self.closed = False

    # -- forward

    def note_inputs(self, call: OpenCall, tensors: Iterable[tuple[Path, torch.Tensor]]) -> None:
        """Remember through which edges gradients will leave `call`: an in-place op changes them."""
        call.sequence_start = _get_sequence_nr()
        self.note_edges(call, tensors)

    def note_edges(self, call: OpenCall, tensors: Iterable[tuple[Path, torch.Tensor]]) -> None:
        """Remember through which edges gradients will leave `call` for these tensors."""
        for path, tensor in tensors:
            if tensor.requires_grad:
                node = tensor.grad_fn
                edge = (-id(tensor), 0) if node is None else (node._sequence_nr(), tensor.output_nr)
                call.input_edges.setdefault(edge, []).append(path)

    def track(self, call: OpenCall, outputs: list[tuple[Path, torch.Tensor]], thread: ThreadState) -> None:
        """Tag the nodes that were made on the way to `outputs`, and note which of them are outputs of `call`."""
        self.track_nodes((t.grad_fn for _, t in outputs), call, thread)
        for path, tensor in outputs:
            tag = self.tag_of(tensor.grad_fn)
            if tag is not None and tag.sequence_nr >= call.sequence_start:
                tag.receives.append((tensor.output_nr, call, path))

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
            known = node.metadata.get(_KEY)
            if known is not None and known.links is self:
                if known.leaf is not None and consumer:
                    known.forward = min(known.forward, consumer)
                continue
            tag = self._tag(node, call, consumer, thread, maker)
            if tag is not None:
                pending += [(following, tag.forward) for following, _ in node.next_functions if following is not None]

    def tag_of(self, node: Any) -> NodeTag | None:
        """Return the tag of an autograd node, if this step has put one on it."""
        if node is None:
            return None
        tag: NodeTag | None = node.metadata.get(_KEY)
        return tag if tag is not None and tag.links is self else None

    def _tag(
        self, node: Any, call: OpenCall | None, consumer: int, thread: ThreadState, maker: OpenCall | None
    ) -> NodeTag | None:
        number: int = node._sequence_nr()
        name: str = node.name().rpartition("::")[2]
        if number == _ACCUMULATE_GRAD:
            if not hasattr(node, "variable"):
                return None  # a node that only raises (once_differentiable)
            tag = NodeTag(self, name, number, consumer, _module_of(call))
            tag.leaf = id(node.variable)
        else:
            begun_by = maker or call
            own_from = begun_by.sequence_start if begun_by else thread.claimed
            forward = self.claims.made_by(number, name, thread, own_from)
            if forward is None:
                return None  # made before the step
            owner: OpenCall | None = call
            while owner is not None and owner.sequence_start > number:
                owner = owner.parent
            if owner is not None and owner.recorded and owner.is_function and f"{owner.name.api}Backward" == name:
                forward = owner.id  # a custom autograd function: its backward is written for all of its forward
            elif isinstance(node, BackwardCFunction):
                forward = self.claims.made_around(number, thread) or forward
            tag = NodeTag(self, name, number, forward, owner)
            tag.maker = maker if maker is not None and number >= maker.sequence_start else None
            self._note_edges(tag, node)
            self._note_saved(tag, node)
        node.metadata[_KEY] = tag
        tag.before, tag.after = node.register_prehook(tag.enter), node.register_hook(tag.leave)
        self._handles += (tag.before, tag.after)
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
        elif not tensors and torch._C._autograd._top_saved_tensors_default_hooks(False) is not None:
            self._recorder.coverage.add("saved_hooks")

    # -- backward

    def enter(self, tag: NodeTag, grad_outputs: tuple[torch.Tensor | None, ...]) -> None:
        """A node begins to run with these gradients of its outputs."""
        thread = self._recorder.thread()
        if self.closed or thread is None or thread.busy or not torch._C._len_torch_dispatch_stack():
            return  # without a mode on its stack the thread is not recorded
        with self._recorder.hook_code(thread):
            _move_to_end(tag.after)
            task = self._task(thread)
            parent = task.call_of(tag.owner, thread)
            call = self._recorder.begin_node(thread, tag, parent)
            call.args = [self._recorder.tree(g, is_input=True) for g in grad_outputs]
            tag.call, tag.running, tag.creates_graph = call, True, torch.is_grad_enabled()
            if tag.name == COMPILED_NODE:
                thread.storages_before = self._recorder.values.storages_seen()
            else:
                tag.pushed = self._recorder.push_function_mode()
            self._receive(tag, call, task, thread)
            if tag.name in OWN_FORMULA_NODES:
                tag.mode_off = take_mode_off(self._recorder.dispatch_mode)
                self._recorder.coverage.add("own_formula", tag.name, int(tag.mode_off))

    def _receive(self, tag: NodeTag, call: OpenCall, task: BackwardTask, thread: ThreadState) -> None:
        """Hand the gradients that a node was given on to the calls whose outputs they belong to."""
        for slot, owner, path in tag.receives:
            received = task.call_of(owner, thread)
            if received is not None and slot < len(call.args):
                received.received[path] = call.args[slot]

    def leave(
        self,
        tag: NodeTag,
        grad_inputs: tuple[torch.Tensor | None, ...],
        grad_outputs: tuple[torch.Tensor | None, ...],
    ) -> None:
        """A node has run and sends these gradients on."""
        thread = self._recorder.thread()
        call = tag.call
        if self.closed or thread is None or thread.busy or call is None or not tag.running:
            return
        tag.running = False
        if tag.mode_off:
            put_mode_back(self._recorder.dispatch_mode)
        if tag.pushed:
            self._recorder.pop_function_mode()
        with self._recorder.hook_code(thread):
            if tag.name == COMPILED_NODE:  # the kernels of the compiler write unseen
                self._recorder.values.invalidate_since(thread.storages_before)
            trees = [self._recorder.tree(g, is_input=False) for g in grad_inputs]
            task = self._task(thread)
            if len(tag.before.hooks_dict_ref() or ()) > 1:  # a hook of the program's may have replaced them after ours
                call.args = [self._recorder.tree(g, is_input=True) for g in grad_outputs]
                self._receive(tag, call, task, thread)
            self._recorder.end_node(thread, call, trees)
            if tag.creates_graph:
                made = (g.grad_fn for g in grad_inputs if g is not None)
                self.track_nodes(made, thread.stack[-1] if thread.stack else None, thread, call)
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
        """The engine has run the last node of a backward pass.

        DDP and FSDP reduce what is left in callbacks like this one, some of them queued after it: so it goes to the end
        of the queue once more, and sees the gradients as the program will.
        """
        torch.autograd.Variable._execution_engine.queue_callback(lambda: self._finish_last(number))

    def _finish_last(self, number: int) -> None:
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
            if number == _ACCUMULATE_GRAD:
                return None, 0, False
            return None, self.claims.made_by(number, node.name(), self._recorder.thread(), None) or 0, False
        return tag.call, tag.forward, tag.running

    def recomputes(self, node: Any) -> bool:
        """Tell whether what runs under `node` is forward again: a graph is made in a pass that makes none itself."""
        if not torch.is_grad_enabled():
            return False
        tag = self.tag_of(node)
        return (tag is not None and not tag.creates_graph) or _checkpoint_runs()

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


def _move_to_end(handle: Any) -> None:
    """Let our hook on a node run after those that the program put there later: they may replace gradients."""
    hooks = handle.hooks_dict_ref()
    if hooks is not None and len(hooks) > 1 and handle.id in hooks:
        hooks[handle.id] = hooks.pop(handle.id)  # not move_to_end: the engine reads the plain dict underneath


def _checkpoint_runs() -> bool:
    """Tell whether torch's checkpoint is running a function again, where a backward pass is itself differentiated."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file == _CHECKPOINT:
            return True
        if file == _ENGINE and frame.f_code.co_name == "_engine_run_backward":
            return False
        frame = frame.f_back
    return False


def _edge_to(node: Any, output_nr: int) -> Edge:
    number: int = node._sequence_nr()
    leaf = getattr(node, "variable", None) if number == _ACCUMULATE_GRAD else None
    return (number, output_nr) if leaf is None else (-id(leaf), 0)


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
