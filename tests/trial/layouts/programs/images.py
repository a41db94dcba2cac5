"""A convolutional net with frozen batch norms, in the way of fine-tuned detectors; it says a class of each image."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..parts import summed
from ..tasks import UNCOUNTED, Batch, Run, Task


class Stage(nn.Module):
    def __init__(self, enter: int, leave: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(enter, leave, 3, stride=2, padding=1), nn.BatchNorm2d(leave)
        self.conv2, self.norm2 = nn.Conv2d(leave, leave, 3, padding=1, bias=False), nn.BatchNorm2d(leave)
        for norm in (self.norm, self.norm2):
            norm.running_mean.normal_(0.0, 0.2), norm.running_var.uniform_(0.5, 1.5)
            norm.weight.data.normal_(1.0, 0.2), norm.bias.data.normal_(0.0, 0.2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.conv(x)))  # at the inputs
        return x + F.relu(self.norm2(self.conv2(x)))  # at the boundary


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stage1, self.stage2 = Stage(3, 6), Stage(6, 8)
        self.wide, self.head = nn.Linear(32, 12), nn.Linear(12, 5)
        self.eval()

    def first(self, images: Tensor) -> Tensor:
        return self.stage1(images)

    def second(self, hidden: Tensor, **inputs: Tensor) -> Tensor:
        return self.head(F.relu(self.wide(self.stage2(hidden).flatten(1))))

    def forward(self, images: Tensor) -> Tensor:
        return self.second(self.first(images))


def batches(counted: tuple[bool, ...] = (True, True, True, True)) -> list[Batch]:
    labels = [torch.where(torch.tensor(counted), torch.randint(0, 5, (4,)), UNCOUNTED) for _ in range(2)]
    return [Batch({"images": torch.randn(4, 3, 8, 8)}, label) for label in labels]


def task(on: Run) -> Task:
    torch.manual_seed(9)
    return Task(Images(), batches((True, False, True, True)), summed, frozenset(("convolutions",)), batches())
