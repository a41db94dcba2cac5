"""What a step is for: its losses, its gradients, and the memory it leaves behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from aten_dump.analysis.flow.roots import roots_of
from tests.torch_features import needs_backward_seen

X = torch.tensor([1.0, 2.0, 3.0, 4.0])
Body = Callable[[], object]


# -- which they are ------------------------------------------------------------------------------------------------


def test_what_backward_was_called_on(record: Callable[..., Any]) -> None:
    def body() -> None:
        w = X.clone().requires_grad_()
        w.mean().backward()
        torch.autograd.grad(w.exp().sum(), w)
        torch.autograd.grad((w.sin().sum(), w.cos().sum()), [w])

    rank = record(body)
    made = [value.producer[0].op for value in roots_of(rank) if value.producer]
    assert made == [f"aten::{name}" for name in ("mean", "sum", "sum", "sum")]
    assert roots_of(record(lambda: X.sum())) == []


@needs_backward_seen
def test_what_the_function_backward_was_called_on(record: Callable[..., Any]) -> None:
    def body() -> None:
        w = X.clone().requires_grad_()
        torch.autograd.backward([w.sum(), w.prod()])

    made = [value.producer[0].op for value in roots_of(record(body)) if value.producer]
    assert made == ["aten::sum", "aten::prod"]


# -- losses --------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


# -- gradients -----------------------------------------------------------------------------------------------------


def step_of(model: nn.Module, *names: str) -> Body:
    """A step in which only some parameters get a gradient."""
    parameters = dict(model.named_parameters())

    def run() -> None:
        loss = torch.stack([parameters[name].exp().sum() for name in names]).sum()
        model.zero_grad()
        loss.backward()

    return run


class Wrapped(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)
