"""Programs that are a sequence, which two ranks share: the first half of the layers on one, the second on the other."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from aten_dump import DumpConfig, DumpMode

from .training import STEPS


class Block(nn.Module):
    """Attention over the positions, and a feed-forward layer."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        x = x + self.out(torch.softmax(q @ k.transpose(1, 2) / q.shape[-1] ** 0.5, -1) @ v)
        return x + self.mlp(self.norm2(x))


def perceptron() -> tuple[nn.Sequential, Callable[[], tuple[Tensor, Tensor]]]:
    sizes = (10, 24, 24, 20, 6)
    layers = [nn.Sequential(nn.Linear(one, two), nn.Tanh()) for one, two in pairwise(sizes)]
    return nn.Sequential(*layers), lambda: (torch.randn(8, 10), torch.randn(8, 6))


def convolutions() -> tuple[nn.Sequential, Callable[[], tuple[Tensor, Tensor]]]:
    layers = [
        nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU()),
        nn.Sequential(nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.SiLU()),
        nn.Sequential(nn.Conv2d(8, 12, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)),
        nn.Sequential(nn.Flatten(), nn.Linear(48, 5)),
    ]
    return nn.Sequential(*layers), lambda: (torch.randn(8, 3, 8, 8), torch.randn(8, 5))


def transformer() -> tuple[nn.Sequential, Callable[[], tuple[Tensor, Tensor]]]:
    return nn.Sequential(*(Block() for _ in range(4))), lambda: (torch.randn(8, 5, 12), torch.randn(8, 5, 12))


PIPELINES = {"perceptron": perceptron, "convolutions": convolutions, "transformer": transformer}


def _built(name: str) -> tuple[nn.Sequential, list[tuple[Tensor, Tensor]], Callable[..., torch.optim.Optimizer]]:
    torch.manual_seed(81)
    model, draw = PIPELINES[name]()
    return model, [draw() for _ in range(STEPS)], lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def run_whole(path: Path, name: str) -> None:
    """Record the program in one process."""
    model, batches, optimizing = _built(name)
    optimizer = optimizing(model.parameters())
    with DumpMode(DumpConfig(path=str(path), data="tensor"), model=model) as dump:
        for x, y in batches:
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            dump.step()


def run_pipeline(
    path: Path, name: str, layout: str, rank: int, device: AbstractContextManager[Any] | None, bug: str
) -> None:
    """Record a rank's half of the program; with a bug its gradients are not divided, or its data are in another order."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    model, batches, optimizing = _built(name)
    half = model[2:] if rank else model[:2]
    optimizer = optimizing(half.parameters())
    stage = PipelineStage(half, rank, 2, torch.device("cpu"))
    kind, parts = (ScheduleGPipe, 2) if layout == "gpipe" else (Schedule1F1B, 4)
    schedule = kind(stage, parts, loss_fn=nn.functional.mse_loss, scale_grads=bug != "gradients")
    if bug == "data":
        batches = [(x, y.roll(1, 0)) for x, y in batches]
    with device or nullcontext(), DumpMode(DumpConfig(path=str(path), data="tensor"), model=half) as dump:
        for x, y in batches:
            schedule.step(target=y) if rank else schedule.step(x)
            optimizer.step()
            optimizer.zero_grad()
            dump.step()
