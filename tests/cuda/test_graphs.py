"""Graphs of CUDA under a dump: captured without a copy of ours in them, replayed as one call, with the bare program's bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from aten_dump import DumpConfig, DumpMode, open_dump, replay
from tests.capture.bits import assert_same
from tests.capture.same_outcome import note


class Program:
    """A layer that is trained by a graph of its step."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(64, 64, device="cuda")
        self.x = torch.randn(8, 64, device="cuda")
        self.graph = torch.cuda.CUDAGraph()
        self.loss = torch.zeros((), device="cuda")

    def step(self) -> None:
        self.layer.zero_grad(set_to_none=False)
        self.loss = self.layer(self.x).square().mean()
        self.loss.backward()

    def capture(self) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.step()
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(self.graph):
            self.step()

    def run(self, number: int) -> list[Tensor]:
        self.x.fill_(number)
        self.graph.replay()
        assert self.layer.weight.grad is not None
        return [self.loss + 0, self.layer.weight.grad + 0]


def _outcome() -> list[Tensor]:
    program = Program()
    program.capture()
    return [one for number in range(3) for one in program.run(number)]


@pytest.mark.parametrize("data", ["structure", "statistic", "hash", "tensor", "full"])
def test_a_graph_is_captured_and_replayed(tmp_path: Path, data: Any) -> None:
    bare = _outcome()
    with DumpMode(DumpConfig(path=tmp_path / "dump", data=data)):
        recorded = _outcome()
    for one, other in zip(bare, recorded, strict=True):
        assert_same(one.cpu(), other.cpu())
    rank = open_dump(tmp_path / "dump").step(0).rank(0)
    assert rank.complete
    assert not [note for note in rank.notes if note.code in ("error", "unreadable")]
    assert (note(rank, "device_graph").count, note(rank, "graph_replay").count) == (1, 3)
    replayed = rank["Torch.CUDAGraph.replay.1.forward"]
    assert len([*replayed.input_values()]) >= 3, "x, the weight and the bias"
    if data in ("tensor", "full"):
        assert not replay(rank).suspects


def test_a_model_that_is_compiled_into_graphs(tmp_path: Path) -> None:
    def outcome() -> list[Tensor]:
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 8)).cuda()
        compiled = torch.compile(model, mode="reduce-overhead")
        found = []
        for _ in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            loss = compiled(torch.ones(4, 64, device="cuda")).square().mean()
            loss.backward()
            found.append(loss.detach().clone())
        return [*found, *(p.grad.clone() for p in model.parameters() if p.grad is not None)]

    bare = outcome()
    with DumpMode(DumpConfig(path=tmp_path / "dump", data="tensor", compile="opaque")):
        recorded = outcome()
    for one, other in zip(bare, recorded, strict=True):
        assert_same(one.cpu(), other.cpu())
    assert open_dump(tmp_path / "dump").step(0).rank(0).complete
