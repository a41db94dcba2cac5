"""An encoder reads a text, a decoder with attention to it says another."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..parts import HEADS, SIZE, Attention, Gated, Norm, causal, summed
from ..tasks import Run, Task, sequences
from .encoder import Layer, seen

WORDS, READ = 21, (6, 4, 5, 6)


class Crossed(Attention):
    def forward(self, x: Tensor, mask: Tensor | None, memory: Tensor, cache: Any = None) -> Tensor:
        return self.attended(self.q(x), self.k(memory), self.v(memory), mask, memory)


class Speaking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2, self.norm3 = Norm(), Norm(), Norm()
        self.attention, self.crossed, self.inner = Attention(), Crossed(False, HEADS), Gated()

    def forward(self, x: Tensor, mask: Tensor | None, positions: Tensor, memory: tuple[Any, ...]) -> Tensor:
        read, readable, cache = memory
        x = x + self.attention(self.norm1(x), mask, positions, cache)
        x = x + self.crossed(self.norm2(x), readable, read)
        return x + self.inner(self.norm3(x))


class Translator(nn.Module):
    window: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, SIZE), nn.Embedding(8, SIZE)
        self.reading, self.layers = Layer(), nn.ModuleList([Speaking(), Speaking()])
        self.norm, self.head = Norm(), nn.Linear(SIZE, WORDS, bias=False)

    def context(self, source: Tensor, source_lengths: Tensor | None = None, **inputs: Tensor) -> dict[str, Any]:
        places = torch.arange(source.shape[1])[None]
        readable = seen(source, source_lengths)
        return {
            "read": self.reading(self.words(source) + self.places(places), readable, places),
            "readable": readable,
        }  # at the inputs

    def first(self, source: Tensor, source_lengths: Tensor | None = None, **inputs: Tensor) -> Tensor:
        return self.context(source, source_lengths)["read"]

    def second(self, hidden: Tensor, tokens: Tensor, source_lengths: Tensor | None = None, **inputs: Tensor) -> Tensor:
        return self.decode(tokens, torch.arange(tokens.shape[1])[None], None, hidden, seen(hidden, source_lengths))

    def forward(self, **inputs: Tensor) -> Tensor:
        return self.second(self.first(**inputs), **inputs)

    def decode(
        self, tokens: Tensor, positions: Tensor, caches: list[Any] | None, read: Tensor, readable: Tensor | None
    ) -> Tensor:
        x = self.words(tokens)  # at the inputs
        mask = None if caches else causal(positions, self.window)
        for layer, cache in zip(self.layers, caches or [None, None], strict=True):
            x = layer(x, mask, positions, (read, readable, cache))
        return self.head(self.norm(F.dropout(x, 0.0)))


def task(on: Run) -> Task:
    torch.manual_seed(6)
    found = Task(
        Translator(),
        sequences(WORDS),
        summed,
        frozenset(("pad", "cache", "window", "decode", "fuse", "words", "tie", "heads")),
        sequences(WORDS, (8, 8, 8, 8)),
    )
    for batch in (*found.batches, *found.equal):
        lengths = torch.tensor(READ)
        inside = torch.arange(6) < lengths[:, None]
        batch.inputs.update(source=torch.randint(1, WORDS, (4, 6)) * inside, source_lengths=lengths)
    return found
