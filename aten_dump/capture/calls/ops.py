"""Records aten ops, one Call each, from inside `__torch_dispatch__`. This is the hot path.

Theory of operation
    Most ops write nothing: their inputs are the same values after the op as before it, so all of such a call is
    recorded in one go when it has returned (`PendingOp`). Ops that write, start a collective or run other ops in Python
    are looked at twice (`WatchedOp`). What can be known of an op once is in its `OpEntry`; `Ops` holds one for each op
    that was seen in the step.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from time import perf_counter_ns
from typing import Any, Final

import torch

from ...config import DumpConfig
from ...store.records import CALL, Tree
from ..autograd.node_tags import NodeTag, NodeTags
from ..naming.call_name import API, ATEN, BACKWARD, FORWARD, NODE, OPTIMIZER, RECOMPUTE
from ..step.collectives import Flights
from ..step.program_frames import program_frame
from ..step.random_states import RandomStates
from ..step.step import CALLS_PER_PAUSE, Step, text_of
from ..step.threads import ThreadState
from ..torch_internals.engine import (
    current_graph_task_id,
    get_sequence_nr,
    is_grad_enabled,
    is_jit_tracing,
    len_dispatch_stack,
    running_node,
)
from ..torch_internals.tracing import kind_of_types
from ..values.argument_encoding import encode, encode_all, encode_unless_known
from ..values.value_ids import ValueIds
from .captured import CapturedGraph
from .op_entries import OpEntry, new_entry

_INT64: Final = 2**63 - 1


class Place:
    """Where a call belongs. What runs it is set when it begins, the rest by `Places.find`."""

    __slots__ = ("forward", "fqn", "module", "node", "parent", "phase", "sequence_nr", "stack", "tag")

    node: Any  # the autograd node in whose run it is made, None in none
    tag: NodeTag | None  # of the node
    parent: int
    phase: int
    sequence_nr: int | None  # of the autograd node that it made, or that runs it
    stack: int
    module: int
    forward: int
    fqn: str


class Places:
    """Finds the places of a step's ops."""

    __slots__ = ("_keeps_stacks", "_step", "_tags")

    def __init__(self, step: Step, tags: NodeTags, keeps_stacks: bool) -> None:
        self._step = step
        self._tags = tags
        self._keeps_stacks = keeps_stacks

    def find(self, place: Place, thread: ThreadState) -> None:
        """Set where an op belongs, whose `sequence_nr` is that of the autograd node that it made.

        When it began, `thread.grad` was set to its grad mode.
        """
        node = place.node
        top = thread.stack[-1] if thread.stack else None
        tag = place.tag
        call = None if tag is None else tag.call
        if top is not None and top is not call and top.kind == NODE:
            top = self._step.top(thread)
        place.forward = 0
        if top is None:
            # On a device's thread, what the engine runs hooks for is the program's that waits for it.
            place.parent = 0 if node is None else self._step.main_parent()
            place.module = place.stack = 0
            place.fqn = ""
        else:
            place.parent, place.module, place.fqn, place.stack = top.visible, top.module, top.fqn, top.stack
        if self._keeps_stacks and (top is None or top.kind not in (API, NODE)):
            place.stack = self._step.stack_of(program_frame(), thread)
        if node is None or (thread.optimizer_depth and thread.optimizer_runs_in_backward()):
            place.phase = OPTIMIZER if thread.optimizer_depth and not thread.grad else FORWARD
            return
        tags = self._tags
        if (top is not None and top.phase == RECOMPUTE) or (thread.grad and tags.recomputes(node, thread)):
            place.phase = RECOMPUTE  # the reader finds the original call
            return
        place.phase = BACKWARD
        if call is not None and call is not top and call.graph_task != current_graph_task_id():
            call = None  # of an earlier pass: a hook goes before the run
        if tag is None or call is None:
            place.sequence_nr = node._sequence_nr() & _INT64
            place.forward = tags.forward_of(node)
            return
        if call is not top and (top is None or (tag.thread is None and top.kind != ATEN)):
            place.parent = call.visible  # gradients are added up after the node's run; or another thread runs it
        place.sequence_nr, place.module, place.forward, place.fqn = call.sequence_nr, call.module, tag.forward, call.fqn


_TENSOR: Final = torch.Tensor


