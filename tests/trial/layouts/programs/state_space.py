"""A language model of two selective state-space layers, each behind a short causal convolution."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..parts import SIZE, Norm, summed
from ..tasks import Run, Task, sequences

WORDS, STATE, WIDTH = 18, 4, 3


class Selective(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.enter, self.leave = Norm(), nn.Linear(SIZE, 2 * SIZE), nn.Linear(SIZE, SIZE)
        self.mix = nn.Conv1d(SIZE, SIZE, WIDTH, groups=SIZE)
        self.pace, self.choose = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, 2 * STATE, bias=False)
        self.decay = nn.Parameter(torch.randn(SIZE, STATE))

    def forward(self, x: Tensor, state: Any = None) -> Tensor:
        u, gate = self.enter(self.norm(x)).chunk(2, -1)
        u = u.transpose(1, 2)
        tail = F.pad(u, (WIDTH - 1, 0)) if state is None else state.widened(u, WIDTH - 1)
        u = F.silu(self.mix(tail)).transpose(1, 2)  # at the state
        pace = F.softplus(self.pace(u))[..., None]
        enters, leaves = self.choose(u)[:, :, None].chunk(2, -1)
        kept, fed = torch.exp(-pace * self.decay.exp()), pace * enters * u[..., None]
        h = torch.zeros_like(kept[:, 0]) if state is None else state.before(kept[None, :, 0])[0]
        found = []
        for at in range(x.shape[1]):
            h = kept[:, at] * h + fed[:, at]  # at the state
            found.append((h * leaves[:, at]).sum(-1))
        if state is not None:
            state.left(h[None])
        return x + self.leave(torch.stack(found, 1) * F.silu(gate))  # at the boundary


class StateSpace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.layers = nn.Embedding(WORDS, SIZE), nn.ModuleList([Selective(), Selective()])
        self.norm, self.head = Norm(), nn.Linear(SIZE, WORDS, bias=False)

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
    torch.manual_seed(8)
    can = frozenset(("pad", "state", "decode", "words", "tie"))
    return Task(StateSpace(), sequences(WORDS), summed, can, sequences(WORDS, (8, 8, 8, 8)))
