"""What a cause says beside its numbers: a ratio, hyperparameters, modes, its side, its lines, and what to run next."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn
from torch.nn import functional as F

from aten_dump import DumpConfig, DumpMode, compare
from aten_dump.analysis.comparison import Comparison
from aten_dump.cli.main import main


class Square(torch.autograd.Function):
    factor = 2

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * x * Square.factor


def unit(x: Tensor, power: float = 2.0) -> Tensor:
    return x / x.abs().pow(power).sum(-1, keepdim=True)


class Net(nn.Module):
    def __init__(self, **changes: Any) -> None:
        super().__init__()
        self.changes = changes
        self.a, self.drop, self.b = nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = Square.apply(unit(self.a(x)))
        h = unit(self.drop(h), self.changes.get("power", 2.0))
        return self.b(h) * self.changes.get("scale", 1.0)


def record(path: Path, *, factor: int = 2, training: bool = False, optimizer: Any = None, **changes: Any) -> Path:
    torch.manual_seed(0)
    Square.factor = factor
    model = Net(**changes).eval()
    model.drop.train(training)
    stepped = torch.optim.AdamW(model.parameters(), **{"lr": 1e-3, "weight_decay": 0.0946, **(optimizer or {})})
    x, y = torch.randn(6, 8), torch.randint(0, 4, (6,))
    with DumpMode(DumpConfig(path=path, data="tensor"), model=model) as dump:
        F.cross_entropy(model(x), y).backward()
        stepped.step()
        dump.step()
    return path


def differing(tmp_path: Path, **changes: Any) -> Comparison:
    found = compare(record(tmp_path / "t", **changes), record(tmp_path / "b"))
    assert found.verdict == "different" and found.cause is not None
    return found


def test_an_exact_ratio_and_the_line_in_a_function_s_backward(tmp_path: Path) -> None:
    found = differing(tmp_path, factor=4)
    assert "The target is exactly 2 times the baseline." in found.answer()
    assert found.cause is not None and found.cause.row.place.source.endswith(" in Square.backward")


@pytest.mark.parametrize("optimizer", [{"weight_decay": 0.01}, {"weight_decay": 0.01, "foreach": False}], ids=str)
def test_a_weight_decay_is_read_from_the_number_that_it_made(tmp_path: Path, optimizer: dict[str, Any]) -> None:
    answer = differing(tmp_path, optimizer=optimizer).answer()
    assert "0.99999 is 1 - lr x weight_decay of lr 0.001, weight_decay 0.01; in the baseline of lr 0.001, " in answer
    assert "the optimizers were set otherwise: AdamW group 0: weight_decay 0.01, in the baseline 0.0946" in answer


def test_the_mode_of_the_module_is_named(tmp_path: Path) -> None:
    answer = differing(tmp_path, training=True).answer()
    assert "The module drop has training=True there, on the other side training=False." in answer
    assert "in training in the target, in evaluation in the baseline: drop" in answer


def test_the_caller_is_named_where_a_helper_has_several(tmp_path: Path) -> None:
    found = differing(tmp_path, power=3.0)
    assert found.cause is not None
    source = found.cause.row.place.source
    assert " in unit, called from " in source and source.endswith(" in Net.forward")


def test_the_side_is_named_where_only_one_has_the_call(tmp_path: Path) -> None:
    ours, theirs = record(tmp_path / "t", training=True), record(tmp_path / "b")
    assert f"First cause: {_first(compare(ours, theirs))} of the target, " in compare(ours, theirs).answer()
    assert f"First cause: {_first(compare(theirs, ours))} of the baseline, " in compare(theirs, ours).answer()


def _first(found: Comparison) -> str:
    assert found.cause is not None
    return found.cause.row.place.call


def test_every_answer_ends_with_a_command_that_runs(tmp_path: Path) -> None:
    ours, theirs = record(tmp_path / "with space", training=True), record(tmp_path / "b")
    for pair in ((ours, theirs), (theirs, ours), (theirs, theirs)):
        last = compare(*pair).answer().splitlines()[-1]
        assert last.startswith("Next: aten-dump ")
        arguments = shlex.split(last.removeprefix("Next: aten-dump "))
        if arguments[0] == "report":
            arguments += ["--output", str(tmp_path / "report.html")]
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 0, result.output


def test_gradients_that_are_recorded_on_one_side_alone(tmp_path: Path) -> None:
    def run(path: Path, grad: bool) -> Path:
        torch.manual_seed(0)
        a, b = nn.Linear(4, 4), nn.Linear(4, 4)
        with DumpMode(DumpConfig(path=path, data="tensor"), model=nn.ModuleList([a, b])):
            with torch.set_grad_enabled(grad):
                h = a(torch.ones(2, 4)).tanh()
            b(h).sum().backward()
        return path

    answer = compare(run(tmp_path / "t", False), run(tmp_path / "b", True)).answer()
    assert "grad_enabled differs: at " in answer and "it is False, in the baseline True" in answer