class Ops:
    """The aten ops of one step."""

    def __init__(self, config: DumpConfig, step: Step, values: ValueIds, tags: NodeTags, flights: Flights) -> None:
        self.step = step
        self.values = values
        self.flights = flights
        self.random_states = RandomStates(config.wants_tensor, step.sink, step.interner)
        self.tags = tags
        self.claims = tags.claims
        self.places = Places(step, tags, config.stacks)
        self.keep_inputs = config.io in ("all", "input")
        self.keep_outputs = config.io in ("all", "output")
        self.graphs: dict[int, int] = {}  # Graph id by the id of a graph that was compiled
        self.stages: dict[str, dict[int, int]] = {}  # of captured graphs: places of nodes that are on file
        self.kernel_links = KernelLinks()
        self._entries: dict[int, OpEntry] = {}  # by the id of the op
        self.captured: CapturedGraph | None = None  # the graph of a device that is being captured

    def entry_of(self, func: Any) -> OpEntry:
        """Return the step's entry of an op."""
        entry = self._entries.get(id(func))
        if entry is None:
            entry = self._entries[id(func)] = new_entry(func, self.step.counters, self.random_states.wanted)
        return entry

    def entry_made(self, func: Any, make: Callable[[Ops], OpEntry]) -> OpEntry:
        """Return the step's entry of something that is no op of torch's; `make` makes it the first time."""
        entry = self._entries.get(id(func))
        if entry is None:
            entry = self._entries[id(func)] = make(self)
        return entry

    def watch_closely(self, func: Any) -> None:
        """Look at all calls of an op before they are recorded."""
        self.entry_of(func).is_simple = False

    def start(self, thread: ThreadState, func: Any, types: Any) -> PendingOp | None:
        """Begin an op that is recorded when it has run; None where the op is to be watched closely."""
        entry = self._entries.get(id(func)) or self.entry_of(func)
        node = running_node()
        tag = None if node is None else self.tags.entered(node, thread)
        if (
            not entry.is_simple
            or (types and kind_of_types(types))
            or thread.aside
            or thread.compiled_nodes
            or self.flights.pending
            or is_jit_tracing()
            or len_dispatch_stack()
        ):
            return None
        op = PendingOp()
        op.node, op.tag = node, tag
        op.begin(self, thread, entry)
        return op


