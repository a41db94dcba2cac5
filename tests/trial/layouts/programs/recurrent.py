"""A language model of two GRU layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..parts import SIZE, summed
from ..tasks import Run, Task, sequences

WORDS = 17


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(SIZE, SIZE, batch_first=True)

    def forward(self, x: Tensor, state: Any = None) -> Tensor:
        if state is None:
            return x + self.gru(x)[0]  # at the boundary
        y, after = self.gru(x, state.before(x[None, :, 0]))  # at the state
        state.left(after)
        return x + y


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.layers = nn.Embedding(WORDS, SIZE), nn.ModuleList([Layer(), Layer()])
        self.norm, self.head = nn.LayerNorm(SIZE), nn.Linear(SIZE, WORDS)

    def context(self, **inputs: Tensor) -> dict[str, Tensor]:
        return {}

    def first(self, tokens: Tensor, **inputs: Tensor) -> Tensor:
        return self.layers[0](self.words(tokens))  # at the inputs

    def second(self, hidden: Tensor, **inputs: Tensor) -> Tensor:
        return self.head(self.norm(self.layers[1](hidden)))

    def forward(self, tokens: Tensor, **inputs: Tensor) -> Tensor:
        return self.second(self.first(tokens, **inputs), **inputs)

    def decode(self, tokens: Tensor, positions: Tensor, states: list[Any]) -> Tensor:
        x = self.words(tokens)  # at the inputs
        for layer, state in zip(self.layers, states, strict=True):
            x = layer(x, state)
        return self.head(self.norm(x))


def task(on: Run) -> Task:
    torch.manual_seed(7)
    can = frozenset(("pad", "state", "decode", "words", "tie", "gru"))
    return Task(Recurrent(), sequences(WORDS), summed, can, sequences(WORDS, (8, 8, 8, 8)))
