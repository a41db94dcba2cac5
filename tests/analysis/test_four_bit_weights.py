"""Programs whose weights are float4, two numbers to a byte: torch computes nothing of such tensors, they are bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from aten_dump import DumpConfig, DumpMode, compare, open_dump
from aten_dump.analysis.nonfinite.search import find_nonfinite

pytestmark = pytest.mark.skipif(not hasattr(torch, "float4_e2m1fn_x2"), reason="this torch has no float4")
NUMBERS = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


class FourBitLinear(nn.Module):
    def __init__(self, inputs: int, outputs: int, *, swapped: bool) -> None:
        super().__init__()
        self.weight, self.swapped = nn.Parameter(torch.randn(outputs, inputs)), swapped

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = self.weight.abs().amax(1, keepdim=True) / 6
        codes = ((self.weight / scale).detach().unsqueeze(-1) - NUMBERS).abs().argmin(-1).to(torch.uint8)
        low, high = codes[:, ::2], codes[:, 1::2]
        if self.swapped:
            low, high = high, low
        packed = (low | high << 4).contiguous().view(torch.float4_e2m1fn_x2)
        kept = torch.empty_like(packed).copy_(packed).view(torch.uint8)
        weight = NUMBERS[torch.stack([kept & 15, kept >> 4], -1).flatten(1).long()] * scale
        return x @ (self.weight + (weight - self.weight).detach()).t()


def recorded(path: Path, *, swapped: bool = False) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(FourBitLinear(16, 32, swapped=swapped), nn.GELU(), nn.Linear(32, 4))
    with DumpMode(DumpConfig(path, data="full"), model=model):
        nn.functional.cross_entropy(model(torch.randn(8, 16)), torch.randint(0, 4, (8,))).backward()
    return path


def test_swapped_halves_of_bytes_are_found_where_they_are_packed(tmp_path: Path) -> None:
    right = recorded(tmp_path / "right")
    assert compare(recorded(tmp_path / "again"), right).exit_code == 0
    found = compare(recorded(tmp_path / "wrong", swapped=True), right)
    assert found.exit_code == 1 and "Aten.__lshift__.0.forward" in found.answer().partition("\n")[0]


def test_they_are_no_nan_and_near_no_overflow(tmp_path: Path) -> None:
    found = find_nonfinite(open_dump(recorded(tmp_path / "dump")).step(0).rank(0))
    assert found.first is None and not found.near_overflow
