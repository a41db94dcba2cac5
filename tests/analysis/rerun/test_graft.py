"""`replay(..., substitute=...)`: what would have come out had one tensor been another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from aten_dump import ReplayError, replay
from tests.models import build, seed_all

A = torch.ops.aten


class Change(TorchDispatchMode):
    """Gives the n-th call of an op another result: the program that a graft is checked against."""

    def __init__(self, op: Any, n: int, result: torch.Tensor) -> None:
        super().__init__()
        self.op, self.n, self.result = op, n, result

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func is self.op:
            self.n -= 1
            if self.n == -1:
                return self.result.clone()
        return found


def forward(name: str) -> torch.Tensor:
    program = build(name)
    seed_all(7)
    return program.loss(program.model)


@pytest.mark.parametrize(
    ("model", "op", "n"), [("gpt2", "addmm", 3), ("bert", "addmm", 2), ("resnet", "convolution", 1)]
)
def test_a_graft_is_what_the_changed_program_computes(record: Callable[..., Any], model: str, op: str, n: int) -> None:
    """Dropout after the graft draws the numbers that it drew; BatchNorm's buffers are written again."""
    rank = record(lambda: forward(model))
    slot = f"Aten.{op}.{n}.forward.output.0"
    changed = rank.tensor(slot).tanh() * 1.5  # not linear: a norm that follows would take that back
    grafted = replay(rank, substitute={slot: changed})
    with Change(getattr(A, op).default, n, changed):
        expected = forward(model)
    assert grafted.complete
    loss = next(t for name, t in grafted.tensors.items() if name.startswith("Aten.nll_loss_forward"))
    assert torch.equal(loss, expected)
    assert not torch.equal(loss, rank.tensor("Aten.nll_loss_forward.0.forward.output.0"))
    later = [call for call in rank.calls if call.kind == "aten" and call.phase == "forward"]
    assert 0 < len(grafted.reran) < len(later), "calls before the graft are not run"


def test_a_write_through_an_old_view_carries_the_change(record: Callable[..., Any]) -> None:

    def body() -> None:
        x = torch.arange(12.0)
        buffer = torch.zeros(3, 8)
        half = buffer[:, :4]  # a view made before anything changes
        y = x * 2
        half.copy_(y.view(3, 4))
        buffer[:, 4:].add_(1)
        buffer.sum(dim=1)

    rank = record(body)
    slot = "Aten.mul.0.forward.output.0"
    found = replay(rank, substitute={slot: torch.full((12,), 5.0)}).tensors["Aten.sum.0.forward.output.0"]
    assert found.tolist() == [24.0, 24.0, 24.0]


def test_names_that_are_kept_and_calls_that_cannot_run(record: Callable[..., Any]) -> None:
    weight = nn.Parameter(torch.ones(3, 3))

    def body() -> None:
        h = F.linear(torch.ones(2, 3), weight)
        (torch.relu(h) * 2).sum()

    rank = record(body)
    keep = "Functional.linear.0.forward.output.0"
    grafted = replay(rank, substitute={"Aten.mm.0.forward.output.0": torch.full((2, 3), -1.0)}, keep=[keep])
    assert grafted.tensors[keep].tolist() == [[-1.0] * 3] * 2
    assert grafted.tensors["Aten.sum.0.forward.output.0"].item() == 0.0


def test_what_does_not_fit_is_refused(record: Callable[..., Any]) -> None:
    rank = record(lambda: torch.ones(3, requires_grad=True).exp().sum().backward())
    with pytest.raises(ReplayError, match=r"has shape \(3,\); the substitute has \(4,\)"):
        replay(rank, substitute={"Aten.exp.0.forward.output.0": torch.ones(4)})
    with pytest.raises(ReplayError, match="phase backward"):
        replay(rank, substitute={"Aten.mul.0.backward.output.0": torch.ones(3)})
    with pytest.raises(ReplayError, match="leave it out"):
        replay(rank, substitute={}, dtype=torch.float64)
