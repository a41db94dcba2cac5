"""An optimizer that is written by hand has its state before its first step, torch's makes it there: both are one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from aten_dump import DumpConfig, DumpMode, compare, open_dump
from aten_dump.analysis.comparison import Comparison
from aten_dump.analysis.flow.left_memory import LeftMemory
from aten_dump.analysis.outcomes.made_state import MadeState
from tests.analysis.by_hand import walked

X = torch.randn(3, 12, 6, generator=torch.Generator().manual_seed(1))
Y = torch.randint(0, 4, (3, 12), generator=torch.Generator().manual_seed(2))


class Adadelta:
    """Torch's, in the words of the paper; what it adds up last is read in the next step alone."""

    def __init__(self, weights: list[nn.Parameter], share: float) -> None:
        self.weights, self.share = weights, share
        self.squares, self.steps = ([torch.zeros_like(w) for w in weights] for _ in range(2))

    @torch.no_grad()
    def step(self) -> None:
        for weight, squares, steps in zip(self.weights, self.squares, self.steps, strict=True):
            assert weight.grad is not None
            squares.copy_(0.9 * squares + 0.1 * weight.grad * weight.grad)
            step = weight.grad * torch.sqrt(steps + 1e-6) / torch.sqrt(squares + 1e-6)
            steps.copy_(0.9 * steps + self.share * step * step)
            weight.sub_(0.5 * step)


def trained(path: Path, data: str, share: float | None = None) -> Path:
    """Train for three steps by an optimizer written by hand, or by torch's if no share is given."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 4))
    weights = list(model.parameters())
    optimizer = torch.optim.Adadelta(weights, lr=0.5) if share is None else Adadelta(weights, share)
    with DumpMode(DumpConfig(path, data=data), model=model) as dump:
        for x, y in zip(X, Y, strict=True):
            model.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            dump.step()
    return path


@pytest.mark.parametrize("data", ["tensor", "statistic"])
@pytest.mark.parametrize("share", [0.1, 0.101])
def test_state_may_be_there_before_the_step_that_makes_it_elsewhere(tmp_path: Path, share: float, data: str) -> None:
    by_hand, library = trained(tmp_path / "hand", data, share), trained(tmp_path / "library", data)
    for found in (compare(by_hand, library), compare(library, by_hand)):
        assert found.verdict == ("within" if share == 0.1 else "different"), found.answer()
    if share != 0.1:
        assert found_at(compare(by_hand, library)) == "Adadelta.step"


def found_at(found: Comparison) -> str:
    assert found.cause is not None
    return found.cause.row.place.source.rpartition(" in ")[2]


def test_what_an_optimizer_made_is_the_counterpart_of_one_place(tmp_path: Path) -> None:
    by_hand, library = trained(tmp_path / "hand", "tensor", 0.1), trained(tmp_path / "library", "tensor")
    knows = walked(*(open_dump(path).step(0).rank(0) for path in (by_hand, library))).knows
    memory = [LeftMemory(flow) for flow in knows.flows]
    made = MadeState(memory, knows.flows, knows.known, knows.regions)
    weights, state = [], []
    for place in memory[0].places:
        (state if not place.before.tensor().any() else weights).append(place.last)
    assert not any(made.takes(0, weight) for weight in weights if weight.numel > 16)
    assert [made.takes(0, value) for value in state if value.numel > 16] == [True] * 6
    assert not any(made.takes(0, value) for value in state if value.numel > 16)
