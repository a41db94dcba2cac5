"""A decoder with rotary positions, grouped keys, RMS norms and gated layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..parts import SIZE, Attention, Gated, Norm, causal, summed
from ..tasks import Run, Task, sequences

WORDS = 23


class Block(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.norm1, self.norm2, self.attention, self.inner = Norm(), Norm(), Attention(), inner

    def forward(self, x: Tensor, mask: Tensor | None, positions: Tensor, cache: Any = None) -> Tensor:
        x = x + self.attention(self.norm1(x), mask, positions, cache)
        return x + self.inner(self.norm2(x))  # at the boundary


class Decoder(nn.Module):
    window: int | None = None

    def __init__(self, inner: Callable[[], nn.Module] = Gated) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, SIZE)
        self.layers = nn.ModuleList([Block(inner()), Block(inner())])
        self.norm, self.head = Norm(), nn.Linear(SIZE, WORDS, bias=False)

    def context(self, **inputs: Tensor) -> dict[str, Tensor]:
        return {}

    def first(
        self, tokens: Tensor, positions: Tensor | None = None, mask: Tensor | None = None, **inputs: Tensor
    ) -> Tensor:
        return self.layer(0, self.words(tokens), positions, mask)  # at the inputs

    def second(
        self, hidden: Tensor, positions: Tensor | None = None, mask: Tensor | None = None, **inputs: Tensor
    ) -> Tensor:
        return self.head(self.norm(self.layer(1, hidden, positions, mask)))

    def layer(self, at: int, x: Tensor, positions: Tensor | None, mask: Tensor | None) -> Tensor:
        positions = torch.arange(x.shape[1])[None] if positions is None else positions
        return self.layers[at](x, causal(positions, self.window) if mask is None else mask, positions)

    def forward(self, tokens: Tensor, **inputs: Tensor) -> Tensor:
        return self.second(self.first(tokens, **inputs), **inputs)

    def decode(self, tokens: Tensor, positions: Tensor, caches: list[Any]) -> Tensor:
        """Read on, with what the caches hold."""
        x = self.words(tokens)  # at the inputs
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, None, positions, cache)
        return self.head(self.norm(x))


CAN = frozenset(("pad", "cache", "heads", "window", "decode", "pack", "rotary", "fuse", "words", "tie"))


def task(on: Run) -> Task:
    torch.manual_seed(3)
    return Task(Decoder(), sequences(WORDS), summed, CAN, sequences(WORDS, (8, 8, 8, 8)))
