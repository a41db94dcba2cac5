"""Two programs that are the same function, with kernels that are right: where one of them loses precision is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

from aten_dump import ConfigError, DumpConfig, DumpMode, compare
from aten_dump.analysis.comparison import Comparison
from aten_dump.cli.commands.compare import command


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


def recorded(path: Path, dtype: torch.dtype, *, rounded_table: bool, positions: int = 512) -> Path:
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


@pytest.mark.parametrize(("budget", "code"), [(None, 1), pytest.param(0.01, 1, marks=pytest.mark.slow), (10.0, 0)])
def test_how_far_an_end_may_be_from_its_meaning_is_for_the_user_to_say(
    budget: float | None, code: int, tmp_path: Path
) -> None:
    paths = [
        recorded(tmp_path / name, torch.bfloat16, rounded_table=is_rounded)
        for name, is_rounded in (("target", True), ("baseline", False))
    ]
    option = [] if budget is None else ["--precision-budget", str(budget)]
    answer = CliRunner().invoke(command, [*map(str, paths), *option])
    assert answer.exit_code == code, answer.output
    assert ("times as far" in answer.output) == bool(code)


@pytest.mark.parametrize(
    ("budget", "options", "text"),
    [
        (0.0, {}, "a number above 0"),
        (-1.0, {}, "a number above 0"),
        (float("nan"), {}, "a number above 0"),
        (0.1, {"replay": False}, "compared by their distance"),
        (0.1, {"rules": [("mm", lambda _: True)]}, "compared by their distance"),
    ],
)
def test_a_budget_that_nothing_would_read_is_refused(
    budget: float, options: dict[str, Any], text: str, tmp_path: Path
) -> None:
    path = recorded(tmp_path / "dump", torch.bfloat16, rounded_table=False, positions=4)
    with pytest.raises(ConfigError, match=text):
        compare(path, path, precision_budget=budget, **options)
