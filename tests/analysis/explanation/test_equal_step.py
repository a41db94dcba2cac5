"""Steps that are the same to the bit are told by their indexes, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from aten_dump import DumpConfig, DumpMode, RankDump, compare, open_dump
from aten_dump.analysis.explanation.equal_step import is_equal_step


def trained(path: Path, change: Callable[[nn.Module, int], None] = lambda model, step: None, **options: float) -> Path:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.LazyLinear(5))
    images, labels = torch.randn(3, 4, 3, 9, 9), torch.randint(5, (3, 4))
    model(images[0])
    optimizer = torch.optim.Adam(model.parameters(), lr=options.get("lr", 1e-3))
    with DumpMode(DumpConfig(path=str(path), data="tensor"), model=model) as dump:
        for step in range(3):
            change(model, step)
            nn.functional.cross_entropy(model(images[step]), labels[step]).backward()
            optimizer.step()
            optimizer.zero_grad()
            dump.step()
    return path


def ranks_of(*paths: Path, step: int = 0) -> list[RankDump]:
    return [open_dump(path).rank(step, 0) for path in paths]


def test_a_kernels_workspace_is_nobodys_number(tmp_path: Path) -> None:
    for name in ("one", "other"):
        torch.manual_seed(0)
        model, xs = nn.LSTM(4, 8), torch.randn(2, 5, 3, 4)
        with DumpMode(DumpConfig(path=str(tmp_path / name), data="tensor"), model=model) as dump:
            for x in xs:
                model(x)[0].sum().backward()
                dump.step()
        torch.empty(1 << 20).uniform_()  # what memory holds that is taken next
    one, other = tmp_path / "one", tmp_path / "other"
    assert is_equal_step(*ranks_of(one, other))
    assert compare(one, other).verdict == "same"


def test_equal_runs_are_the_same_and_all_of_them_is_compared(tmp_path: Path) -> None:
    one, other = trained(tmp_path / "one"), trained(tmp_path / "other")
    assert all(is_equal_step(*ranks_of(one, other, step=step)) for step in range(3))
    found = compare(one, other)
    assert found.verdict == "same", found
    rows = [row for evidence in found.ranks for row in evidence.rows]
    assert {row.status for row in rows} == {"same"}
    named = {(row.place.step, row.place.call) for row in rows}
    for step in range(3):
        calls = [call for call in open_dump(one).rank(step, 0).calls if call.op == "aten::convolution"]
        assert calls and all((step, call.name) in named for call in calls)


@pytest.mark.parametrize("step", [0, 1, 2])
def test_one_bit_makes_a_step_another(tmp_path: Path, step: int) -> None:
    def flip(model: nn.Module, now: int) -> None:
        if now == step:
            bits = model[1].bias.data.view(torch.int32)
            bits[2] ^= 1

    one, other = trained(tmp_path / "one", flip), trained(tmp_path / "other")
    assert [is_equal_step(*ranks_of(one, other, step=n)) for n in range(step + 1)] == [True] * step + [False]


def test_another_argument_or_dtype_makes_a_step_another(tmp_path: Path) -> None:
    one, other = trained(tmp_path / "one", lr=2e-3), trained(tmp_path / "other")
    assert not is_equal_step(*ranks_of(one, other))
    assert compare(one, other).exit_code == 1


def test_a_slip_in_the_step_after_equal_ones_is_not_taken_for_what_was_left(tmp_path: Path) -> None:
    def slip(model: nn.Module, step: int) -> None:
        if step == 2:
            model[1].running_mean.mul_(1)  # written with what was there
            model[4].weight.data = model[4].weight.data * 1.25

    found = compare(trained(tmp_path / "one", slip), trained(tmp_path / "other"))
    assert found.exit_code == 1, found
    assert found.cause is not None
    assert found.cause.row.place.step == 2
