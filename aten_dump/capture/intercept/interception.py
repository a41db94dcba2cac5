"""All that stands between the program and torch while a step is recorded: put there, and taken away, as one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from ..torch_internals.mode_stack import (
    Modes,
    function_mode_position,
    put_dispatch_mode_back,
    put_function_mode_back,
    take_dispatch_mode_off,
    take_function_mode_off,
)


class Interceptor(Protocol):
    """Something that sees the program while it is installed."""

    def install(self) -> None:
        """Begin to see."""

    def remove(self) -> None:
        """Leave torch as it was."""


class Interception:
    """What is installed while a step is recorded.

    Args:
        modes: pushed onto this thread's stacks.
        traced: what a compiler would trace into, beside the function mode.
        others: what it would not.
        lasting: what stays while the step is paused.
    """

    def __init__(
        self, modes: Modes, traced: Sequence[Interceptor], others: Sequence[Interceptor], lasting: Sequence[Interceptor]
    ) -> None:
        self.modes = modes
        self._traced = traced
        self._others = others
        self._lasting = lasting
        self._is_installed = False

    def install(self) -> None:
        """Install all interceptors. No-op if already installed."""
        if self._is_installed:
            return
        self._is_installed = True
        for one in (*self._traced, *self._others, *self._lasting):
            one.install()
        self.modes.push()

    def remove(self) -> None:
        """Take everything away but what lasts. The modes may be there again: what a hook in a backward pass took off,
        autograd's engine has put back after it.
        """
        self.modes.take_off()
        if not self._is_installed:
            return
        self._is_installed = False
        for one in (*self._traced, *self._others):
            one.remove()

    def remove_all(self) -> None:
        """Leave torch as it was."""
        self.remove()
        for one in self._lasting:
            one.remove()

    def step_aside(self, ops_too: bool = False) -> Callable[[], None]:
        """Take everything away, the op mode only where asked to, for what is compiled; return what puts it back."""
        position = take_function_mode_off(self.modes.function)
        op_position = take_dispatch_mode_off(self.modes.dispatch) if ops_too else None
        for one in self._traced:
            one.remove()

        def back() -> None:
            for one in self._traced:
                one.install()
            if position is not None:
                put_function_mode_back(self.modes.function, position)
            if op_position is not None:
                put_dispatch_mode_back(self.modes.dispatch, op_position)

        return back

    @contextlib.contextmanager
    def on_this_thread(self) -> Iterator[None]:
        """Put the modes on this thread's stacks too, inside this block."""
        if function_mode_position(self.modes.function) is not None:
            yield
            return
        self.modes.push()
        try:
            yield
        finally:
            self.modes.take_off()
