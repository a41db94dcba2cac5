"""Optimizers' steps: what runs in them is of the phase `optimizer`, and their hyperparameters are recorded."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ..interrupts import runs_program
from ..recorder import Watch
from ..step.threads import ThreadState
from ..torch_internals.engine import current_graph_task_id


class OptimizerSteps:
    """Hooks for all optimizers while installed."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._hooks: list[Any] = []

    def install(self) -> None:
        """Watch every optimizer's steps."""
        self._hooks = [
            register_optimizer_step_pre_hook(self._begins),
            register_optimizer_step_post_hook(self._has_ended),
        ]

    def remove(self) -> None:
        """Watch them no more."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _begins(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        recorder = self._watch.recorder
        if recorder is None:
            return None
        thread = recorder.step.here.state
        thread.optimizer_depth += 1
        thread.optimizer_pass = current_graph_task_id()
        recorder.optimizers.note(optimizer, thread)
        if callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": _outside_of_step(kwargs["closure"], thread)}
        if len(args) > 1 and callable(args[1]):
            return (args[0], _outside_of_step(args[1], thread), *args[2:]), kwargs
        return None

    def _has_ended(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        recorder = self._watch.recorder
        if recorder is not None:
            thread = recorder.step.here.state
            thread.optimizer_depth = max(0, thread.optimizer_depth - 1)


def _outside_of_step(closure: Callable[[], Any], thread: ThreadState) -> Callable[[], Any]:
    """Return a closure given to an optimizer's step as one whose ops are those of the program, not of the step."""

    @functools.wraps(closure)
    @runs_program
    def outside() -> Any:
        depth, thread.optimizer_depth = thread.optimizer_depth, 0
        try:
            return closure()
        finally:
            thread.optimizer_depth = depth

    return outside
