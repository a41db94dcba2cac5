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
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter_ns
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.utils.checkpoint
from torch._C import _current_graph_task_id as current_graph_task_id
from torch._C import _len_torch_dispatch_stack as len_dispatch_stack
from torch.autograd.function import BackwardCFunction

from ...store.records import TREE_TUPLE, Tree, TreePath
from ..naming.call_name import MODULE, NODE, CallName
from ..step.open_calls import Edge, OpenCall, ThreadState
from ..step.own_code import HookCode
from ..torch_internals import node_hooks
from ..torch_internals.formulas_without_mode import OWN_FORMULA_NODES, put_mode_back, take_mode_off
from ..torch_internals.saved_tensors import saved_tensors_of
from ..values.argument_encoding import encode_all
from .backward_calls import BackwardTask
from .node_runs import begin_node, pop_function_mode, push_function_mode
from .sequence_claims import SequenceClaims

if TYPE_CHECKING:
    from ..calls.step_recorder import StepRecorder

is_grad_enabled: Final[Callable[[], bool]] = torch.is_grad_enabled
_top_saved_hooks: Final[Callable[[bool], Any]] = getattr(
    torch._C._autograd, "_top_saved_tensors_default_hooks", lambda ignore: None
)
running_node: Final[Callable[[], Any]] = torch._C._current_autograd_node  # None outside of a backward pass
COMPILED_NODE: Final = "CompiledFunctionBackward"  # AOTAutograd's: its first run compiles it
KEY: Final = "aten_dump"  # our entry in a node's metadata
_CHECKPOINT: Final = str(torch.utils.checkpoint.__file__)
_ENGINE: Final = str(torch.autograd.graph.__file__)
_ACCUMULATE_GRAD: Final = 2**64 - 1  # the sequence number of nodes that accumulate into a leaf


class NodeTag:
    """What the recorder knows of one autograd node; lives in the node's metadata and in its hooks."""

    # Most nodes keep most of these; the class holds them, so that only what differs is set.
    maker: OpenCall | None = None  # the autograd node in whose run it was made (create_graph=True)
    leaf: int | None = None  # id of the leaf tensor that this node accumulates into
    sends: Sequence[tuple[int, OpenCall, Edge]] = ()  # output slot -> input edge of that call
    receives: Sequence[tuple[int, OpenCall, TreePath]] = ()  # input slot -> output of that call
    call: OpenCall | None = None  # its present or last run
    running = False
    runs_python = True  # its run may call into Python: custom functions, hooks of the program's (any leaf's)
    mode_off = False  # our dispatch mode is off the stack for its run
    pushed = False  # the function mode was put back on the stack for its run
    creates_graph = False  # its run is itself differentiated (create_graph=True)
    task: BackwardTask | None = None  # the pass of its present or last run
    after: Any = None  # the handle of the hook after its run

    def __init__(
        self, links: GraphLinks, name: CallName, sequence_nr: int, forward: int, owner: OpenCall | None
    ) -> None:
        self.links = links
        self.name = name
        self.sequence_nr = sequence_nr
        self.forward = forward
        self.owner = owner  # the innermost API or module call that made the node

    def __call__(
        self, gradients: tuple[torch.Tensor | None, ...], grad_outputs: tuple[torch.Tensor | None, ...] | None = None
    ) -> None:
        """Run by the engine before the node, with the gradients that it gets, and after it, with those it sends too."""
        links = self.links
        if links.closed:
            return
        recorder = links.recorder
        thread = recorder.thread()
        if thread.busy:
            return
        if grad_outputs is not None:
            if self.running:
                with HookCode(thread, recorder.failed):
                    links.leave(self, gradients, grad_outputs, thread)
        elif len_dispatch_stack():  # without a mode on its stack the thread is not recorded
            begun_ns = perf_counter_ns()
            try:
                if thread.lock is None:
                    links.enter(self, thread)
                else:
                    with thread.lock:
                        links.enter(self, thread)
            except Exception as error:  # noqa: BLE001 - `failed` raises it or tells the user
                recorder.failed(error)
            thread.own_ns += perf_counter_ns() - begun_ns


