"""Optimizers' steps: what runs in them is of the phase `optimizer`."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ..recorder import Watch


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

    def _begins(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        recorder = self._watch.recorder
        if recorder is not None:
            thread = recorder.step.thread()
            thread.optimizer_depth += 1
            thread.optimizer_pass = torch._C._current_graph_task_id()

    def _has_ended(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        recorder = self._watch.recorder
        if recorder is not None:
            thread = recorder.step.thread()
            thread.optimizer_depth = max(0, thread.optimizer_depth - 1)
