"""Where one side has NaN that the other has not, what made the first is the cause, not what is a hair apart before it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from aten_dump import DumpConfig, DumpMode, compare
from aten_dump.analysis.comparison import Comparison

Loss = Callable[[Tensor, Tensor], Tensor]


def record(path: Path, loss: Loss, dtype: torch.dtype) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4)).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(6, 8, dtype=dtype), torch.randint(0, 4, (6,))
    with DumpMode(DumpConfig(path=path, data="tensor"), model=model) as dump:
        loss(model(x), y).backward()
        optimizer.step()
        dump.step()
    return path


def both_ways(tmp_path: Path, bad: Loss, good: Loss, dtype: torch.dtype) -> list[Comparison]:
    paths = record(tmp_path / "bad", bad, dtype), record(tmp_path / "good", good, dtype)
    return [compare(*paths), compare(*reversed(paths))]


def angle(h: Tensor, y: Tensor) -> Tensor:
    h = F.normalize(h, dim=-1)
    return (h * h.detach()).sum(-1).acos().mean() + F.cross_entropy(h, y)


def clamped_angle(h: Tensor, y: Tensor) -> Tensor:
    h = F.normalize(h, dim=-1)
    return (h * h.detach()).sum(-1).clamp(-1 + 1e-7, 1 - 1e-7).acos().mean() + F.cross_entropy(h, y)


def distance(h: Tensor, y: Tensor) -> Tensor:
    return (h - h.detach()).pow(2).sum().sqrt() + F.cross_entropy(h, y)


def distance_with_epsilon(h: Tensor, y: Tensor) -> Tensor:
    return (h - h.detach()).pow(2).sum().add(1e-16).sqrt() + F.cross_entropy(h, y)


def logarithm_of_softmax(h: Tensor, y: Tensor) -> Tensor:
    return -(h * 200).softmax(-1).log().gather(1, y[:, None]).mean()


def cross_entropy(h: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(h * 200, y)


def sum_of_exponentials(h: Tensor, y: Tensor) -> Tensor:
    return (h * 300).exp().sum(-1).log().mean()


def logsumexp(h: Tensor, y: Tensor) -> Tensor:
    return (h * 300).logsumexp(-1).mean()


# bad, good, dtype, the op that makes the first that the other has not
CASES = [
    (angle, clamped_angle, torch.float32, "aten::acos"),
    (angle, clamped_angle, torch.float64, "aten::acos"),
    (distance, distance_with_epsilon, torch.float64, "aten::div.Tensor"),
    (logarithm_of_softmax, cross_entropy, torch.float32, "aten::div.Tensor"),
    (sum_of_exponentials, logsumexp, torch.float32, "aten::exp"),
]


@pytest.mark.parametrize(("bad", "good", "dtype", "op"), CASES, ids=lambda one: getattr(one, "__name__", str(one)))
def test_the_first_nan_that_one_side_has_alone_is_the_cause(
    tmp_path: Path, bad: Loss, good: Loss, dtype: torch.dtype, op: str
) -> None:
    ours, theirs = both_ways(tmp_path, bad, good, dtype)
    for found, side, other in ((ours, "target", "baseline"), (theirs, "baseline", "target")):
        assert found.verdict == "different" and found.cause is not None
        assert (found.cause.kind, found.cause.row.place.op) == ("nonfinite", op)
        assert found.cause.text.startswith(f"the {side} made ")
        assert f"the {other} has none here" in found.cause.text
        assert f"in {bad.__name__}" in getattr(found.cause.row, side).source


def attention(h: Tensor, first: int) -> Tensor:
    hidden = torch.ones(len(h), len(h)).triu(first).bool()
    return ((h @ h.T).masked_fill(hidden, -math.inf).softmax(-1) @ h).mean()


def test_what_the_nan_came_of_stays_the_cause_where_it_shows(tmp_path: Path) -> None:
    bad, good = (lambda h, y: attention(h, 0)), (lambda h, y: attention(h, 1))
    for found in both_ways(tmp_path, bad, good, torch.float32):
        assert found.cause is not None and found.cause.row.place.op == "aten::triu"
        assert "the first NaN or Inf that one side has alone is at Aten._softmax.0.forward" in found.answer()


def test_nan_that_both_sides_have_is_no_cause(tmp_path: Path) -> None:
    found, _ = both_ways(tmp_path, distance, distance, torch.float32)
    assert found.verdict == "same"


def test_no_result_with_nan_is_said_to_be_an_error_of_nothing(tmp_path: Path) -> None:
    """The error of the finite elements alone is 0 where none is left."""
    answer = both_ways(tmp_path, distance, distance_with_epsilon, torch.float32)[0].answer()
    behind = answer.partition("How the error travels:")[2].splitlines()
    assert any(" NaN or Inf (" in line for line in behind), answer
    assert not any(" 0 (" in line for line in behind), answer
