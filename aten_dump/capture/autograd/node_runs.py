"""The runs of autograd nodes: node calls, and through them the backward of the calls that made the nodes.

Theory of operation
    The run of each tagged node is a call, under which the aten ops of the run are recorded. The first of these opens
    it: which node runs is asked of the engine at each op. The hook after the run closes it (opens it too, if nothing
    ran) with the gradients that the node got and sent, and hands those that cross the border of a Python-level call or
    module to that call's `BackwardCall`. Only nodes that run Python, or that compute otherwise under a mode, have a
    hook before the run as well, that opens the call. On a device the engine runs nodes on threads of its own, and adds
    gradients up between nodes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Final

from ...config import DumpConfig
from ...store.records import TREE_TUPLE, Tree
from ..memory.storage_table import states_of
from ..memory.storages import StorageState
from ..naming.call_name import ATEN, BACKWARD, NODE
from ..step.open_calls import OpenCall
from ..step.program_frames import program_frame
from ..step.step import Step
from ..step.threads import ThreadState, forget_last_run, output_of
from ..torch_internals import node_hooks
from ..torch_internals.engine import (
    current_graph_task_id,
    get_sequence_nr,
    is_grad_enabled,
    len_dispatch_stack,
    node_of,
    pass_makes_graph,
    queue_callback,
    running_node,
    runs_hook,
)
from ..torch_internals.formulas_without_mode import OWN_FORMULA_NODES, computes_otherwise
from ..torch_internals.mode_stack import (
    Modes,
    pop_function_mode,
    push_dispatch_mode,
    push_function_mode,
    take_only_dispatch_mode_off,
)
from ..torch_internals.saved_tensors import SHOWS_SAVED, saved_tensors_of
from ..values.argument_encoding import encode_all
from ..values.value_ids import ValueIds
from .backward_calls import BackwardCall, BackwardTask, GradientSums
from .graph_links import COMPILED_NODE, GraphLinks, ignore
from .node_tags import Gradients, NodeTag, NodeTags, Runs
from .saved_packs import SavedPacks

_NO_LOCK: Final = threading.RLock()  # of a thread that is the only one
# Of a module that is not compiled, by names that are final here: found without a look into a dict.
_put: Final = node_hooks.put
_put_after: Final = node_hooks.put_after
_let_others_first: Final = node_hooks.let_others_first


class NodeRuns(Runs):
    """The runs of the tagged nodes of one step."""

    def __init__(
        self, config: DumpConfig, step: Step, values: ValueIds, modes: Modes, reached: Callable[[dict[int, int]], None]
    ) -> None:
        """Begin a step.

        Args:
            config: what to record.
            step: the step.
            values: its values.
            modes: the recorder's, for nodes that run Python code and those that compute otherwise under a mode.
            reached: is called with the leaves that a backward pass has reached, with the node call of each.
        """
        self.step = step
        self._values = values
        self._modes = modes
        self._reached = reached
        self._keep_inputs = config.io in ("all", "input")
        self._keep_outputs = config.io in ("all", "output")
        self._sees_passes = config.level in ("api", "mix")
        self._sums = GradientSums(values, config.data != "structure", self._keep_outputs)
        self._handles: list[Any] = []
        self._tasks: dict[int, BackwardTask] = {}
        self._compiled: dict[int, tuple[int, list[StorageState] | None]] = {}  # see `_begin_compiled`
        self.closed = False
        self.tags = NodeTags(step.threads)
        self.packs = SavedPacks(step, values, self.tags) if config.saved_tensors == "hooks" else None
        self.links = GraphLinks(step, values, self.tags, self.put_hooks, self.packs.saved_by if self.packs else None)
        node_hooks.install(NodeTag, self._runs_program)

    def put_hooks(self, node: Any, tag: NodeTag) -> None:
        """Watch the runs of a node that has got a tag."""
        tag.runs = self
        handle = None
        if not tag.runs_python and self.packs is None and tag.name.op not in OWN_FORMULA_NODES:
            handle = _put_after(node, tag)
        tag.is_late = handle is not None
        tag.handle = _put(node, tag) if handle is None else handle
        self._handles.append(tag.handle)

    def stand_aside(self) -> None:
        """Take the hooks off all nodes, and put none on new ones until `come_back`: their passes will be compiled."""
        self.links.put_hooks = ignore
        for tag in node_hooks.remove_all(self._handles):
            tag.is_late = False  # nothing would show that its run has ended
        self._handles.clear()
        node_hooks.uninstall()

    def come_back(self) -> None:
        """Put hooks on new nodes again."""
        if not self.closed:
            self.links.put_hooks = self.put_hooks
            node_hooks.install(NodeTag, self._runs_program)

    def _runs_program(self, *gradients: Gradients) -> None:
        """Run by the engine ahead of a hook of the program's before a node's run or after it."""
        node = running_node()
        tag = None if node is None else self.tags.of(node)
        if tag is None or not tag.is_late:
            return
        with self.step.here.state.own.lock or _NO_LOCK:
            if not tag.has_call():
                self.begins(tag, gradients[-1])
            if tag.has_call() and tag.thread is not None and not tag.pushed:
                tag.pushed = push_function_mode(self._modes.function)

    def runs_in(self, tag: NodeTag, thread: ThreadState) -> None:
        """An op or a call begins in the run of a node that has no hook before it, or is about another run of its."""
        if self.closed:
            return
        try:
            with thread.own.lock or _NO_LOCK:
                if tag.has_call():
                    self.step.top(thread)  # without nodes of passes that have failed within the run
                    return
                was_last = thread.last_run is tag and thread.last_run_pass == current_graph_task_id()  # others run it
                is_within = bool(thread.stack) and thread.stack[-1].kind == ATEN  # which has opened it, or has not
                if tag.is_late and not (is_within or was_last or runs_hook(program_frame(), thread.number == 0)):
                    self._enter(tag, thread, None)
        except Exception as error:  # noqa: BLE001 - `failed` raises or reports it
            self.step.failed(error)

    def begins(self, tag: NodeTag, grad_outputs: Gradients) -> None:
        """A node is about to run; it gets `grad_outputs`."""
        thread = self.step.here.state
        own = thread.own
        # Without a mode on its stack the thread is not recorded.
        if self.closed or own.depth or not self.step.is_on or not len_dispatch_stack():
            return
        begun_ns = perf_counter_ns()
        try:
            with own.lock or _NO_LOCK:
                call = self._enter(tag, thread, grad_outputs)
        except Exception as error:  # noqa: BLE001 - `failed` raises or reports it
            self.step.failed(error)
            return
        now_ns = perf_counter_ns()
        own.ns += now_ns - begun_ns
        call.start_ns = now_ns - self.step.start_ns

    def has_run(self, tag: NodeTag, grad_inputs: Gradients, grad_outputs: Gradients) -> None:
        """A node has run; it got `grad_outputs` and sends `grad_inputs` on."""
        if self.closed:
            return
        thread: ThreadState | None = tag.thread
        # Where there is one thread and it has called no hook of the program's, it cannot run again within its run.
        is_this_run = thread is not None and not tag.pushed and thread.own.lock is None
        if thread is None or not is_this_run or not thread.stack or thread.stack[-1] is not tag.call:
            thread, is_this_run = self.step.here.state, False
        own = thread.own
        if own.depth:
            return
        may_begin = not is_this_run and tag.is_late and self.step.is_on and len_dispatch_stack() > 0
        now_ns = perf_counter_ns()
        try:
            own.enter(now_ns)
            try:
                has_call = is_this_run or tag.has_call()
                if not has_call and may_begin:  # nothing has run in it
                    self._enter(tag, thread, grad_outputs)
                    now_ns, has_call = perf_counter_ns(), True
                if has_call and tag.thread is not None:
                    self._leave(tag, grad_inputs, grad_outputs, thread, now_ns - self.step.start_ns)
            finally:
                own.leave()
        except Exception as error:  # noqa: BLE001 - `failed` raises or reports it
            self.step.failed(error)

    def _enter(self, tag: NodeTag, thread: ThreadState, grad_outputs: Gradients | None) -> OpenCall:
        """A node begins to run; return the call that this is.

        `grad_outputs` are what it gets; None where an op in it shows it, perhaps one with a grad mode of its own.
        """
        if not tag.is_late and _let_others_first(tag.handle):
            tag.runs_python = True
        if thread.last_run is not None:
            forget_last_run(thread)
        number = current_graph_task_id()
        stack = thread.stack
        if stack and stack[-1].kind == NODE:  # within the run of another, a pass is in the call that has begun it
            self.step.end_nodes(thread, 0 if self._sees_passes else number)
        if tag.thread is not None or tag.others:
            tag.set_aside()
        task = self._tasks.get(number) or self._new_task(number, thread)
        owner = tag.owner
        parent = None if owner is None else task.calls.get(owner.id) or task.call_of(owner, thread)
        call = tag.call = self._open(tag, thread, parent, number)
        if task.creates_graph is None:
            has_grad = thread.grad is True
            task.creates_graph = pass_makes_graph(program_frame(), has_grad) if grad_outputs is None else has_grad
        tag.thread, tag.creates_graph, tag.pushed = thread, task.creates_graph, False
        if tag.runs_python:
            if tag.name.op == COMPILED_NODE:
                self._begin_compiled(call, thread)
            else:
                tag.pushed = push_function_mode(self._modes.function)
        name = tag.name.op
        if grad_outputs is not None and name in OWN_FORMULA_NODES and computes_otherwise(name, grad_outputs):
            tag.mode_off = take_only_dispatch_mode_off(self._modes.dispatch)
            self.step.coverage.add("own_formula", name, int(tag.mode_off))
        return call

    def _open(self, tag: NodeTag, thread: ThreadState, parent: BackwardCall | None, number: int) -> OpenCall:
        """Open the run of a node in the pass of this number as a call."""
        step = self.step
        top = thread.stack[-1] if thread.stack else None
        call = OpenCall(step.next_id(), NODE, tag.name, top)
        call.graph_task = number
        if is_grad_enabled() is not thread.grad:
            step.report_mode(thread, call.id)
        if parent is not None:
            call.parent_id = parent.visible
        elif top is None:
            call.parent_id = step.main_parent()
        call.phase, call.forward = BACKWARD, tag.forward
        if tag.leaf is None:
            call.sequence_nr = tag.sequence_nr
        place = tag.maker or tag.owner
        if place is not None:
            call.fqn, call.module = place.fqn, place.module
        if top is not None:
            call.stack = top.stack
        if tag.is_late:
            call.start_ns = perf_counter_ns() - step.start_ns
        if not step.selection.takes_all:
            step.leave_out(call)
        # No node can be made by what neither runs Python nor has gradients on: asking takes longer. Where something has
        # begun in the run already, it has made its node.
        call.sequence_start = thread.claimed
        if tag.is_late:
            if top is not None and top.sequence_start > thread.claimed:
                call.sequence_start = top.sequence_start
        elif thread.grad or tag.runs_python:
            call.sequence_start = get_sequence_nr()
        thread.stack.append(call)
        return call

    def _leave(
        self, tag: NodeTag, grad_inputs: Gradients, grad_outputs: Gradients, thread: ThreadState, end_ns: int
    ) -> None:
        """A node has run until `end_ns` and sends these gradients on."""
        step = self.step
        call: OpenCall | None = tag.call
        assert call is not None, "_enter has set it"
        task = self._tasks[call.graph_task]
        call.end_ns = end_ns
        if thread.last_run is not None:
            forget_last_run(thread)
        tag.thread = None
        thread.last_run, thread.last_run_pass = tag, call.graph_task
        received = call.args = encode_all(grad_outputs, self._values, self._keep_inputs)
        if tag.runs_python or tag.pushed or tag.mode_off:
            self._put_modes_back(tag, thread)
        sent = self._trees_of(call, grad_inputs, thread)
        calls = task.calls
        receives = tag.receives
        for at in range(0, len(receives), 3):
            slot: int = receives[at]
            owner: OpenCall | None = receives[at + 1] or tag.owner
            assert owner is not None, "None stands for the owner"
            receiver = calls.get(owner.id) or task.call_of(owner, thread)
            if receiver is not None and slot < len(received):
                receiver.receive(receives[at + 2], received[slot])
        stack = thread.stack
        if stack and stack[-1] is call:
            stack.pop()
        else:
            step.take_off(thread, call)
        if call.recorded:
            step.emit_open(thread, call, (TREE_TUPLE, *sent), None, None)
        if tag.creates_graph:
            made = (node_of(g) for g in grad_inputs if g is not None)
            self.links.track_nodes(made, thread.stack[-1] if thread.stack else None, thread, call)
        sends = tag.sends
        for at in range(0, len(sends), 3):
            slot, owner = sends[at], sends[at + 1] or tag.owner
            assert owner is not None, "None stands for the owner"
            sender = calls.get(owner.id) or task.call_of(owner, thread)
            if sender is not None and slot < len(sent):
                sender.send(sends[at + 2], grad_inputs[slot], sent[slot], self._sums)
        if tag.leaf is not None:
            task.leaves[tag.leaf] = call.id
        if tag.owner is not None:
            parent = calls.get(tag.owner.id)
            if parent is not None:
                parent.end_ns = end_ns

    def _trees_of(self, call: OpenCall, grad_inputs: Gradients, thread: ThreadState) -> list[Tree]:
        """Return the gradients that a node's run sends."""
        seen = output_of(thread, grad_inputs[0], call.id) if len(grad_inputs) == 1 else None
        if seen is not None and grad_inputs[0] is not None:
            return [self._values.tree_again(grad_inputs[0], seen, self._keep_outputs)]
        return encode_all(grad_inputs, self._values, self._keep_outputs)

    def _put_modes_back(self, tag: NodeTag, thread: ThreadState) -> None:
        """Undo what `_enter` did to the stacks of modes."""
        if tag.mode_off:
            push_dispatch_mode(self._modes.dispatch)
        if tag.pushed:
            pop_function_mode(self._modes.function)
        tag.mode_off = tag.pushed = False  # the node may run again
        if tag.name.op == COMPILED_NODE:
            self._end_compiled(tag, thread)

    def _begin_compiled(self, call: OpenCall, thread: ThreadState) -> None:
        """The backward of compiled code begins: its kernels write unseen, to memory of its own and to what was saved
        for it, which they take again for their results.
        """
        thread.compiled_nodes += 1
        storages = self._values.storages
        saved = states_of(saved_tensors_of(running_node())[0], storages) if SHOWS_SAVED else None
        self._compiled[call.id] = storages.seen(), saved

    def _end_compiled(self, tag: NodeTag, thread: ThreadState) -> None:
        """It has run: nothing is known of that memory any more."""
        thread.compiled_nodes -= 1
        assert tag.call is not None, "_enter has set it"
        mark, saved = self._compiled.pop(tag.call.id)
        storages = self._values.storages
        if not self.step.threads.doubts:
            return  # each of its kernels was seen
        if saved is None:
            storages.invalidate()
        else:
            storages.seen_bytes.doubt(saved)
            storages.invalidate_since(mark)

    def _new_task(self, number: int, thread: ThreadState) -> BackwardTask:
        """Begin the record of a backward pass, and have it ended when the engine has run its last node."""
        task = self._tasks[number] = BackwardTask(self.step, self._sums, thread)
        # DDP and FSDP reduce what is left in callbacks like this one, some of them queued after it: so it goes to the
        # end of the queue once more, and sees the gradients as the program will.
        queue_callback(lambda: queue_callback(lambda: self._finish(number)))
        return task

    def _finish(self, number: int) -> None:
        """The engine has run the last node of a backward pass, and what was to be called after it."""
        task = self._tasks.pop(number, None)
        if task is not None and not self.closed:
            try:
                with self.step.here.state.own:
                    task.finish()
                    self._reached(task.leaves)
            except Exception as error:  # noqa: BLE001 - `failed` raises or reports it
                self.step.failed(error)

    def close(self) -> None:
        """Finish backward calls that were cut short, and take every hook away, also where the disk is full."""
        try:
            for task in self._tasks.values():
                task.finish()
                self._reached(task.leaves)
        finally:
            self._tasks.clear()
            for thread in self.step.threads.all:
                forget_last_run(thread)  # or the step would hold what holds the step
            self.closed = True
            node_hooks.remove_all(self._handles)
            self._handles.clear()
            node_hooks.uninstall()
            self._reached = self.links.put_hooks = ignore
