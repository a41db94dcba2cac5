"""The recorder's own code on a thread of the program."""

from __future__ import annotations

from contextlib import AbstractContextManager
from time import perf_counter_ns
from types import TracebackType

from ..torch_internals.quiet import without_torch_functions


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
