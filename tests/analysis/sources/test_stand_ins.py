"""Which source stands for which: by contents, by what the step before left, by a cast."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from aten_dump import DumpConfig, DumpMode, compare
from tests.analysis.transformer import OtherDevice

X = torch.linspace(-2, 2, 48).view(4, 12)


def trained(
    path: Path,
    change: Callable[[nn.Module, int], None] = lambda model, step: None,
    *,
    dtype: torch.dtype = torch.float32,
) -> Path:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 12)).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with DumpMode(DumpConfig(path=str(path), data="tensor"), model=model) as dump:
        for step in range(3):
            change(model, step)
            model(X.to(dtype)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            dump.step()
    return path


def test_what_the_step_before_left_stands_for_its_counterpart(tmp_path: Path) -> None:
    """Noise of one step is no other source of the next."""
    with OtherDevice():
        target = trained(tmp_path / "target")
    found = compare(target, trained(tmp_path / "baseline"))
    assert found.verdict == "within" and len(found.ranks) == 3, found.answer()


def test_a_weight_changed_between_steps_is_named_in_the_step_that_reads_it(tmp_path: Path) -> None:
    def change(model: nn.Module, step: int) -> None:
        if step == 1:
            with torch.no_grad():
                model[2].weight.mul_(1.001)  # type: ignore[operator,union-attr]

    found = compare(trained(tmp_path / "target", change), trained(tmp_path / "baseline"))
    assert found.first is not None and found.first[0].steps == (1, 1)
    assert found.cause is not None
    assert [len(evidence.findings) for evidence in found.ranks] == [0, 1, 0], "step 2 does what it should"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_weights_in_another_precision_are_the_same_weights(dtype: torch.dtype, tmp_path: Path) -> None:
    found = compare(trained(tmp_path / "target", dtype=dtype), trained(tmp_path / "baseline"))
    assert found.exit_code == 0, found.answer()
