"""A choice that rounding decides is said to be one, and both sides are compared with the same choice."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from aten_dump import DumpConfig, DumpMode, compare
from aten_dump.analysis.comparison import Comparison

LARGE = float(1 << 24)  # what float32 cannot add 1 to


class Router(nn.Module):
    """One of six experts for each token. Of token 3 expert 1 has the best score, by less than float32 loses of it."""

    def __init__(
        self, *, sums_otherwise: bool = False, adds: float = 0.0, grouped: bool = False, skips: bool = False
    ) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(6))
        self.sums_otherwise, self.adds, self.grouped, self.factor = sums_otherwise, adds, grouped, 1.0
        self.skips = skips

    def forward(self, x: torch.Tensor, terms: torch.Tensor) -> torch.Tensor:
        one, two, three = terms.unbind()
        scores = one + (two + three) if self.sums_otherwise else (one + two) + three
        weights, chosen = (scores + self.adds * torch.arange(6)).topk(1, -1)
        if self.grouped:
            found = torch.zeros_like(x)
            for number, expert in enumerate(self.experts):
                rows = (chosen[:, 0] == number).nonzero()[:, 0]
                if self.skips and not len(rows):
                    continue
                found = found.index_add(0, rows, expert(x[rows]) * (self.factor if number == 5 else 1.0))
            return found * weights.sigmoid()
        made = torch.stack([expert(x) for expert in self.experts], 1)
        picked = made.gather(1, chosen[..., None].expand(-1, -1, 16))
        return (picked * weights.sigmoid()[..., None]).sum(1)


def run(path: Path, model: Router) -> Path:
    torch.manual_seed(4)
    x, terms = torch.randn(8, 16), torch.randn(3, 8, 6)
    terms[:, 3] = -1.0
    terms[:, 3, 1] = torch.tensor([LARGE, 1.0, -LARGE])  # 1, or 0 if the first two are added first
    terms[:, 3, 4] = torch.tensor([0.5, 0.25, 0.125])
    terms[:, 5, 1], terms[:, 6, 5] = 2.0, 2.0
    if model.skips:  # nothing else chooses expert 1
        terms[:, [row for row in range(8) if row != 3], 1] = -5.0
    with DumpMode(DumpConfig(path=str(path), data="tensor"), model=model) as dump:
        model(x, terms).square().mean().backward()
        dump.step()
    return path


def notes_of(found: Comparison) -> list[str]:
    return [note for rank in found.ranks for note in rank.notes if note.startswith("near tie")]


def test_a_near_tie_is_said_with_its_margin_and_the_sides_agree(tmp_path: Path) -> None:
    found = compare(run(tmp_path / "target", Router(sums_otherwise=True)), run(tmp_path / "baseline", Router()))
    assert found.exit_code == 0, found.answer()
    (note,) = notes_of(found)
    assert "Aten.topk.0.forward" in note and "in 1 of 8 rows, first in row 3" in note, note
    assert "the scores are at most 0.12 apart, those of the two sides differ by 1 there" in note, note
    assert "near tie" in found.answer()


def test_the_same_choices_are_no_tie(tmp_path: Path) -> None:
    found = compare(run(tmp_path / "target", Router()), run(tmp_path / "baseline", Router()))
    assert found.exit_code == 0 and notes_of(found) == []


def test_other_scores_are_a_difference_and_no_tie(tmp_path: Path) -> None:
    found = compare(run(tmp_path / "target", Router(adds=0.3)), run(tmp_path / "baseline", Router()))
    assert found.exit_code == 1 and notes_of(found) == []


def test_a_mistake_beside_a_near_tie_is_one(tmp_path: Path) -> None:
    """Rounding that chooses otherwise on one side is no measure of what may differ."""
    right, wrong = Router(sums_otherwise=True, grouped=True), Router(sums_otherwise=True, grouped=True)
    wrong.factor = 1.05
    baseline = run(tmp_path / "baseline", Router(grouped=True))
    honest = compare(run(tmp_path / "right", right), baseline)
    assert honest.exit_code == 0 and notes_of(honest), honest.answer()
    found = compare(run(tmp_path / "wrong", wrong), baseline)
    assert found.exit_code == 1 and notes_of(found), found.answer()


@pytest.mark.parametrize("sums_otherwise", [True, False])
def test_an_expert_may_have_no_token_on_one_side(tmp_path: Path, sums_otherwise: bool) -> None:
    """Its calls are on one side alone, which cannot be evaluated with the other's choice."""
    one, other, wrong = (Router(grouped=True, skips=True) for _ in range(3))
    one.sums_otherwise = wrong.sums_otherwise = sums_otherwise
    other.sums_otherwise = not sums_otherwise
    baseline = run(tmp_path / "baseline", other)
    found = compare(run(tmp_path / "target", one), baseline)
    assert found.exit_code == 0 and notes_of(found), found.answer()
    wrong.factor = 1.05
    found = compare(run(tmp_path / "wrong", wrong), baseline)
    assert found.exit_code == 1 and notes_of(found), found.answer()


class Masked(nn.Module):
    """A ReLU as it is, or with a mask that is kept for backward, as compiled code keeps one."""

    def __init__(self, *, keeps_mask: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two, self.out = nn.Linear(16, 64), nn.Linear(64, 64), nn.Linear(64, 3)
        self.keeps_mask = keeps_mask

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.two(self.one(x) * 1.7)
        found: torch.Tensor = self.out(h * (h > 0) if self.keeps_mask else torch.relu(h))
        return found


class WrongMask(TorchDispatchMode):
    """A kernel that gets some elements of a mask wrong."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.gt.Scalar:
            found[..., ::9] = True
        return found


def masked(path: Path, mode: AbstractContextManager[object] | None = None, *, keeps_mask: bool) -> str:
    model = Masked(keeps_mask=keeps_mask).to(torch.bfloat16)
    x = torch.randn(64, 16, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    with mode or nullcontext(), DumpMode(DumpConfig(path=str(path), data="tensor"), model=model):
        model(x).square().mean().backward()
    return str(path)


@pytest.mark.parametrize("keeps_mask", [True, False])
def test_rounding_may_decide_for_one_side_alone(tmp_path: Path, keeps_mask: bool) -> None:
    """The other makes no such choice: what float64 chooses is what both mean."""
    target = masked(tmp_path / "target", keeps_mask=keeps_mask)
    found = compare(target, masked(tmp_path / "baseline", keeps_mask=not keeps_mask))
    assert found.exit_code == 0, found.answer()
    assert len(notes_of(found)) == keeps_mask, "the recorded choice counts in the target"


def test_a_wrong_mask_is_no_near_tie(tmp_path: Path) -> None:
    target = masked(tmp_path / "target", WrongMask(), keeps_mask=True)
    found = compare(target, masked(tmp_path / "baseline", keeps_mask=False))
    assert found.exit_code == 1
    assert "Aten.gt.0.forward" in found.answer().split("result", maxsplit=1)[0], found.answer()
