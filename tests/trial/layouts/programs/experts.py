"""A decoder whose inner layers are experts: a router sends each token to two of four."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..parts import SIZE, Gated, summed
from ..tasks import Run, Task, sequences
from .decoder import CAN, WORDS, Decoder


class Experts(nn.Module):
    def __init__(self, many: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(SIZE, many, bias=False)
        self.experts = nn.ModuleList([Gated(12) for _ in range(many)])

    def chosen(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return two experts of each token, and their weights."""
        weights, experts = self.router(x).softmax(-1).topk(2, -1)
        return experts, weights / weights.sum(-1, keepdim=True)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        experts, weights = self.chosen(flat)
        found = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            tokens, slot = torch.where(experts == number)
            found = found.index_add(0, tokens, expert(flat[tokens]) * weights[tokens, slot, None])  # at the boundary
        return found.view_as(x)  # at the boundary


def task(on: Run) -> Task:
    torch.manual_seed(4)
    model = Decoder(Experts)
    return Task(model, sequences(WORDS), summed, CAN | {"experts"}, sequences(WORDS, (8, 8, 8, 8)))
