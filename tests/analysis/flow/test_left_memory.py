"""Which memory from outside a step leaves changed, and what of that is state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from aten_dump.analysis.flow.data_flow import DataFlow
from aten_dump.analysis.flow.left_memory import LeftMemory
from aten_dump.dump import RankDump
from tests.analysis.by_distance.steps import seeded

Body = Callable[[], object]


def state(rank: RankDump) -> list[str]:
    memory = LeftMemory(DataFlow(rank, "aten"))
    return [place.writer.name for place in memory.places if memory.is_state(place)]


def test_places_have_what_stood_there_and_who_wrote_them_last(record: Callable[..., Any]) -> None:
    memory = torch.zeros(4)
    rank = record(lambda: (memory.add_(1), memory[:2].mul_(2), memory.exp().add_(1)))
    places = LeftMemory(DataFlow(rank, "aten")).places
    assert [place.writer.name for place in places] == ["Aten.add_.0.forward", "Aten.mul_.0.forward"]
    assert [place.before.tensor().tolist() for place in places] == [[0.0] * 4, [1.0] * 2]
    assert [place.last.tensor().tolist() for place in places] == [[1.0] * 4, [2.0] * 2]


def test_what_nobody_reads_in_the_step_is_state(record: Callable[..., Any]) -> None:
    memory = torch.zeros(4)

    def counted(then: Body) -> Body:
        return lambda: (memory.add_(1), then())

    assert state(record(counted(lambda: None))) == ["Aten.add_.0.forward"]
    assert state(record(counted(lambda: memory[0].item()))) == ["Aten.add_.0.forward"], "a number is no tensor"
    assert state(record(counted(lambda: memory * 2))) == []
    assert state(record(lambda: memory.copy_(memory.clone()))) == [], "it is what it was"
    assert state(record(lambda: memory.mul_(1))) == []


def test_gradients_are_no_state_however_they_are_cleared(record: Callable[..., Any]) -> None:
    model = nn.Linear(4, 2)
    model(seeded(3, 4)).sum().backward()

    def run() -> None:
        model(seeded(3, 4)).sum().backward()
        model.zero_grad(set_to_none=False)

    assert state(record(run, model)) == []
    assert state(record(run)) == [], "also where they have no names"


def test_literals_are_made_in_the_step(record: Callable[..., Any]) -> None:
    def run() -> None:
        torch.tensor(0.0).add_(1)

    assert state(record(run, level="aten")) == state(record(run)) == []


def test_the_scale_of_the_loss_is_no_state(record: Callable[..., Any]) -> None:
    scaler = torch.amp.GradScaler("cpu", growth_interval=1)
    weight = nn.Parameter(seeded(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def run() -> None:
        scaler.scale(weight.sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    run()
    rank = record(run)
    written = [place.writer.op for place in LeftMemory(DataFlow(rank, "aten")).places]
    assert "aten::_amp_update_scale_" in written
    assert [name for name in state(rank) if "amp_update" in name] == []


def test_what_belongs_to_the_model(record: Callable[..., Any]) -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))
            self.weight = nn.Parameter(seeded(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen += 1
            return x * self.weight

    model, average, total = Counting(), torch.zeros(4), torch.zeros(())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def run() -> None:
        loss = model(seeded(4)).sum()
        loss.backward()
        optimizer.step()
        average.lerp_(model.weight.detach(), 0.1)
        total.add_(loss.detach())

    memory = LeftMemory(DataFlow(record(run, model), "aten"))
    found = [memory.belongs_to_model(place) for place in memory.places if memory.is_state(place)]
    assert found == [True, True, False], "a buffer, an average of weights, what a training loop counts"
