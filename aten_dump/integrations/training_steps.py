"""The steps of a trainer: recorded while it trains, not while it evaluates."""

from __future__ import annotations

from torch import nn

from ..capture.mode import DumpMode
from ..config import DumpConfig


class TrainingSteps:
    """A DumpMode that a trainer's events drive; recording goes on between `begin_batch` and `end_batch` alone."""

    def __init__(self, config: DumpConfig, evaluation: bool) -> None:
        """Wait for `start`; with `evaluation`, what runs between steps belongs to the step that follows."""
        self._config = config
        self._evaluation = evaluation
        self._dump: DumpMode | None = None

    @property
    def dump(self) -> DumpMode | None:
        """The mode, while the trainer trains."""
        return self._dump

    def start(self, model: nn.Module | None) -> None:
        """Begin with the first step."""
        self._dump = DumpMode(self._config, model=model).start()
        self._rest()

    def begin_batch(self) -> None:
        """Record from here."""
        if self._dump is not None:
            self._dump.resume()

    def end_batch(self, ends_step: bool) -> None:
        """Record no more until the next batch; gradients may be accumulated over several to a step."""
        if self._dump is not None:
            if ends_step:
                self._dump.step()
            self._rest()

    def _rest(self) -> None:
        if self._dump is not None and not self._evaluation:
            self._dump.pause()

    def close(self) -> None:
        """End the dump. Idempotent."""
        dump, self._dump = self._dump, None
        if dump is not None:
            dump.close()
