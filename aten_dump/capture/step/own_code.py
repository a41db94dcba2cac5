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

    __slots__ = ("_entered_lock", "_functions", "_start_ns", "depth", "left_ns", "lock", "ns")

    def __init__(self) -> None:
        self.depth = 0  # how often it is entered; not 0 in the recorder's own code
        self.ns = 0  # time spent in it
        self.lock: AbstractContextManager[bool] | None = None  # guards the recorder's tables once threads share them
        self._entered_lock: AbstractContextManager[bool] | None = None
        self._functions = without_torch_functions()
        self._start_ns = 0  # when it was entered, or is about to be; 0 where the clock is still to be asked
        self.left_ns = 0  # what the clock said when it was last left

    def since(self, now_ns: int) -> OwnCode:
        """Return itself, to be entered at once: the clock has just said so."""
        if not self.depth:
            self._start_ns = now_ns
        return self

    def __enter__(self) -> None:
        self.depth += 1  # before the lock is looked at: see `Threads`
        if self.depth > 1:
            return
        if not self._start_ns:
            self._start_ns = perf_counter_ns()
        self._entered_lock = self.lock
        if self._entered_lock is not None:
            self._entered_lock.__enter__()
        self._functions.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.depth -= 1
        if self.depth:
            return
        self._functions.__exit__(kind, error, trace)
        self.left_ns = now_ns = perf_counter_ns()
        self.ns += now_ns - self._start_ns
        self._start_ns = 0
        if self._entered_lock is not None:
            self._entered_lock.__exit__(None, None, None)
