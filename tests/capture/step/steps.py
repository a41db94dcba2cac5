"""A step on a sink in memory, and who is told when the recorder fails."""

from __future__ import annotations

from typing import Any

from aten_dump import DumpConfig
from aten_dump.capture.step.step import Step
from tests.store.memory_sink import MemorySink


class Told:
    """Takes the recorder's failures; `raises` is whether one that may be raised is, as with on_error="raise"."""

    def __init__(self, raises: bool = False) -> None:
        self.aloud: list[Exception] = []
        self.quietly: list[Exception] = []
        self.raises = raises

    def failed(self, error: Exception) -> None:
        self.aloud.append(error)
        if self.raises:
            raise error

    def failed_quietly(self, error: Exception) -> None:
        self.quietly.append(error)


def new_step(**config: Any) -> tuple[Step, MemorySink, Told]:
    """Return a step that has just begun, its sink, and who is told of failures."""
    sink, told = MemorySink(), Told()
    return Step(DumpConfig(path="unused", **config), sink, told), sink, told