class GraphLinks:
    """The autograd graph of one step, seen from the calls that made it."""

    def __init__(self, recorder: StepRecorder) -> None:
        self.recorder = recorder
        self.claims = SequenceClaims(recorder.all_threads)
        self._handles: list[Any] = []
        node_hooks.install(NodeTag)
        self._names: dict[str, CallName] = {}  # of nodes, by what they call themselves
        self._tasks: dict[int, BackwardTask] = {}
        self.closed = False

    # -- forward

    @staticmethod
    def edges_of(tensors: Iterable[tuple[TreePath, torch.Tensor]]) -> dict[Edge, list[TreePath]] | None:
        """Return through which edges gradients will leave a call that is given these tensors."""
        edges: dict[Edge, list[TreePath]] | None = None
        for path, tensor in tensors:
            if tensor.requires_grad:
                node = tensor.grad_fn
                edge = (-id(tensor), 0) if node is None else (node._sequence_nr(), tensor.output_nr)
                if edges is None:
                    edges = {edge: [path]}
                else:
                    edges.setdefault(edge, []).append(path)
        return edges

    def track(self, call: OpenCall, outputs: Iterable[tuple[TreePath, torch.Tensor]], thread: ThreadState) -> None:
        """Tag the nodes that were made on the way to `outputs`, and note which of them are outputs of `call`."""
        for path, tensor in outputs:
            node = tensor.grad_fn
            if node is None:
                continue
            metadata: Any = node.metadata
            tag: NodeTag | None = metadata.get(KEY)
            if tag is None or tag.links is not self:
                self.track_nodes((node,), call, thread)
                tag = self.tag_of(node)
            if tag is not None and tag.sequence_nr >= call.sequence_start:
                received = (tensor.output_nr, call, path)
                tag.receives = (*tag.receives, received) if tag.receives else (received,)

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
        tag: NodeTag | None = node.metadata.get(KEY)
        return tag if tag is not None and tag.links is self else None

    def _tag(
        self, node: Any, call: OpenCall | None, consumer: int, thread: ThreadState, maker: OpenCall | None
    ) -> NodeTag | None:
        number: int = node._sequence_nr()
        full = node.name()
        name = self._names.get(full)
        if name is None:
            short = full.rpartition("::")[2]
            name = self._names[full] = CallName(short, "Node", short)
        if number == _ACCUMULATE_GRAD:
            if not hasattr(node, "variable"):
                return None  # a node that only raises (once_differentiable)
            tag = NodeTag(self, name, number, consumer, _module_of(call))
            tag.leaf = id(node.variable)
        else:
            begun_by = maker or call
            own_from = begun_by.sequence_start if begun_by else thread.claimed
            forward = self.claims.made_by(number, name.op, thread, own_from)
            if forward is None:
                return None  # made before the step
            owner: OpenCall | None = call
            while owner is not None and owner.sequence_start > number:
                owner = owner.parent
            is_python = isinstance(node, BackwardCFunction)
            if owner is not None and owner.is_function and owner.recorded and f"{owner.name.api}Backward" == name.op:
                forward = owner.id  # a custom autograd function: its backward is written for all of its forward
            elif is_python:
                forward = self.claims.made_around(number, thread) or forward
            tag = NodeTag(self, name, number, forward, owner)
            if maker is not None and number >= maker.sequence_start:
                tag.maker = maker
            if owner is not None:
                self._note_edges(tag, node, owner)
            is_hooked = self._note_saved(tag, node)
            tag.runs_python = is_python or is_hooked or name.op == COMPILED_NODE
        node.metadata[KEY] = tag
        before, tag.after = node.register_prehook(tag), node.register_hook(tag)
        self._handles += (before, tag.after)
        return tag

    @staticmethod
    def _note_edges(tag: NodeTag, node: Any, owner: OpenCall | None) -> None:
        """Note which of the node's edges leave calls that made it for an input of theirs."""
        edges: list[tuple[int, Edge]] | None = None
        sends: list[tuple[int, OpenCall, Edge]] = []
        while owner is not None and owner.kind != NODE:
            inputs = owner.input_edges
            if inputs is not None:
                if edges is None:
                    edges = [
                        (slot, _edge_to(following, nr))
                        for slot, (following, nr) in enumerate(node.next_functions)
                        if following is not None
                    ]
                for slot, edge in edges:
                    if edge in inputs:
                        sends.append((slot, owner, edge))
                        if owner.expected is None:
                            owner.expected = {edge: 1}
                        else:
                            owner.expected[edge] = owner.expected.get(edge, 0) + 1
            owner = owner.parent
        if sends:
            tag.sends = sends

    def _note_saved(self, tag: NodeTag, node: Any) -> bool:
        """Record what a node saved; tell whether some of it is under saved-tensor hooks."""
        tensors, is_hooked = saved_tensors_of(node)
        if tensors and tag.forward:
            self.recorder.saved(tag.forward, tag.name.op, tensors)
        if not tensors and _top_saved_hooks(False) is not None:
            self.recorder.coverage.add("saved_hooks")
            return True
        return is_hooked

    # -- backward

    def enter(self, tag: NodeTag, thread: ThreadState) -> None:
        """A node begins to run."""
        recorder = self.recorder
        if node_hooks.let_others_first(tag.after):
            tag.runs_python = True
        number = current_graph_task_id()
        task = tag.task = self._tasks.get(number) or self._new_task(number, thread)
        owner = tag.owner
        parent = None
        if owner is not None:
            parent = task.calls.get(owner.id) or task.call_of(owner, thread)
        tag.call = begin_node(recorder, thread, tag, parent)
        tag.running, tag.creates_graph = True, is_grad_enabled()
        if tag.runs_python:
            if tag.name.op == COMPILED_NODE:
                thread.compiled_nodes += 1
                thread.storages_before = recorder.values.storages.seen()
            else:
                tag.pushed = push_function_mode(recorder.function_mode)
        if tag.name.op in OWN_FORMULA_NODES:
            tag.mode_off = take_mode_off(recorder.dispatch_mode)
            recorder.coverage.add("own_formula", tag.name.op, int(tag.mode_off))

    def leave(
        self,
        tag: NodeTag,
        grad_inputs: tuple[torch.Tensor | None, ...],
        grad_outputs: tuple[torch.Tensor | None, ...],
        thread: ThreadState,
    ) -> None:
        """A node has run and sends these gradients on."""
        recorder = self.recorder
        call = tag.call
        task = tag.task
        assert call is not None, "enter has set it"
        assert task is not None, "enter has set it"
        end_ns = perf_counter_ns() - recorder.start_ns
        tag.running = False
        if tag.mode_off:
            put_mode_back(recorder.dispatch_mode)
        if tag.pushed:
            pop_function_mode(recorder.function_mode)
        if tag.runs_python and tag.name.op == COMPILED_NODE:  # the kernels of the compiler write unseen
            thread.compiled_nodes -= 1
            recorder.values.storages.invalidate_since(thread.storages_before)
        values = recorder.values
        received = call.args = encode_all(grad_outputs, values, recorder.keep_inputs)
        last = thread.last_output
        if last is not None and len(grad_inputs) == 1 and last[0] == id(grad_inputs[0]) and call.id < thread.last_call:
            sent: list[Tree] = [last[1]]  # what the node's last op returned, and nothing was run since
        else:
            sent = encode_all(grad_inputs, values, recorder.keep_outputs)
        calls = task.calls
        for slot, owner, path in tag.receives:
            receiver = calls.get(owner.id) or task.call_of(owner, thread)
            if receiver is not None and slot < len(received):
                receiver.received[path] = received[slot]
        recorder.end_open(thread, call, end_ns, [TREE_TUPLE, *sent])
        if tag.creates_graph:
            made = (g.grad_fn for g in grad_inputs if g is not None)
            self.track_nodes(made, thread.stack[-1] if thread.stack else None, thread, call)
        for slot, owner, edge in tag.sends:
            sender = calls.get(owner.id) or task.call_of(owner, thread)
            if sender is not None and slot < len(sent):
                sender.send(edge, grad_inputs[slot], sent[slot], recorder)
        if tag.leaf is not None:
            task.leaves[tag.leaf] = call.id
        if tag.owner is not None:
            parent = calls.get(tag.owner.id)
            if parent is not None:
                parent.end_ns = end_ns

    def _new_task(self, number: int, thread: ThreadState) -> BackwardTask:
        """Begin the record of a backward pass, and have it ended when the engine has run its last node."""
        task = self._tasks[number] = BackwardTask(self.recorder, thread)
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
        thread = self.recorder.thread()
        if task is not None and thread is not None and not self.closed:
            with HookCode(thread, self.recorder.failed):
                task.finish()

    def forward_of(self, node: Any) -> int:
        """Return the forward call of a node that the engine runs and that has no call of its own; 0 unknown."""
        tag = self.tag_of(node)
        if tag is not None:
            return tag.forward
        number = node._sequence_nr()
        if number == _ACCUMULATE_GRAD:
            return 0
        return self.claims.made_by(number, node.name(), self.recorder.thread(), None) or 0

    def recomputes(self, node: Any) -> bool:
        """Tell whether what runs under `node` is forward again: a graph is made in a pass that makes none itself."""
        if not is_grad_enabled():
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
            node_hooks.remove(handle)
        self._handles.clear()
        node_hooks.uninstall()


def _module_of(call: OpenCall | None) -> OpenCall | None:
    while call is not None and call.kind != MODULE:
        call = call.parent
    return call


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
