"""``DumpCallback`` for the Trainer of Lightning."""

from __future__ import annotations

from typing import Any

from lightning import Callback

from ..config import DumpConfig
from .training_steps import TrainingSteps


class DumpCallback(Callback):  # type: ignore[misc,unused-ignore]
    """Records the training of a Trainer: a step for each step of its optimizer, the sanity check left out.

    Args:
        config: what to record; steps are counted from 0 where training begins or goes on.
        evaluation: record validation too, in the step that follows it.

    Example:
        >>> import lightning
        >>> from aten_dump.integrations.lightning_callback import DumpCallback
        >>> callback = DumpCallback(DumpConfig(path="dump", steps="0|100"))
        >>> trainer = lightning.Trainer(callbacks=[callback], logger=False)
    """

    def __init__(self, config: DumpConfig, *, evaluation: bool = False) -> None:
        self._steps = TrainingSteps(config, evaluation)
        self._global_step = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin."""
        self._global_step = trainer.global_step
        self._steps.start(pl_module)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, *others: Any) -> None:
        """Record a batch."""
        self._steps.begin_batch()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *others: Any) -> None:
        """End a step where the optimizer has stepped."""
        before, self._global_step = self._global_step, trainer.global_step
        self._steps.end_batch(ends_step=before != self._global_step)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """End the dump."""
        self._steps.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End the dump; the error is the program's."""
        self._steps.close()
