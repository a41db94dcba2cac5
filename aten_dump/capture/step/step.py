"""One recorded step: threads, ids, clock, the stacks of open calls, and the records that go out.

Theory of operation
    A thread has a stack of open calls (modules, Python-level calls, autograd nodes). An aten op, seen at dispatch, is
    a leaf under the top of that stack. A step lives as long as the program's: every table, id and hook that hangs on
    it ends with it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from time import perf_counter_ns
from types import FrameType
from typing import Any, Final, Protocol

from ...config import DumpConfig
from ...store.records import CALL, CALL_KINDS, MODE, Mode, Tree
from ...store.sink import Sink
from ..collector import HIDES, hide, note_long_step
from ..naming.call_name import MODULE, NODE, REMARKS, SCOPE, CallName
from ..naming.interned_tables import Interner
from ..naming.selection import Selection
from ..torch_internals.engine import current_graph_task_id, is_grad_enabled, running_node
from ..torch_internals.module_hooks import CALLS_FORWARD
from ..unseen import Coverage
from .call_counters import CallCounters, Counter
from .open_calls import OpenCall
from .threads import Threads, ThreadState

EARLY_STOP: Final = "early stop, no failure: torch.utils.checkpoint had recomputed all that the backward needs"
ENDED_UNTOLD: Final = "ended by an error in or around it"
CUT_OFF: Final = "cut off, no failure: the step or the recording ended before it did"
CALLS_PER_PAUSE: Final = 1023  # a power of two less one


class Failures(Protocol):
    """What takes the recorder's failures."""

    def failed(self, error: Exception) -> None:
        """The recorder failed: raise, or stop recording."""

    def failed_quietly(self, error: Exception) -> None:
        """The recorder failed while an error of the program is on its way: stop recording and warn, never raise."""


class CallEntry:
    """What a step knows of one thing that is called."""

    __slots__ = ("counter", "name", "op")

    def __init__(self, name: CallName, counter: Counter, op: int) -> None:
        self.name = name
        self.counter = counter
        self.op = op  # Op id


class CallEntries:
    """What a step knows of all that is called by calls of one kind."""

    __slots__ = ("_by_name", "known")

    def __init__(self) -> None:
        self._by_name: dict[CallName, CallEntry] = {}
        self.known: dict[int, CallEntry] = {}  # by the id of the name, which the entry keeps: hashing it takes longer

    def find(self, name: CallName) -> CallEntry | None:
        """Return the entry of a name that may be equal to one that was seen; None of a new one."""
        return self._by_name.get(name)

    def add(self, entry: CallEntry) -> None:
        """Take in a new one."""
        self._by_name[entry.name] = self.known[id(entry.name)] = entry


