"""Two programs that are the same function, with kernels that are right: where one of them loses precision is named."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from aten_dump import DumpConfig, DumpMode, compare
from aten_dump.analysis.comparison import Comparison


class Rotated(nn.Module):
    """Attention with rotated queries and keys, whose frequencies are a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.queries, self.values = nn.Linear(16, 16), nn.Linear(16, 16)
        self.register_buffer("frequencies", 1.0 / 10_000 ** (torch.arange(8) / 8))
        with torch.no_grad():
            self.queries.weight.mul_(8)

    def forward(self, x: Tensor) -> Tensor:
        angles = torch.arange(len(x)).float()[:, None] * self.frequencies.float()
        cos, sin = (table.to(x.dtype) for table in (angles.cos(), angles.sin()))
        one, two = self.queries(x).chunk(2, -1)
        turned = torch.cat([one * cos - two * sin, two * cos + one * sin], -1)
        return (turned @ turned.t() / 4).softmax(-1) @ self.values(x)


def recorded(path: Path, dtype: torch.dtype, *, rounded_table: bool, positions: int = 1024) -> Path:
    torch.manual_seed(5)
    model = Rotated()
    x = torch.randn(positions, 16)
    kept = model.frequencies.clone()
    model.to(dtype)
    if not rounded_table:
        model.frequencies = kept
    with DumpMode(DumpConfig(path=str(path), data="tensor"), model=model) as dump:
        model(x.to(dtype)).square().mean().backward()
        dump.step()
    return path


def compared(folder: Path, rounded: tuple[bool, bool], dtypes: tuple[torch.dtype, torch.dtype]) -> Comparison:
    paths = [
        recorded(folder / name, dtype, rounded_table=is_rounded)
        for name, is_rounded, dtype in zip(("target", "baseline"), rounded, dtypes, strict=True)
    ]
    return compare(*paths)


BFLOAT16 = torch.bfloat16, torch.bfloat16


def test_a_table_that_was_rounded_is_named_where_angles_become_others(tmp_path: Path) -> None:
    found = compared(tmp_path, (True, False), BFLOAT16)
    assert found.exit_code == 1, found
    assert found.cause is not None
    assert found.cause.kind == "precision", found
    assert found.cause.row.place.op in ("aten::cos", "aten::sin"), found
    assert "precision is lost here" in found.cause.text
    assert "frequencies" in found.answer() or "cos" in found.answer()


def test_the_same_table_on_both_sides_is_the_price_of_both(tmp_path: Path) -> None:
    assert compared(tmp_path, (True, True), BFLOAT16).exit_code == 0


def test_another_precision_of_the_whole_model_agrees(tmp_path: Path) -> None:
    found = compared(tmp_path, (False, False), (torch.bfloat16, torch.float32))
    assert found.exit_code == 0, found


def test_a_baseline_that_loses_it_is_no_fault_of_the_target(tmp_path: Path) -> None:
    assert compared(tmp_path, (False, True), BFLOAT16).exit_code == 0
