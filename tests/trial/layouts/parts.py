"""Layers that several programs share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SIZE, HEADS, KEYS = 16, 4, 2


class Norm(nn.Module):
    def __init__(self, size: int = SIZE) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + 0.2 * torch.randn(size))

    def forward(self, x: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * self.weight


def turned(x: Tensor, positions: Tensor) -> Tensor:
    """Rotate f[rows, heads, n, size] by its positions i[rows or 1, n], in halves."""
    half = x.shape[-1] // 2
    angles = positions[:, None, :, None] * torch.logspace(0, -1, half, dtype=x.dtype)  # at the positions
    left, right = x.chunk(2, -1)
    return torch.cat(
        [left * angles.cos() - right * angles.sin(), right * angles.cos() + left * angles.sin()], -1
    )  # at the positions


def causal(positions: Tensor, window: int | None = None) -> Tensor:
    """Return who sees whom, b[rows or 1, 1, n, n]."""
    apart = positions[:, :, None] - positions[:, None, :]
    seen = apart >= 0
    return (seen & (apart < window) if window else seen)[:, None]  # at the mask


class Attention(nn.Module):
    def __init__(self, rotary: bool = True, keys: int = KEYS) -> None:
        super().__init__()
        self.rotary, self.heads, self.keys = rotary, HEADS, keys
        self.q, self.out = nn.Linear(SIZE, SIZE, bias=False), nn.Linear(SIZE, SIZE, bias=False)
        self.k, self.v = (nn.Linear(SIZE, keys * SIZE // HEADS, bias=False) for _ in range(2))

    def forward(self, x: Tensor, mask: Tensor | None, positions: Tensor, cache: Any = None) -> Tensor:
        return self.attended(self.q(x), self.k(x), self.v(x), mask, positions, cache)

    def attended(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, positions: Tensor, cache: Any = None
    ) -> Tensor:
        q, k, v = (t.unflatten(-1, (-1, SIZE // HEADS)).transpose(1, 2) for t in (q, k, v))
        if self.rotary:
            q, k = turned(q, positions), turned(k, positions)
        if cache is not None:
            k, v, mask = cache.add(k, v, positions)
        k, v = (t.repeat_interleave(self.heads // self.keys, 1) for t in (k, v))
        return self.out(
            F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2)
        )  # at the mask, the keys


class Gated(nn.Module):
    def __init__(self, inner: int = 24) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(SIZE, inner, bias=False), nn.Linear(SIZE, inner, bias=False)
        self.down = nn.Linear(inner, SIZE, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))  # at the boundary


def summed(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the summed cross entropy of what counts."""
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="sum")  # at the labels
