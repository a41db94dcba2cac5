"""Rows and positions that differ alone are said, in the answer of a comparison of real programs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from aten_dump import DumpConfig, DumpMode, compare


def recorded(path: Path, spoil: str = "") -> Path:
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True), 2)
    model.eval()
    x = torch.randn(4, 10, 16)
    factors = torch.ones(4, 10, 1)
    if spoil:
        factors[{"row": 2, "late": (slice(None), slice(7, None)), "all": ...}[spoil]] = 1.25
    places = torch.arange(10.0)[None, :, None].expand(4, 10, 16).clone()
    with DumpMode(DumpConfig(path=path, data="tensor"), model=model), torch.no_grad():
        model((x + places.sin()) * factors)
    return path


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        ("row", "It differs only at index 2 of 4 along dimension 0"),
        ("late", "It differs only at indices 7 to 9 of 10 along dimension 1"),
        ("all", ""),
    ],
)
def test_the_rows_and_positions_that_a_mistake_touches_are_said(spoil: str, text: str, tmp_path: Path) -> None:
    answer = compare(recorded(tmp_path / "t", spoil), recorded(tmp_path / "b")).answer()
    assert (text in answer) if text else ("It differs only at" not in answer), answer
