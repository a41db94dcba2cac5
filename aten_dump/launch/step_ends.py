"""When a step ends: where an optimizer's step returns.

Theory of operation
    ``torch.optim.Optimizer`` wraps the ``step`` of each class once, when the first of that class is made, in a
    function that runs the hooks (`Optimizer.profile_hook_step`). Installed before the first optimizer is made, our
    wrapper goes around that one: hooks would run inside, before the step has returned. So gradients that are
    accumulated over several batches make one step, and so does a wrapper that calls the optimizer it wraps
    (accelerate's, Lightning's). A step that a GradScaler has skipped, as gradients were not finite, counts too.

    Where the program has several optimizers, the end waits for the next call of a module: optimizers that step one
    after the other share a step, and the two parts of a GAN's iteration, each with a forward of its own, are two.
    So it does where a compiled function calls the optimizer (``torch.compile(optimizer.step)``): that call has not
    returned yet. Our wrapper is not compiled with it. Torch breaks the graph of an optimizer's step anyway.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from ..capture.intercept.next_module_call import NextModuleCall
from ..capture.torch_internals.compiler import run_as_written, set_compiler
from ..capture.torch_internals.engine import current_graph_task_id
from ..capture.torch_internals.patches import Patch


class StepEnds:
    """Calls a function where a step of the program ends.

    Args:
        is_alone: returns True if the program has no optimizer but this one, which has just stepped.
        end: called where a step ends, in the program's main thread.
    """

    def __init__(self, is_alone: Callable[[Optimizer], bool], end: Callable[[], None]) -> None:
        self._is_alone = is_alone
        self._end = end
        self._thread = threading.main_thread().ident
        self._depth = 0  # of steps in each other: a wrapper's, a derived class's
        self._returned = 0  # steps so far, for a scaler to see whether it skipped one
        self._next_module: NextModuleCall | None = None  # that the end waits for
        self._patches = [
            Patch(Optimizer, "profile_hook_step", staticmethod(self._wrapping(Optimizer.profile_hook_step))),
            Patch(torch.amp.GradScaler, "step", self._scaler_step(torch.amp.GradScaler.step)),
        ]

    def stop(self) -> None:
        """Report no more; classes that are wrapped already pass everything through."""
        self._end = _nothing
        self._wait_no_more()
        for patch in self._patches:
            patch.undo()

    def _wrapping(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def profile_hook_step(function: Any) -> Any:
            return self._around(original(function))

        return profile_hook_step

    def _around(self, hooked: Any) -> Any:
        @functools.wraps(hooked)
        def step(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self._thread:
                return hooked(*args, **kwargs)
            self._depth += 1
            try:
                result = hooked(*args, **kwargs)
            finally:
                self._depth -= 1
            if self._depth == 0:
                compiler = set_compiler(None)
                try:
                    self._stepped(args[0], is_compiled=callable(compiler))
                finally:
                    set_compiler(compiler)
            return result

        run_as_written(step)
        return step

    def _scaler_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def step(scaler: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            before = self._returned
            result = original(scaler, optimizer, *args, **kwargs)
            if (
                self._returned == before and threading.get_ident() == self._thread
            ):  # it has skipped the optimizer's step
                self._stepped(optimizer)
            return result

        return step

    def _stepped(self, optimizer: Optimizer, *, is_compiled: bool = False) -> None:
        self._returned += 1
        in_backward = current_graph_task_id() != -1  # an optimizer of each parameter, as it gets its gradient
        if self._is_alone(optimizer) and not in_backward and not is_compiled:
            self._wait_no_more()
            self._end()
        elif self._next_module is None:
            self._next_module = NextModuleCall(self._at_next_module)

    def _at_next_module(self) -> None:
        self._next_module = None
        self._end()

    def _wait_no_more(self) -> None:
        call, self._next_module = self._next_module, None
        if call is not None:
            call.cancel()


def _nothing() -> None:
    """End nothing."""
