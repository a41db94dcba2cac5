"""An encoder with learned positions and layer norms that sees both ways; it says each token's tag."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..parts import HEADS, SIZE, Attention, summed
from ..tasks import Run, Task, sequences

WORDS, ROOM = 19, 32


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm1, self.norm2 = Attention(False, HEADS), nn.LayerNorm(SIZE), nn.LayerNorm(SIZE)
        self.wide, self.narrow = nn.Linear(SIZE, 2 * SIZE), nn.Linear(2 * SIZE, SIZE)

    def forward(self, x: Tensor, mask: Tensor | None, positions: Tensor) -> Tensor:
        x = self.norm1(x + self.attention(x, mask, positions))
        return self.norm2(x + self.narrow(F.gelu(self.wide(x))))  # at the boundary


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, SIZE), nn.Embedding(ROOM, SIZE)
        self.layers, self.head = nn.ModuleList([Layer(), Layer()]), nn.Linear(SIZE, WORDS)

    def first(self, tokens: Tensor, positions: Tensor | None = None, **inputs: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1])[None] if positions is None else positions
        return self.layers[0](
            self.words(tokens) + self.places(positions), seen(tokens, **inputs), positions
        )  # at the inputs, the positions

    def second(self, hidden: Tensor, **inputs: Tensor) -> Tensor:
        return self.head(self.layers[1](hidden, seen(hidden, **inputs), torch.arange(hidden.shape[1])[None]))

    def forward(self, tokens: Tensor, **inputs: Tensor) -> Tensor:
        return self.second(self.first(tokens, **inputs), **inputs)


def seen(x: Tensor, lengths: Tensor | None = None, mask: Tensor | None = None, **inputs: Tensor) -> Tensor | None:
    if mask is not None or lengths is None:
        return mask
    return (torch.arange(x.shape[1]) < lengths[:, None])[:, None, None]  # at the mask


def task(on: Run) -> Task:
    torch.manual_seed(5)
    can = frozenset(("pad", "heads", "pack", "fuse", "words"))
    return Task(Encoder(), sequences(WORDS), summed, can, sequences(WORDS, (8, 8, 8, 8)))
