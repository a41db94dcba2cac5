"""``DumpCallback`` for the Trainer of transformers."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from ..config import DumpConfig
from .training_steps import TrainingSteps


class DumpCallback(TrainerCallback):  # type: ignore[misc,unused-ignore]
    """Records the training of a Trainer: a step for each step of its optimizer.

    Args:
        config: what to record; steps are counted from 0 where training begins or goes on.
        evaluation: record evaluation too, in the step that follows it.

    Example:
        >>> import transformers
        >>> from aten_dump.integrations.transformers_callback import DumpCallback
        >>> callback = DumpCallback(DumpConfig(path="dump", steps="0|100"))
        >>> trainer = transformers.Trainer(model=model, callbacks=[callback])
    """

    def __init__(self, config: DumpConfig, *, evaluation: bool = False) -> None:
        self._steps = TrainingSteps(config, evaluation)

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Begin."""
        self._steps.start(others.get("model"))

    def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Record the batches of a step."""
        self._steps.begin_batch()

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """End a step: the optimizer has stepped."""
        self._steps.end_batch(ends_step=True)

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """End the dump."""
        self._steps.close()