class PendingOp(Place):
    """An op under way that writes nothing."""

    __slots__ = ("args", "before", "entry", "id", "kwargs", "n", "ops", "recorded", "start_ns", "thread")

    args: list[Tree]  # set where the call is to be recorded

    def begin(self, ops: Ops, thread: ThreadState, entry: OpEntry) -> None:
        """Take a number and the nodes made since the last op, right before the op runs."""
        number = self.id = ops.step.next_id()
        counter = get_sequence_nr()
        if is_grad_enabled() is not thread.grad:
            ops.step.report_mode(thread, number)
        self.ops = ops
        self.entry = entry
        self.thread = thread
        self.sequence_nr = ops.claims.claim(thread, number, counter) if counter != thread.claimed else None
        self.before = thread.last_call  # the aten call before it on this thread
        thread.last_call = number
        self.recorded = True
        self.n = -1  # of the call's name; given at the end, unless inner ops come before that
        self.kwargs: dict[str, Tree] | None = None
        self.start_ns = perf_counter_ns() - ops.step.start_ns

    def end(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, error: BaseException | None) -> None:
        """Record what the op was given, and what it returned or raised; unless recording stopped while it ran."""
        step = self.ops.step
        if not step.is_on:
            return
        own = self.thread.own
        now_ns = perf_counter_ns()
        try:
            own.enter(now_ns)
            try:
                self._record(args, kwargs, result, error, now_ns - step.start_ns - self.start_ns)
                if self.ops.captured is not None:
                    self.ops.captured.saw(args, kwargs, result)
            finally:
                own.leave()
        except Exception as failure:  # noqa: BLE001 - `failed` raises or reports it
            step.failed_beside(error, failure)

    def _record(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, error: BaseException | None, duration_ns: int
    ) -> None:
        ops = self.ops
        step = ops.step
        values = ops.values
        thread = self.thread
        entry = self.entry
        if entry.may_be_ahead:
            self._note_ahead(args)
        ops.places.find(self, thread)
        if not step.selection.takes_all and not step.selection.records(
            ATEN, entry.plan.name, self.fqn, self.phase, self.forward
        ):
            step.coverage.add("selection")
            return
        top = thread.stack[-1] if thread.stack else None
        if top is not None and self.before < top.id:  # nothing was run since the call around it was recorded
            self.args = encode_unless_known(args, values, ops.keep_inputs, top.raw, top.args)
        else:
            self.args = encode_all(args, values, ops.keep_inputs)
        if kwargs:
            self.kwargs = {k: encode(v, values, ops.keep_inputs) for k, v in kwargs.items()}
        outputs: Tree
        if type(result) is not _TENSOR:
            outputs = encode(result, values, ops.keep_outputs)
        elif entry.is_detach and (ops.keep_inputs or not ops.keep_outputs):
            outputs = self.args[0]  # the same memory, as it lies
            if thread.output_call != self.before or thread.output is not outputs or thread.output_id != id(args[0]):
                thread.output_id, thread.output = id(result), outputs
            thread.output_call = self.id  # autograd saves what the op before it returned
        else:
            if entry.copies and isinstance(args[0], _TENSOR):
                values.storages.cloned(result, args[0])
            outputs = values.tree_of(result, ops.keep_outputs)
            thread.output_id, thread.output, thread.output_call = id(result), outputs, self.id
        self._emit(duration_ns, outputs, None, error)

    def _note_ahead(self, args: tuple[Any, ...]) -> None:
        """Note of a clone, or a detach, that the op in place which autograd runs it for may come next."""
        if isinstance(args[0], _TENSOR) and not args[0].requires_grad:
            self.sequence_nr = None  # what it claimed is that op's node
        self.ops.claims.cloned(self.thread, self.id, self.before, self.sequence_nr)

    def _emit(self, duration_ns: int, outputs: Tree, written: list[Tree] | None, error: BaseException | None) -> None:
        entry = self.entry
        step = self.ops.step
        if not entry.number:
            entry.number = step.interner.op(ATEN, entry.plan.name, entry.plan.arguments)
        n = self.n
        if n < 0:
            counter = entry.counter
            n = counter.n
            counter.n = n + 1
        step.calls = calls = step.calls + 1
        if not calls & CALLS_PER_PAUSE:
            step.pause()
        record: tuple[Any, ...] = (
            CALL,
            self.id,
            self.parent,
            entry.number,
            n,
            0,
            self.phase,
            self.thread.number,
            self.start_ns,
            duration_ns,
            self.sequence_nr,
            self.stack,
            self.module,
            self.forward,
            self.args,
            self.kwargs,
            outputs,
        )
        if written is not None or error is not None:
            record = (*record, written, None if error is None else text_of(error))
        step.emit(record)


class KernelLinks:
    """The kernels of compiled forwards in one step.

    Each node of a compiled graph says of which autograd node it is, as that was numbered when the graph was traced: a
    kernel of the backward belongs to the forward kernel that has computed for the same autograd node, in the call of
    compiled code that the backward is of.
    """

    def __init__(self) -> None:
        self._regions: list[int] = []  # ids of calls of compiled code, ascending
        self._kernels: dict[tuple[int, str, int], int] = {}  # by region, graph and number of the node

    def add(self, region: int, graph: str, numbers: Iterable[int], call: int) -> None:
        """Note a kernel of a forward.

        Args:
            region: id of the call of compiled code that it is in.
            graph: what the names of the forward's and the backward's graph have in common.
            numbers: of the autograd nodes that it computes for.
            call: its id.
        """
        if not self._regions or self._regions[-1] < region:
            self._regions.append(region)
        for number in numbers:
            self._kernels.setdefault((region, graph, number), call)

    def forward_of(self, first: int, graph: str, numbers: Iterable[int]) -> int:
        """Return the id of the forward kernel that a kernel of a backward belongs to.

        Args:
            first: id of the first op in the call of compiled code that the backward is of, and what is returned where
                no kernel is known.
            graph: as `add` takes it.
            numbers: of the autograd nodes that it computes for, the most specific first.
        """
        place = bisect_right(self._regions, first) - 1
        region = self._regions[place] if place >= 0 else 0
        found = (self._kernels.get((region, graph, number)) for number in numbers)
        return next((call for call in found if call is not None), first)
