"""Graphs of a device: what is captured is structure, a replay is one call, and no op is blamed for what one wrote.

No GPU is needed: a class stands where torch has its own. What it captures runs, on the host, and what it replays
writes past the dispatcher, as the kernels of a graph do. `tests/cuda/test_graphs.py` is for a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from aten_dump import DumpConfig, DumpMode, open_dump, replay
from aten_dump.capture.devices import graph_classes
from tests.capture.bits import assert_same
from tests.capture.same_outcome import note


class HostGraph:
    """Captures nothing, and replays what it was told to."""

    def __init__(self, kernels: Callable[[], None]) -> None:
        self.kernels = kernels

    def capture_begin(self, pool: Any = None) -> None:
        if pool == "refused":
            raise RuntimeError("the device's own")

    def capture_end(self) -> None:
        pass

    def replay(self) -> None:
        self.kernels()


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "HostGraph", HostGraph, raising=False)


class Program:
    """Doubles and adds, in memory that stays, as programs with graphs have it."""

    def __init__(self) -> None:
        self.x, self.weight, self.total = torch.ones(600), torch.full((600,), 2.0), torch.zeros(600)
        self.y = torch.empty(0)
        self.graph = HostGraph(self._kernels)

    def _kernels(self) -> None:
        self.y.numpy()[...] = self.x.numpy() * self.weight.numpy()
        self.total.numpy()[...] += self.y.numpy()

    def capture(self) -> None:
        self.graph.capture_begin()
        between = self.x * self.weight
        self.y = between + 0
        self.total.add_(self.y)
        self.graph.capture_end()

    def run(self, number: float) -> Tensor:
        self.x.fill_(number)
        self.graph.replay()
        return self.y + self.total


def test_torch_s_own_classes_are_known() -> None:
    assert {torch.cuda.CUDAGraph, HostGraph} <= set(graph_classes())


@pytest.mark.parametrize("data", ["structure", "tensor", "full"])
@pytest.mark.parametrize("dedup", ["version", "content"])
def test_a_replay_is_a_call_between_what_it_reads_and_writes(tmp_path: Path, data: Any, dedup: Any) -> None:
    program, methods = Program(), dict(vars(HostGraph))
    with DumpMode(DumpConfig(path=str(tmp_path), data=data, dedup=dedup)) as dump:
        program.capture()
        dump.step()
        found = [program.run(3.0), program.run(5.0)]
    assert dict(vars(HostGraph)) == methods, "torch is as it was"
    captured, rank = (open_dump(tmp_path).step(number).rank(0) for number in range(2))

    ops = [call for call in captured.calls if call.kind == "aten"]
    assert [call.op for call in ops] == ["aten::mul.Tensor", "aten::add.Tensor", "aten::add_.Tensor"]
    assert not any(value.has_data for call in ops for _, value in [*call.input_values(), *call.output_values()])
    assert note(captured, "device_graph").count == 1

    filled, replayed = rank["Aten.fill_.0.forward"], rank["Torch.HostGraph.replay.0.forward"]
    (given,) = replayed.inputs[0]
    assert filled.mutated_values["self"].id in [value.id for value in given]
    assert len(given) == 3, "x, the weight and the total"
    producers = [value.producer for value in rank["Aten.add.0.forward"].inputs[0]]
    assert [made and made[0] for made in producers] == [replayed, replayed]
    assert note(rank, "graph_replay").count == 2
    if data != "structure":
        assert not replay(rank).suspects
        for number, sums in enumerate(found):
            assert_same(sums, rank[f"Aten.add.{number}.forward"].outputs.tensor())
            y = rank[f"Torch.HostGraph.replay.{number}.forward"].outputs[0]
            assert_same(torch.full((600,), (6.0, 10.0)[number]), y.tensor())


def test_what_was_captured_is_not_taken_for_computed(tmp_path: Path) -> None:
    """On a device the total still holds its old sums after the capture; here its new ones are undone."""
    program = Program()
    memory = program.total.numpy()
    with DumpMode(DumpConfig(path=str(tmp_path), data="tensor")):
        program.total + 1
        program.capture()
        memory[...] = 0
        program.total + 2
    rank = open_dump(tmp_path).step(0).rank(0)
    assert rank["Aten.add.2.forward"].inputs[0][0].producer is None
    assert_same(torch.zeros(600), rank["Aten.add.2.forward"].inputs[0][0].tensor())
    assert not replay(rank).suspects


def test_no_memory_is_read_while_a_graph_is_captured(tmp_path: Path) -> None:
    """With dedup="content" a change of memory would be found, which on a device takes a copy."""
    program = Program()
    memory = program.x.numpy()
    with DumpMode(DumpConfig(path=str(tmp_path), data="tensor", dedup="content")):
        program.graph.capture_begin()
        program.x * 2
        memory[...] = 7
        program.x * 3
        program.graph.capture_end()
    assert not [note for note in open_dump(tmp_path).step(0).rank(0).notes if note.code == "unseen_writes"]


def test_nothing_waits_for_a_device_when_a_capture_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a step that is not recorded too: the writer's thread may still be at what came before it."""
    order: list[str] = []
    program = Program()

    def begin(graph: HostGraph) -> None:
        order.append("begins")

    def write() -> list[tuple[Any, ...]]:
        order.append("written")
        return []

    monkeypatch.setattr(HostGraph, "capture_begin", begin)
    with DumpMode(DumpConfig(path=str(tmp_path), data="statistic", steps="0")) as dump:
        program.x * 2
        sink = dump._session._sink
        assert sink is not None
        dump.step()
        sink.later(write, 1)
        program.capture()
    assert order == ["written", "begins"]


def test_a_capture_that_fails_leaves_the_recording_as_it_was(tmp_path: Path) -> None:
    program = Program()
    with DumpMode(DumpConfig(path=str(tmp_path), data="tensor")):
        with pytest.raises(RuntimeError, match="the device's own"):
            program.graph.capture_begin("refused")
        program.x * 2
    assert open_dump(tmp_path).step(0).rank(0)["Aten.mul.0.forward"].outputs.has_data


def test_a_pause_and_a_step_s_end_within_a_capture(tmp_path: Path) -> None:
    program = Program()
    with DumpMode(DumpConfig(path=str(tmp_path), data="tensor")) as dump:
        dump.pause()
        program.graph.capture_begin()
        dump.resume()
        program.x * 2
        dump.step()
        program.x * 3
        program.graph.capture_end()
        program.x * 4
    kept = [open_dump(tmp_path).step(step).rank(0).calls.filter(op="aten::mul") for step in range(2)]
    assert [[call.outputs.has_data for call in calls] for calls in kept] == [[False], [False, True]]


def test_a_graph_that_was_captured_unseen_is_a_call_of_unknown_memory(tmp_path: Path) -> None:
    program = Program()
    program.capture()
    with DumpMode(DumpConfig(path=str(tmp_path), data="tensor")):
        program.y + program.total
        found = program.run(3.0)
    rank = open_dump(tmp_path).step(0).rank(0)
    assert not list(rank["Torch.HostGraph.replay.0.forward"].input_values())
    assert_same(found, rank["Aten.add.1.forward"].outputs.tensor())
    assert not replay(rank).suspects
