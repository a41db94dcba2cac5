"""What the recorder knows of each thread of the program."""

from __future__ import annotations

import itertools
import threading
import time
from contextlib import AbstractContextManager
from time import perf_counter_ns
from types import FrameType, TracebackType
from typing import Any, Final

from ...store.records import Tree
from ..torch_internals.engine import current_graph_task_id, frame_of_thread, get_sequence_nr
from ..torch_internals.quiet import without_torch_functions
from .open_calls import OpenCall
from .thread_local import ThreadLocal

get_ident: Final = threading.get_ident


class ThreadState:
    """What the recorder knows of one thread of the program."""

    __slots__ = (
        "ahead",
        "aside",
        "claimed",
        "compiled_nodes",
        "delegated",
        "first",
        "grad",
        "last_call",
        "last_clone",
        "last_run",
        "last_run_pass",
        "made",
        "made_around",
        "made_before",
        "noted",
        "number",
        "optimizer_depth",
        "optimizer_pass",
        "output",
        "output_call",
        "output_id",
        "own",
        "stack",
        "training",
        "unpacked",
    )

    def __init__(self, number: int, claimed: int) -> None:
        self.number = number
        self.stack: list[OpenCall] = []
        self.own = OwnCode()  # entered where the recorder works on this thread
        self.aside = 0  # compiled calls, and backwards of such, that run compiled
        self.compiled_nodes = 0  # runs of the backward of compiled code under way
        self.delegated: Any = None  # op that was handed on to a tensor subclass and is about to come back
        self.first = claimed  # autograd sequence number of this thread when it was first seen in the step
        self.claimed = claimed  # autograd sequence numbers below this were given to calls
        self.made: dict[int, int] = {}  # autograd sequence number -> the aten call that made the node
        self.made_before: dict[int, int] = {}  # the same for nodes made after a call's kernel: the call before
        self.made_around: dict[int, int] = {}  # nodes made before their kernel ran -> the first call in between
        self.noted = claimed  # numbers below this are in `made` or `made_around`
        self.last_call = 0  # the last aten call
        self.last_clone = 0  # the last that was a clone or a detach, of which autograd runs some ahead of ops in place
        self.ahead: list[int] = []  # numbers that it, and such calls right before it, claimed beside their own nodes'
        # The last aten call that returned one tensor, that tensor's id() and tree; see `output_of`.
        self.output_call = 0
        self.output_id = 0
        self.output: Tree = None
        self.last_run: Any = None  # tag of the autograd node that ran last, while ops may come under it
        self.last_run_pass = -1  # number of the backward pass that it ran in
        self.unpacked = 0  # id() of a saved tensor that autograd is about to detach; see `SavedPacks`
        self.grad: bool | None = None  # grad mode, as the last `Mode` record has it; None: the next call shows it
        self.training: bool | None = None  # of the innermost module
        self.optimizer_depth = 0
        self.optimizer_pass = -1  # the backward pass that the optimizer's step began in, -1 for none

    def set_training(self, training: bool | None) -> None:
        """Take it that the innermost module is another one now, in training or in evaluation."""
        if training is not self.training:
            self.training = training
            self.grad = None

    def optimizer_runs_in_backward(self) -> bool:
        """Return True if an optimizer's step runs in a hook of this backward pass; not a pass run by a closure."""
        return self.optimizer_pass == current_graph_task_id()


def forget_last_run(thread: ThreadState) -> None:
    """Let go of the node that ran last: its gradients have been added up, and no op comes under it."""
    last = thread.last_run
    if last is not None:
        if last.thread is None:  # or another run of it is under way
            last.call = None
        thread.last_run = None


def output_of(thread: ThreadState, result: Any, call: int) -> Tree:
    """Return the tree of what a call returned, if its last op did and nothing was run since; None if not.

    By its id() alone: if that was let go of, what no op made may lie in its place.
    """
    if thread.output_call == thread.last_call and thread.output_id == id(result) and call < thread.last_call:
        return thread.output
    return None


class Threads:
    """The threads of one step. From the second on, all of the recorder's own code takes a lock."""

    __slots__ = ("_count", "_lock", "_main_ident", "all", "doubts", "here", "main")

    def __init__(self) -> None:
        self._count = itertools.count()
        self._lock = threading.RLock()
        self.all: list[ThreadState] = []
        self.doubts = True  # compiled code runs kernels that are not seen
        self.here: ThreadLocal[ThreadState] = ThreadLocal(self._new_state)  # its `state` is the running thread's
        self.main = self.here.state  # of the thread that entered the mode
        self._main_ident: Any = get_ident()

    def running(self) -> ThreadState:
        """Return `here.state`, for less on the thread that entered the mode."""
        return self.main if get_ident() == self._main_ident else self.here.state

    def main_frame(self) -> FrameType | None:
        """Return the innermost frame of the thread that entered the mode."""
        return frame_of_thread(self._main_ident)

    def _new_state(self) -> ThreadState:
        """Make the state of a thread that is new to the step.

        What another thread began without the lock is waited for: it is short, and waits for nothing that this thread
        does.
        """
        state = ThreadState(next(self._count), get_sequence_nr())
        with self._lock:
            others = list(self.all)
            self.all.append(state)
            for one in self.all if others else ():
                one.own.lock = self._lock
        while others and others[0].own.depth:
            time.sleep(0)
        return state


class OwnCode:
    """While entered, what its thread calls is the recorder's own: not recorded, and unseen by function modes.

    Reading ``tensor.shape`` is a call to a TorchFunctionMode: without this the user's modes would see every look that
    the recorder takes, and its own mode would be asked as well. A thread has one, and may enter it again within.
    """

    __slots__ = ("_enter_functions", "_entered_lock", "_leave_functions", "_start_ns", "depth", "left_ns", "lock", "ns")

    def __init__(self) -> None:
        self.depth = 0  # how often it is entered; not 0 in the recorder's own code
        self.ns = 0  # time spent in it
        self.lock: AbstractContextManager[bool] | None = None  # guards the recorder's tables once threads share them
        self._entered_lock: AbstractContextManager[bool] | None = None
        functions = without_torch_functions()
        self._enter_functions = functions.__enter__
        self._leave_functions = functions.__exit__
        self._start_ns = 0  # when it was entered
        self.left_ns = 0  # what the clock said when it was last left

    def enter(self, now_ns: int) -> None:
        """Enter, where a ``with`` costs too much: the clock has just said so. `leave` belongs in a ``finally``."""
        self.depth += 1  # before the lock is looked at: see `Threads`
        if self.depth > 1:
            return
        self._start_ns = now_ns
        if self.lock is not None:
            self._entered_lock = self.lock
            self._entered_lock.__enter__()
        self._enter_functions()

    def leave(self) -> None:
        """Leave what was entered."""
        self.depth -= 1
        if self.depth:
            return
        self._leave_functions(None, None, None)
        self.left_ns = now_ns = perf_counter_ns()
        self.ns += now_ns - self._start_ns
        if self._entered_lock is not None:
            lock, self._entered_lock = self._entered_lock, None
            lock.__exit__(None, None, None)

    def __enter__(self) -> None:
        self.enter(perf_counter_ns())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()
