"""What a step is for: its losses, its gradients, and the memory it leaves behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from aten_dump.analysis.flow.roots import roots_of
from tests.torch_features import needs_backward_seen

X = torch.tensor([1.0, 2.0, 3.0, 4.0])
Body = Callable[[], object]


def of_nothing(*, also: bool) -> Body:
    """Backward on what is made of memory that nothing wrote; `also` on a loss, as schedules that infer shapes do."""

    def run() -> None:
        (torch.empty(4) + X.clone().requires_grad_()).sum().backward()
        if also:
            X.clone().requires_grad_().mean().backward()

    return run


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


class Renamed(nn.Module):
    """A network of which parts, or their parameters, go by a name of their own."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.names = names
        for name in names:
            self.add_module(name, nn.Linear(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for name in self.names:
            x = self.get_submodule(name)(x).tanh()
        return x


# -- what is left behind -------------------------------------------------------------------------------------------


def called_back(memory: torch.Tensor, *, unseen: bool, factor: float = 2.0) -> Body:
    """A step in which a callback of a future writes memory, on this thread or on one where nothing is seen."""

    def run() -> None:
        memory.add_(X)
        future: torch.futures.Future[int] = torch.futures.Future()
        if not unseen:
            future.set_result(0)
        done = future.then(lambda _: memory.mul_(factor) if factor else None)
        if unseen:
            other = threading.Thread(target=future.set_result, args=(0,))
            other.start()
            other.join()
        done.wait()

    return run