class Step:
    """What all parts of the recorder share while one step is recorded."""

    def __init__(self, config: DumpConfig, sink: Sink, failures: Failures) -> None:
        self.emit = sink.emit
        self.sink = sink
        self.failed: Callable[[Exception], None] = failures.failed
        self.failed_quietly: Callable[[Exception], None] = failures.failed_quietly
        self.is_on = True  # False while nothing is recorded: paused, or the recorder has failed
        self.next_id: Callable[[], int] = itertools.count(1).__next__  # the id of a call that begins now
        self.threads = Threads()
        self.threads.doubts = config.compile != "kernels"
        self.here = self.threads.here
        self.counters = CallCounters()
        self._entries = [CallEntries() for _ in CALL_KINDS]
        self.start_ns = perf_counter_ns()
        self.interner = Interner(sink.emit)
        self.coverage = Coverage()
        self.selection = Selection(config)
        self.calls = 0
        note_long_step(False)

    def failed_beside(self, error: BaseException | None, own: Exception) -> None:
        """The recorder's own code has failed with `own`; `error` of the program's, if there is one, goes first."""
        if error is None:
            self.failed(own)
        else:
            self.failed_quietly(own)

    # -- clock, numbers, places

    def now_ns(self) -> int:
        """Return nanoseconds since the step began."""
        return perf_counter_ns() - self.start_ns

    def main_parent(self) -> int:
        """Return the open call of the thread that entered the mode: the parent of what other threads do for it."""
        stack = self.threads.main.stack
        return stack[-1].visible if stack else 0

    def numbered(self, call: OpenCall) -> CallEntry:
        """Return the step's entry of what a call other than an op calls; the call has its n from the first time on."""
        entries, name = self._entries[call.kind], call.name
        entry = entries.known.get(id(name)) or entries.find(name)
        if entry is None:
            entry = CallEntry(name, self.counters.of(name), self.interner.op(call.kind, name))
            entries.add(entry)
            if HIDES:
                hide(entry, entry.counter, name)
        if call.n < 0:
            counter = entry.counter
            call.n = counter.n
            counter.n = call.n + 1
        return entry

    def stack_of(self, frame: FrameType | None, thread: ThreadState) -> int:
        """Return the id of the stack of `frame`; that of the call around it where there is none of the program's."""
        for call in reversed(thread.stack):
            if call.frame is not None:  # the stack up to there is known
                return call.stack if frame is None else self._stack_in(call, frame)
        return self.interner.stack(frame, None, 0)

    def _stack_in(self, module: OpenCall, frame: FrameType) -> int:
        """Return the id of the stack of a frame inside a module call.

        Most are of `forward` itself. The frame around it is torch's, and as long as the call holds that, it is the same
        when it is the same object; so are those around it, which wait for it.
        """
        around = frame.f_back
        if around is None or around.f_code is not CALLS_FORWARD or around is module.frame:
            return self.interner.stack(frame, module.frame, module.stack)
        inner = module.inner
        if inner is None or inner[0] is not around or inner[1] != around.f_lasti:
            stack = self.interner.stack(around, module.frame, module.stack)
            inner = module.inner = around, around.f_lasti, stack
        return self.interner.stack_inside(inner[2], frame)

    def leave_out(self, call: OpenCall) -> None:
        """Record an open call no further if the configuration leaves it out; what is in it is its parent's."""
        if call.name.prefix in REMARKS:
            return
        if not self.selection.takes_all and not self.selection.records(
            call.kind, call.name, call.fqn, call.phase, call.forward
        ):
            call.recorded = False
            call.visible = call.parent_id
            self.coverage.add("selection")

    # -- stacks of open calls

    def top(self, thread: ThreadState) -> OpenCall | None:
        """Return the innermost open call, after ending nodes whose pass has failed: outside of a pass no node runs, and
        those of passes that have begun within the one under way have greater numbers.
        """
        stack = thread.stack
        if stack and stack[-1].kind == NODE:
            if running_node() is None:
                first = next(i for i, c in enumerate(stack) if c.kind == NODE)
                while len(stack) > first:
                    self._end_unreported(thread, stack.pop())
            else:
                self.end_nodes(thread, current_graph_task_id() + 1)
        return stack[-1] if stack else None

    def end_nodes(self, thread: ThreadState, least: int) -> None:
        """End nodes that are innermost and run in the backward pass `least` or a later one: nobody has reported it."""
        stack = thread.stack
        while stack and stack[-1].kind == NODE and stack[-1].graph_task >= least:
            self._end_unreported(thread, stack.pop())

    def drop(self, thread: ThreadState, call: OpenCall) -> None:
        """Take `call` off the stack without a record, and end what was left above it."""
        if thread.stack and thread.stack[-1] is call:
            thread.stack.pop()
        elif call in thread.stack:
            try:
                with thread.own:
                    self.take_off(thread, call)
            except Exception as error:  # noqa: BLE001 - `failed` raises or reports it
                self.failed(error)

    def take_off(self, thread: ThreadState, call: OpenCall) -> None:
        """Take `call` off the stack, with calls above it whose end we did not see (they raised)."""
        stack = thread.stack
        if stack and stack[-1] is call:
            stack.pop()
            return
        if call not in stack:
            return
        while (top := stack.pop()) is not call:
            self._end_unreported(thread, top)

    def cut_off(self, thread: ThreadState) -> None:
        """Record what is open on a thread, as the step ends; of a module the record of its begin says that it was."""
        self.top(thread)  # nodes whose pass has failed have ended
        while thread.stack:
            call = thread.stack.pop()
            if call.kind == MODULE:
                call.let_go()
            else:
                self._end_unreported(thread, call, CUT_OFF)

    def _end_unreported(self, thread: ThreadState, call: OpenCall, why: str = ENDED_UNTOLD) -> None:
        """Record a call that was taken off the stack, and whose end we did not see.

        A scope has not failed then: we always see an error that leaves it.
        """
        call.let_go()
        if call.recorded:
            call.end_ns = self.now_ns()
            self.emit_open(thread, call, None, None, None if call.name.prefix == SCOPE else why)
            if call.kind == NODE:
                call.recorded = False  # should its end be reported all the same

    # -- records

    def emit_open(
        self, thread: ThreadState, call: OpenCall, outputs: Tree, written: list[Tree] | None, error: str | None
    ) -> None:
        """Record a call that has ended, at `call.end_ns`."""
        entry = self.numbered(call)
        self.calls = calls = self.calls + 1
        if not calls & CALLS_PER_PAUSE:
            self.pause()
        record: tuple[Any, ...] = (
            CALL,
            call.id,
            call.parent_id,
            entry.op,
            call.n,
            0,
            call.phase,
            thread.number,
            call.start_ns,
            call.end_ns - call.start_ns,
            call.sequence_nr,
            call.stack,
            call.module,
            call.forward,
            call.args,
            call.kwargs,
            outputs,
        )
        if written is not None or error is not None:
            record = (*record, written, error)
        self.emit(record)

    def emit_call(self, record: tuple[Any, ...]) -> None:
        """Emit a Call record."""
        self.calls = calls = self.calls + 1
        if not calls & CALLS_PER_PAUSE:
            self.pause()
        self.emit(record)

    def report_mode(self, thread: ThreadState, call: int) -> None:
        """Record how a thread runs from a call on; asked where its grad mode is not `thread.grad`."""
        try:
            with thread.own:
                thread.grad = is_grad_enabled()
                self.emit(Mode(MODE, thread.number, call, thread.grad, thread.training))
        except Exception as error:  # noqa: BLE001 - `failed` raises or reports it
            self.failed(error)

    def pause(self) -> None:
        """Wait where too many records wait to be written: asked each time that `CALLS_PER_PAUSE` calls were counted."""
        note_long_step(True)
        self.sink.wait_for_room()

    def report_coverage(self) -> None:
        """Emit what was not seen, as notes."""
        for op, count in self.counters.custom_ops():
            self.coverage.add("custom_ops", op, count)
        self.coverage.add("selection", self.selection.text, 0)
        for note in self.coverage.notes():
            self.emit(note)


def text_of(error: BaseException) -> str:
    """Return what is said of an error that the program raised: of its type alone, where its own text raises another."""
    kind = type(error).__name__
    if kind == "_StopRecomputationError":
        return EARLY_STOP
    try:
        return f"{kind}: {error}"
    except Exception:  # noqa: BLE001 - the program's `__str__` has failed, and must not hide what the program raised
        return kind
