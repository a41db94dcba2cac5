"""A step that is recorded into memory, for tests of one interceptor at a time."""

from __future__ import annotations

from typing import Any

from torch import nn

from aten_dump import DumpConfig
from aten_dump.capture.recorder import StepRecorder, Surroundings, Watch
from aten_dump.capture.step.live_optimizers import LiveOptimizers
from aten_dump.capture.step.module_paths import ModulePaths
from aten_dump.capture.torch_internals.mode_stack import Modes
from aten_dump.store import records as r
from tests.capture.intercept.modes import Asked, Passing
from tests.capture.step.steps import Told
from tests.store.memory_sink import MemorySink


class Watched:
    """A watch whose step is being recorded; no mode of ours is on the stacks but those a test puts there."""

    def __init__(self, model: nn.Module | None = None, **config: Any) -> None:
        self.sink, self.told, self.watch = MemorySink(), Told(), Watch()
        self.paths = ModulePaths(model)
        self.modes = Modes(Asked(), Passing())
        self.config = DumpConfig(path="unused", **{"stacks": False, "data": "structure", **config})
        self.recorder = StepRecorder(
            self.config, self.sink, Surroundings(self.paths, LiveOptimizers(), self.modes, self.told)
        )
        self.watch.turn_on(self.recorder)

    @property
    def calls(self) -> list[r.Call]:
        found: list[r.Call] = self.sink.of(r.CALL)
        return found

    def names(self) -> list[str]:
        """What was called, in the order of the calls' ends."""
        ops = {op.id: op for op in self.sink.of(r.OP)}
        return [f"{ops[call.op].prefix}.{ops[call.op].api}" for call in self.calls]

    def notes(self) -> dict[str, int]:
        return {note.code: note.count for note in self.recorder.step.coverage.notes()}
