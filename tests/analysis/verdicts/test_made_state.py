"""An optimizer that is written by hand has its state before its first step, torch's makes it there: both are one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from aten_dump import DumpConfig, DumpMode, compare
from aten_dump.analysis.comparison import Comparison
from tests.sampling import diagonal

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


@pytest.mark.parametrize(("share", "data"), diagonal([0.1, 0.101], ["tensor", "statistic"]))
def test_state_may_be_there_before_the_step_that_makes_it_elsewhere(tmp_path: Path, share: float, data: str) -> None:
    by_hand, library = trained(tmp_path / "hand", data, share), trained(tmp_path / "library", data)
    found, swapped = compare(by_hand, library), compare(library, by_hand)
    assert found.verdict == swapped.verdict == ("within" if share == 0.1 else "different"), found.answer()
    if share != 0.1:
        assert found_at(found) == "Adadelta.step"


def found_at(found: Comparison) -> str:
    assert found.cause is not None
    return found.cause.row.place.source.rpartition(" in ")[2]


class Lion:
    """Steps by the sign of an average that it makes at its first step, and that the next step alone shows."""

    def __init__(self, weights: list[nn.Parameter], keeps: float) -> None:
        self.weights, self.keeps, self.averages = weights, keeps, list[torch.Tensor]()

    @torch.no_grad()
    def step(self) -> None:
        self.averages = self.averages or [torch.zeros_like(weight) for weight in self.weights]
        for weight, average in zip(self.weights, self.averages, strict=True):
            assert weight.grad is not None
            weight.sub_(average.lerp(weight.grad, 0.1).sign_(), alpha=1e-3)
            average.lerp_(weight.grad, self.keeps)


def test_who_wrote_state_in_the_step_before_is_said(tmp_path: Path) -> None:
    for name, keeps in (("target", 0.1), ("baseline", 0.01)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))
        optimizer = Lion(list(model.parameters()), keeps)
        with DumpMode(DumpConfig(tmp_path / name, data="tensor"), model=model) as dump:
            for x, y in zip(X, Y, strict=True):
                model.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
                dump.step()
    found = compare(tmp_path / "target", tmp_path / "baseline")
    assert found.exit_code == 1
    said = found.answer().splitlines()[0]
    assert "Aten.lerp_.0.forward" in said and "weight is 0.1, in the baseline 0.01" in said, said
