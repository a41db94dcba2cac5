"""Honest pairs of programs, and one that is not, recorded with statistics alone: what noise does to these is no cause."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from aten_dump import DumpConfig, DumpMode, compare
from aten_dump.analysis.comparison import Comparison

STEPS = 2
X = torch.randn(STEPS, 4, 12, 16, generator=torch.Generator().manual_seed(1))


class Attention(nn.Module):
    """One layer; nothing that its key's bias does shows in the loss."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        self.q, self.k, self.v, self.out = (nn.Linear(16, 16) for _ in range(4))
        self.norm = nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (layer(x) for layer in (self.q, self.k, self.v))
        if self.fused:
            y = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]
        else:
            y = ((q @ k.mT) / 4).softmax(-1) @ v
        found: torch.Tensor = self.norm(x + self.out(y))
        return found


def convolutions() -> nn.Sequential:
    """Two of them, each before a norm that takes its bias away."""
    layers = nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.BatchNorm2d(4)
    return nn.Sequential(nn.Unflatten(1, (1, 12)), *layers)


def record(path: Path, model: nn.Module, scale: float = 1.0, *, adam: bool = True) -> Path:
    make = torch.optim.AdamW if adam else torch.optim.SGD
    optimizer = make(model.parameters(), lr=1e-3)
    with DumpMode(DumpConfig(path, data="statistic"), model=model) as dump:
        for x in X:
            (model(x) * scale).pow(3).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            dump.step()
    return path


def attention(path: Path, *, fused: bool, scale: float = 1.0) -> Path:
    torch.manual_seed(0)
    return record(path, nn.Sequential(Attention(fused), Attention(fused)), scale)


def verdict(found: Comparison) -> str:
    return f"{found.verdict}: {found.answer()}"


def test_the_gradient_of_a_bias_that_does_nothing_is_noise_on_both_sides(tmp_path: Path) -> None:
    baseline = attention(tmp_path / "b", fused=False)
    found = compare(attention(tmp_path / "a", fused=True), baseline)
    assert verdict(found).startswith("within")
    found = compare(attention(tmp_path / "c", fused=True, scale=1.02), baseline)
    assert found.verdict == "different" and found.cause is not None and found.cause.row.place.op == "aten::mul.Tensor"


def test_weights_that_lie_in_channels_last_are_the_same_weights(tmp_path: Path) -> None:
    made: list[Path] = []
    for name in ("a", "b"):
        torch.manual_seed(0)
        model = convolutions()
        if made:
            for weight in [one for one in model.parameters() if one.dim() == 4]:
                weight.data = weight.data.contiguous(memory_format=torch.channels_last)
        made.append(record(tmp_path / name, model, adam=False))
    assert verdict(compare(*made)).startswith("within")


@pytest.mark.parametrize("same", [True, False])
def test_statistics_of_many_weights_that_other_threads_added_up(tmp_path: Path, same: bool) -> None:
    made: list[Path] = []
    for name, threads in (("a", 1), ("b", 2)):
        torch.manual_seed(0)
        model = nn.Linear(16, 4096)
        if made and not same:
            model.weight.data[3] *= 1.1
        had = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            made.append(record(tmp_path / name, model))
        finally:
            torch.set_num_threads(had)
    assert compare(*made).verdict == ("within" if same else "different")
