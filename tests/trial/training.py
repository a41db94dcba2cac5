"""A program under trial: a model, its batches, and a training loop with everything that a slip may touch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

Batch = dict[str, Tensor]
STEPS = 2


@dataclass
class Training:
    """Two steps of a program; slips and honest variants change fields of it before it runs."""

    model: nn.Module
    batches: list[Batch]  # one for each step
    loss: Callable[[Any, Batch], Tensor]
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW
    settings: dict[str, Any] = field(default_factory=lambda: {"lr": 3e-3, "foreach": True})
    clip: float | None = None
    clears_gradients: bool = True
    decay: float = 1.0  # of the learning rate, after each step
    factor: float = 1.0  # of the loss, before backward
    context: Callable[[], AbstractContextManager[Any]] = nullcontext
    forward: Callable[[], AbstractContextManager[Any]] = nullcontext  # entered around each forward pass
    loader: Callable[[list[Batch]], Iterable[Batch]] = iter
    after_step: Callable[[Any], None] = lambda model: None
    before_step: Callable[[Training, int], None] = lambda training, number: None
    threads: int = 1

    def run(self, end_step: Callable[[], None]) -> list[Tensor]:
        """Train; return losses and gradients."""
        torch.manual_seed(99)
        optimizer = self.make_optimizer()
        ends = []
        for number, batch in enumerate(self.loader(self.batches)):
            self.before_step(self, number)
            ends += self.step(optimizer, batch)
            end_step()
        return ends

    def left(self) -> list[Tensor]:
        """Return what is left in the model."""
        return [t.detach().clone() for t in self.model.state_dict().values() if t.is_floating_point()]

    def make_optimizer(self) -> Any:
        return self.optimizer([p for p in self.model.parameters() if p.requires_grad], **self.settings)

    def step(self, optimizer: Any, batch: Batch) -> list[Tensor]:
        with self.context(), self.forward():
            loss = self.loss(self.model, batch)
        return [loss.detach().clone(), *self.descend(optimizer, loss, self.model.parameters())]

    def descend(self, optimizer: Any, loss: Tensor, parameters: Iterable[nn.Parameter]) -> list[Tensor]:
        (loss if self.factor == 1.0 else loss * self.factor).backward()
        with_gradient = [p for p in parameters if p.grad is not None]
        if self.clip is not None:
            nn.utils.clip_grad_norm_(with_gradient, self.clip)
        gradients = [p.grad.to_dense().clone() for p in with_gradient if p.grad is not None]
        optimizer.step()
        if self.decay != 1.0:
            for group in optimizer.param_groups:
                group["lr"] *= self.decay
        self.after_step(self.model)
        if self.clears_gradients:
            optimizer.zero_grad()
        return gradients


@dataclass(frozen=True)
class Program:
    """How to build a program."""

    name: str
    family: str
    build: Callable[[], Training]
    half: int = 1  # 1: written before the analysis was changed, 2: after

    def on(self, device: str) -> Training:
        """Build it on the CPU, so that numbers drawn are the same everywhere, and move it."""
        training = self.build()
        if device != "cpu":
            training.model.to(device)
            training.batches = [{name: t.to(device) for name, t in batch.items()} for batch in training.batches]
        return training

    def __str__(self) -> str:
        return self.name
