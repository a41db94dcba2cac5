"""One recorded step: turns what the modes and hooks see into records.

Theory of operation
    A thread has a stack of open calls (modules, Python-level calls, autograd nodes). An aten op, seen at dispatch, is
    a leaf under the top of that stack. Inputs become values before the op runs, outputs after it, and one Call
    record is emitted at the end. A StepRecorder lives for one step: every table, id and hook in it ends with it.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from time import perf_counter_ns
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import torch
from torch._C._autograd import _get_sequence_nr
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ...config import DumpConfig
from ...store.records import CALL, GRADIENT, NOTE, OPEN, SAVED, TREE_VALUE, Call, Gradient, Note, Open, Saved, Tree
from ...store.sink import Sink
from ..autograd.graph_links import GraphLinks, is_grad_enabled, running_node
from ..data.keeper import Keeper, Observe
from ..intercept.module_calls import ModulePaths
from ..memory.storages import CLOCK
from ..naming.call_name import API, BACKWARD, MODULE, NODE, OPTIMIZER, RECOMPUTE, CallName
from ..naming.interned_tables import Interner
from ..naming.selection import CallFilter
from ..step.collectives import Flight, Flights
from ..step.open_calls import Counter, OpenCall, ThreadState
from ..step.own_code import HookCode, OwnCode
from ..step.random_states import RandomStates
from ..unseen import Coverage
from ..values.argument_encoding import encode, encode_arguments, tensors_in
from ..values.unseen_writes import UnseenWrites
from ..values.value_table import ValueTable

if TYPE_CHECKING:
    from .ops import OpEntry

_new: Final = tuple.__new__  # of a record, without the checks of a NamedTuple's own
_TENSOR: Final = torch.Tensor
_BACKWARD_APIS: Final = frozenset(("torch.Tensor.backward", "torch.autograd.backward", "torch.autograd.grad"))
EARLY_STOP: Final = "early stop, no failure: torch.utils.checkpoint had recomputed all that the backward needs"
_CALLS_PER_PAUSE: Final = 1023  # a power of two less one
_SECONDS: Final = ("capture", "statistics", "hash", "copy")


class StepRecorder:
    """Records one step of one rank into a sink."""

    def __init__(
        self,
        config: DumpConfig,
        sink: Sink,
        paths: ModulePaths,
        function_mode: TorchFunctionMode,
        dispatch_mode: TorchDispatchMode,
        failed: Callable[[Exception], None],
        observe: Observe | None = None,
    ) -> None:
        """Begin a step.

        Args:
            config: what to record.
            sink: where the records go.
            paths: paths of modules and parameters.
            function_mode: the mode on torch's stack, put back on it while autograd nodes run Python code.
            dispatch_mode: the other mode on torch's stack, off it while PyTorch would compute otherwise under it.
            failed: is given the recorder's own errors in hooks; raises them or tells the user.
            observe: is shown each tensor for a trigger; see `Keeper`.
        """
        self._config = config
        self.emit = sink.emit
        self._sink = sink
        self._paths = paths
        self.function_mode = function_mode
        self.dispatch_mode = dispatch_mode
        self.failed = failed
        self.next_id: Callable[[], int] = itertools.count(1).__next__  # the id of a call that begins now
        self._counters: dict[tuple[str, str], Counter] = {}
        self._entries: dict[tuple[int, CallName], tuple[Counter, int]] = {}  # of calls other than ops: with Op ids
        self.op_entries: dict[int, OpEntry] = {}  # by the id of the op
        self._threads = threading.local()
        self._thread_count = itertools.count()
        self._lock = threading.RLock()
        self.all_threads: list[ThreadState] = []  # the one that entered the mode first
        self.start_ns = perf_counter_ns()
        self.seconds = dict.fromkeys(_SECONDS, 0.0)
        self.interner = Interner(sink.emit)
        self.coverage = Coverage()
        self.values = ValueTable(
            sink.emit,
            Keeper(config, sink, self.seconds, observe),
            self.interner,
            self.coverage,
            UnseenWrites(self.seconds) if config.dedup == "content" else None,
        )
        self.random_states = RandomStates(config.wants_tensor, sink, self.interner)
        self._callbacks = 0  # of futures, where their ops are not seen
        self.flights = Flights(self.values, sink.emit)
        self.filter = CallFilter(config)
        self.records_everything = self.filter.everything and config.level == "mix"
        self.links = GraphLinks(self)
        self.calls = 0
        self.computes = config.data != "structure"
        self.stacks = config.stacks
        self.keep_inputs = config.io in ("all", "input")
        self.keep_outputs = config.io in ("all", "output")
        self._main = self._new_thread()

    # -- threads and time

    def thread(self) -> ThreadState:
        """Return the state of the running thread."""
        try:
            state: ThreadState = self._threads.state
        except AttributeError:
            state = self._new_thread()
        return state

    def _new_thread(self) -> ThreadState:
        """Make the state of a thread that is new to the step.

        From the second thread on, all of the recorder's own code takes a lock. What another thread began without
        one is waited for: it is short, and waits for nothing that this thread does.
        """
        state = ThreadState(next(self._thread_count), _get_sequence_nr())
        with self._lock:
            others = list(self.all_threads)
            self.all_threads.append(state)
            for one in self.all_threads if others else ():
                one.lock = self._lock
        while others and others[0].busy:
            time.sleep(0)
        self._threads.state = state
        return state

    def now_ns(self) -> int:
        """Return nanoseconds since the step began."""
        return perf_counter_ns() - self.start_ns

    def main_parent(self) -> int:
        """Return the open call of the thread that entered the mode: the parent of what other threads do for it."""
        return self._main.stack[-1].visible if self._main.stack else 0

    # -- names and trees

    def number(self, call: OpenCall) -> int:
        """Return the n of a call's name, given at the first question."""
        if call.n < 0:
            call.n = self.counter(call.name).next()
        return call.n

    def counter(self, name: CallName) -> Counter:
        """Return what counts the calls of this prefix and api."""
        key = (name.prefix, name.api)
        counter = self._counters.get(key)
        if counter is None:
            counter = self._counters[key] = Counter()
        return counter

    def tree(self, item: Any, is_input: bool, keep: bool = True) -> Tree:
        """Return an argument or result as a tree, and keep the data of its tensors if the configuration asks for it."""
        return encode(item, self.values, keep and (self.keep_inputs if is_input else self.keep_outputs))

    def unknown_sum(self, like: torch.Tensor) -> Tree:
        """Return a value that stands for a sum of gradients which was not computed."""
        return [TREE_VALUE, self.values.unknown_sum(like)]

    # -- Python-level calls and modules

    def begin(
        self,
        kind: int,
        name: CallName,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        frame: FrameType,
        fqn: str | None = None,
    ) -> OpenCall:
        """Open an API or module call. `frame` is the program's calling frame; `fqn` is the path of a module."""
        thread = self.thread()
        with OwnCode(thread):
            top = self.top(thread) if thread.stack else None
            call = OpenCall(self.next_id(), kind, name, top)
            if fqn is not None:
                call.fqn, call.module = fqn, self.interner.text(fqn)
            self._place(call, top, frame, thread)
            self._note_arguments(call, args, kwargs)
            if kind == API:
                if name.op in _BACKWARD_APIS:
                    self.links.track_nodes((t.grad_fn for _, t in call.given or ()), top, thread)
                elif call.recorded and not self.values.finds_unseen_writes:
                    call.raw = args
            elif kind == MODULE and call.recorded:
                self._emit_begun(call, thread)
            call.sequence_start = _get_sequence_nr()
            thread.stack.append(call)
        call.start_ns = perf_counter_ns() - self.start_ns
        return call

    def _emit_begun(self, call: OpenCall, thread: ThreadState) -> None:
        """Tell that a module call has begun: should the program die in it, the dump says where."""
        n = self.number(call)
        op = self.interner.op(call.kind, call.name)
        record = Open(
            OPEN, call.id, call.parent_id, op, n, call.phase, thread.number, call.start_ns, call.stack, call.module
        )
        self.emit(record)

    def _note_arguments(self, call: OpenCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record arguments, and through which edges gradients will leave the call: an in-place op changes them."""
        keep = self.keep_inputs and call.recorded
        call.args, call.kwargs, call.given = encode_arguments(args, kwargs, self.values, keep)
        call.writes = CLOCK.writes
        call.input_edges = self.links.edges_of(call.given) if is_grad_enabled() else None

    def replace_arguments(self, call: OpenCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take these for the arguments of an open call: hooks have replaced those it was begun with."""
        with HookCode(self.thread(), self.failed):
            self._note_arguments(call, args, kwargs)

    def _place(self, call: OpenCall, top: OpenCall | None, frame: FrameType, thread: ThreadState) -> None:
        """Set phase, forward link, stack and visibility of a call that begins."""
        call.start_ns = perf_counter_ns() - self.start_ns
        node = running_node()
        if node is not None and thread.optimizer_depth and thread.optimizer_runs_in_backward():
            node = None
        if node is not None and (self.links.recomputes(node) or (top is not None and top.phase == RECOMPUTE)):
            call.phase = RECOMPUTE
        elif node is not None:
            call.forward = self.links.forward_of(node)
            call.phase = BACKWARD
        elif thread.optimizer_depth and not is_grad_enabled():
            call.phase = OPTIMIZER
        if not self.records_everything and not self.filter.records(call.kind, call.name, call.fqn):
            call.recorded = False
            call.visible = call.parent_id
            self.coverage.add("selection")
        if self.stacks:
            anchor = self.anchor(thread)
            call.stack = self.interner.stack(frame, anchor.frame if anchor else None, anchor.stack if anchor else 0)
        if call.kind == MODULE:
            call.frame = frame

    @staticmethod
    def anchor(thread: ThreadState) -> OpenCall | None:
        """Return the innermost open call whose frame, and so the stack up to it, is known."""
        for call in reversed(thread.stack):
            if call.frame is not None:
                return call
        return None

    def end(self, call: OpenCall, result: Any, error: BaseException | None) -> None:
        """Close an API or module call with its result or with the error it raised."""
        end_ns = perf_counter_ns() - self.start_ns
        thread = self.thread()
        with OwnCode(thread):
            call.raw = ()
            self._unwind(thread, call)
            if self.flights.pending and error is None and call.kind == API and self.flights.of_call(call):
                self.number(call)
                self._end_landed(thread, call, result, end_ns)
            else:
                self._end_now(thread, call, result, end_ns, error)

    def _end_landed(self, thread: ThreadState, call: OpenCall, result: Any, end_ns: int) -> None:
        """Close a call when the collectives that it started have ended."""
        flights = self.flights.of_call(call)
        if flights:
            flights[-1].finishers.append(lambda: self._end_landed(self.thread(), call, result, end_ns))
        else:
            self._end_now(thread, call, result, end_ns, None)

    def _end_now(
        self, thread: ThreadState, call: OpenCall, result: Any, end_ns: int, error: BaseException | None
    ) -> None:
        keep = self.keep_outputs and call.recorded
        if type(result) is _TENSOR:
            last = thread.last_output
            if last is not None and last[0] == id(result) and call.id < thread.last_call and call.recorded:
                call.outputs = last[1]  # what its last op returned, and nothing was run since
            else:
                call.outputs = [TREE_VALUE, self.values.value_of(result, keep)]
            has_outputs = True
            if error is None and is_grad_enabled():
                self.links.track(call, (((), result),), thread)
        else:
            call.outputs = encode(result, self.values, keep)
            outputs = list(tensors_in(result))
            has_outputs = bool(outputs)
            if has_outputs and error is None and is_grad_enabled():
                self.links.track(call, outputs, thread)
        written = self._written(call, keep)
        call.given = call.frame = None
        if call.kind == API and not has_outputs and error is None and self.next_id() == call.id + 1:
            if not call.recorded:
                self.coverage.add("selection", count=-1)
            return  # it ran no op and made no tensor: a question, not a computation
        if call.recorded:
            self._emit_open(thread, call, end_ns, call.outputs, written, text_of(error))

    def _written(self, call: OpenCall, keep: bool) -> list[Tree] | None:
        """Return [name, tree, ...] of the arguments that were written while the call ran."""
        values = self.values
        if CLOCK.writes == call.writes and not values.finds_unseen_writes:
            return None
        written: list[Tree] = []
        for path, tensor in call.given or ():
            if values.written_since(tensor, call.writes):
                written += (".".join(map(str, path)), [TREE_VALUE, values.value_of(tensor, keep)])
        return written or None

    def unwind(self, thread: ThreadState, call: OpenCall) -> None:
        """Take `call` off the stack without a record, and end what was left above it."""
        if thread.stack and thread.stack[-1] is call:
            thread.stack.pop()
        elif call in thread.stack:
            with HookCode(thread, self.failed):
                self._unwind(thread, call)

    def _unwind(self, thread: ThreadState, call: OpenCall) -> None:
        """Take `call` off the stack, with calls above it that ended without our being told (they raised)."""
        stack = thread.stack
        if stack and stack[-1] is call:
            stack.pop()
            return
        if call not in stack:
            return
        while (top := stack.pop()) is not call:
            top.given = top.frame = None
            if top.recorded:
                self._emit_open(thread, top, self.now_ns(), None, None, "ended by an error in or around it")

    def end_open(self, thread: ThreadState, call: OpenCall, end_ns: int, outputs: Tree) -> None:
        """Take a call off the stack and record it."""
        self._unwind(thread, call)
        if call.recorded:
            self._emit_open(thread, call, end_ns, outputs, None, None)

    def _emit_open(
        self,
        thread: ThreadState,
        call: OpenCall,
        end_ns: int,
        outputs: Tree,
        written: list[Tree] | None,
        error: str | None,
    ) -> None:
        key = (call.kind, call.name)
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = self.counter(call.name), self.interner.op(*key)
        n = call.n
        if n < 0:
            n = call.n = entry[0].next()
        self.count_call()
        self.emit(
            _new(
                Call,
                (
                    CALL,
                    call.id,
                    call.parent_id,
                    entry[1],
                    n,
                    0,
                    call.phase,
                    thread.number,
                    call.start_ns,
                    end_ns - call.start_ns,
                    call.sequence_nr,
                    call.stack,
                    call.module,
                    call.forward,
                    call.args,
                    call.kwargs,
                    outputs,
                    written,
                    error,
                ),
            )
        )

    def count_call(self) -> None:
        """Count a call whose record comes next; wait where too many records wait to be written."""
        self.calls += 1
        if not self.calls & _CALLS_PER_PAUSE:
            self._sink.wait_for_room()

    def emit_call(self, *fields: Any) -> None:
        """Emit a Call record of these fields."""
        self.count_call()
        self.emit(Call(CALL, *fields))

    def top(self, thread: ThreadState) -> OpenCall | None:
        """Return the innermost open call, after dropping nodes that raised: no node runs outside a backward pass."""
        stack = thread.stack
        if stack and stack[-1].kind == NODE and running_node() is None:
            first = next(i for i, c in enumerate(stack) if c.kind == NODE)
            self._unwind(thread, stack[first])
        return stack[-1] if stack else None

    # -- autograd

    def saved(self, call: int, node: str, tensors: list[torch.Tensor]) -> None:
        """Record the tensors that the node of a forward call saved for its backward; Python numbers are left out."""
        values = [self.values.value_of(t, False) for t in tensors if t.shape or self.values.storages.knows(t)]
        if values:
            self.emit(Saved(SAVED, call, node, values))

    def gradients(self, leaves: dict[int, int]) -> None:
        """Record the gradients of parameters that a backward pass has accumulated into."""
        found = [(named, call) for leaf, call in leaves.items() if (named := self._paths.parameter(leaf)) is not None]
        found += [(named, 0) for named in self._paths.sharded() if id(named[1]) not in leaves]
        gradients = [(name, gradient, call) for (name, p), call in found if (gradient := p.grad) is not None]
        if self.flights.pending:
            self.flights.backward_ended(gradient for _, gradient, _ in gradients)
        for name, gradient, call in gradients:
            self.emit(Gradient(GRADIENT, name, self.values.value_of(gradient, self.keep_outputs), call))

    def begin_with(self, flights: list[Flight]) -> None:
        """Take over the collectives that the step before has left under way."""
        if flights:
            with OwnCode(self.thread()):
                self.flights.adopt(flights)

    def callback_ran(self) -> None:
        """A callback of a future has run, perhaps on a thread where nothing is seen: it may have written anything."""
        if torch._C._len_torch_dispatch_stack() == 0:
            self._callbacks += 1
            self.resume()

    def resume(self) -> None:
        """Trust no memory seen so far: the program ran unobserved."""
        self.values.storages.invalidate()
        self.flights.hide_again()

    def close(self) -> None:
        """End the step: finish what is open and let go of everything."""
        thread = self.thread()
        with OwnCode(thread):
            self.links.close()
            if thread.stack:
                first = thread.stack[0]
                self._unwind(thread, first)
            self.flights.close()
            if self._callbacks:
                message = "callbacks of futures ran on threads of torch's own: the ops in them were not seen"
                self.emit(Note(NOTE, "unseen", message, self._callbacks))
            self._tell_coverage()
            self.values.clear()
        self.seconds["capture"] += sum(one.own_ns for one in self.all_threads) / 1e9

    def _tell_coverage(self) -> None:
        """Emit what was not seen, as notes."""
        for (prefix, api), counter in self._counters.items():
            if prefix == "Custom" and not api.startswith("_record_function"):
                self.coverage.add("custom_ops", api, counter.n)
        self.coverage.add("selection", self.filter.text, 0)
        for note in self.coverage.notes():
            self.emit(note)


def text_of(error: BaseException | None) -> str | None:
    """Return what a call's record says of the error that it raised."""
    if type(error).__name__ == "_StopRecomputationError":
        return EARLY_STOP
    return None if error is None else f"{type(error).__name__}: {error}"
