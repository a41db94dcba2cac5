"""Training with compiled code against the same as it is written: honest pairs agree, and a mistake is found."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo import compiled_autograd

from aten_dump import DumpConfig, DumpMode, compare
from tests.torch_features import needs_results_of_compiled


class Net(nn.Module):
    """Convolutions before a batch norm have biases whose gradients are rounding alone."""

    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), act, nn.Conv2d(8, 8, 3, stride=2))
        self.head = nn.Sequential(nn.Flatten(), nn.LayerNorm(288), nn.Linear(288, 16), nn.ReLU(), nn.Linear(16, 5))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.body(x))
        return found


def trained(path: Path, act: nn.Module, *, compiled: bool) -> Path:
    model = Net(act)
    forward = torch.compile(model) if compiled else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    images = torch.randn(2, 4, 3, 15, 15, generator=torch.Generator().manual_seed(1))
    with DumpMode(DumpConfig(path=str(path), data="tensor", compile="opaque"), model=model) as dump:
        for batch in images:
            forward(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            dump.step()
    return path


@pytest.mark.slow
@needs_results_of_compiled
@pytest.mark.filterwarnings("ignore:aten_dump. the compiled function")
@pytest.mark.parametrize("first", ["compiled", "eager"])
def test_compiled_training_against_eager_training(tmp_path: Path, first: str) -> None:
    torch._dynamo.reset()
    compiled = trained(tmp_path / "compiled", nn.ReLU(), compiled=True)
    eager, other = (trained(tmp_path / str(act), act, compiled=False) for act in (nn.ReLU(), nn.LeakyReLU(0.02)))
    honest, wrong = (compare(*((compiled, one) if first == "compiled" else (one, compiled))) for one in (eager, other))
    assert honest.exit_code == 0, honest.answer()
    assert "ran compiled code" in honest.answer()
    assert wrong.exit_code == 1, wrong.answer()


@pytest.mark.parametrize(("factor", "code"), [(1.0, 2), (1.5, 1)])
def test_gradients_that_a_compiled_autograd_does_not_show_are_unknown(factor: float, code: int, tmp_path: Path) -> None:
    """They are not taken for cut off; a mistake in the forward is found all the same."""

    def trained(name: str, factor: float) -> Path:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
        with DumpMode(DumpConfig(path=str(tmp_path / name), data="tensor", compile="opaque"), model=model):
            (model(torch.linspace(-1, 1, 18).view(3, 6)) * factor).square().mean().backward()
        return tmp_path / name

    with compiled_autograd._enable(torch.compile(backend="eager")):
        compiled = trained("compiled", factor)
    found = compare(compiled, trained("written", 1.0))
    assert found.exit_code == code, found.answer()
    if code == 2:
        assert "0.weight, as autograd was compiled in the target" in found.answer()
