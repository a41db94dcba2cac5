"""A recommender: a user's history is averaged, meets an item and numbers, and three questions are answered."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..parts import SIZE
from ..tasks import UNCOUNTED, Batch, Run, Task

ITEMS = 20


class Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.user = nn.Embedding(ITEMS, SIZE), nn.Linear(SIZE, SIZE)
        self.item, self.dense = nn.Linear(SIZE, SIZE), nn.Linear(4, SIZE)
        self.norm, self.wide, self.head = nn.LayerNorm(SIZE), nn.Linear(3 * SIZE, SIZE), nn.Linear(SIZE, 3)

    def first(self, tokens: Tensor, item: Tensor, numbers: Tensor, lengths: Tensor | None = None) -> Tensor:
        found = self.words(tokens)  # at the inputs
        if lengths is not None:
            inside = torch.arange(tokens.shape[1]) < lengths[:, None]  # at the mask
            user = (found * inside[..., None]).sum(1) / lengths[:, None]  # at the mask
        else:
            user = found.mean(1)  # at the mask
        return torch.cat(
            [self.user(user), self.item(self.words(item)), self.dense(numbers)], -1
        )  # at the inputs, the boundary

    def second(self, hidden: Tensor, **inputs: Tensor) -> Tensor:
        return self.head(self.norm(F.relu(self.wide(hidden))))

    def forward(self, **inputs: Tensor) -> Tensor:
        return self.second(self.first(**inputs), **inputs)


def summed(scores: Tensor, labels: Tensor) -> Tensor:
    counted = labels != UNCOUNTED
    losses = F.binary_cross_entropy_with_logits(
        scores, labels.clamp_min(0).to(scores.dtype), reduction="none"
    )  # at the labels
    return (losses * counted).sum()


def batches(counted: tuple[int, ...]) -> list[Batch]:
    found = []
    for _ in range(2):
        lengths = torch.tensor((8, 5, 7, 3))
        tokens = torch.randint(1, ITEMS, (4, 8)) * (torch.arange(8) < lengths[:, None])
        inputs = {"tokens": tokens, "item": torch.randint(1, ITEMS, (4,)), "numbers": torch.randn(4, 4)}
        answered = torch.arange(3) < torch.tensor(counted)[:, None]
        labels = torch.where(answered, torch.randint(0, 2, (4, 3)), UNCOUNTED)
        found.append(Batch({**inputs, "lengths": lengths}, labels))
    return found


def task(on: Run) -> Task:
    torch.manual_seed(10)
    return Task(
        Recommender(), batches((3, 1, 2, 3)), summed, frozenset(("pad", "pooled", "words")), batches((3, 3, 3, 3))
    )
