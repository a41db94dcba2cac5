"""Contexts for the recorder's own code on the program's threads."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from time import perf_counter_ns
from types import TracebackType
from typing import Final

import torch

from .threads import ThreadState

_no_functions: Final[Callable[[], AbstractContextManager[None]]] = torch._C.DisableTorchFunction


class OwnCode:
    """While entered, what the thread calls is the recorder's own: not recorded, and unseen by function modes.

    Reading ``tensor.shape`` is a call to a TorchFunctionMode: without this the user's modes would see every look that
    the recorder takes, and its own mode would be asked as well.
    """

    __slots__ = ("_functions", "_lock", "_start_ns", "_state")

    def __init__(self, thread: ThreadState) -> None:
        self._state = thread

    def __enter__(self) -> None:
        self._start_ns = perf_counter_ns()
        self._state.busy = True  # before the lock is looked at: see `Threads`
        self._lock = self._state.lock
        if self._lock is not None:
            self._lock.__enter__()
        self._functions = _no_functions()
        self._functions.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._functions.__exit__(kind, error, trace)
        self._state.busy = False
        self._state.own_ns += perf_counter_ns() - self._start_ns
        if self._lock is not None:
            self._lock.__exit__(None, None, None)
        return None


class HookCode(OwnCode):
    """`OwnCode` that the program calls as a hook: a failure goes to `failed`, which raises it or tells the user."""

    __slots__ = ("_failed",)

    def __init__(self, thread: ThreadState, failed: Callable[[Exception], None]) -> None:
        super().__init__(thread)
        self._failed = failed

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        super().__exit__(kind, error, trace)
        if isinstance(error, Exception):
            self._failed(error)
            return True
        return None
