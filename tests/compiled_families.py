"""Families of models to compile, each in few lines: a linear attention, a recommender, a graph attention, an attentive U-Net
and a recognizer of speech. None of their numbers is random."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class TimeMix(nn.Module):
    """Mixes each moment with the one before, then a linear attention that decays by channel, and a squared ReLU."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.mix, self.decay = nn.Parameter(torch.linspace(0.2, 0.8, width)), nn.Parameter(torch.linspace(-2, 1, width))
        self.bonus = nn.Parameter(torch.linspace(-0.5, 0.5, width))
        self.k, self.v, self.r = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.up, self.down, self.norm = nn.Linear(width, 20), nn.Linear(20, width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        h = torch.lerp(F.pad(h, (0, 0, 1, -1)), h, self.mix)
        k, v, r = self.k(h), self.v(h), torch.sigmoid(self.r(h))
        far = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
        decay = -torch.exp(self.decay) * (far - 1).clamp(min=0)[..., None]
        score = torch.where((far == 0)[..., None], self.bonus, decay) + k[:, None]
        weight = torch.exp(score - score.amax((1, 2), keepdim=True)).masked_fill((far < 0)[..., None], 0.0)
        x = x + r * (weight * v[:, None]).sum(2) / weight.sum(2)
        found: Tensor = x + self.down(F.relu(self.up(self.norm(x))).square())
        return found


class Crossing(nn.Module):
    """Bags of ids of unequal lengths and dense fields, crossed with themselves, beside a deep part with a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(15, 6, mode=mode) for mode in ("sum", "mean"))
        self.crosses = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.deep = nn.Sequential(nn.Linear(16, 10), nn.BatchNorm1d(10), nn.PReLU(), nn.Linear(10, 4))
        self.out = nn.Linear(20, 1)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        starts = torch.arange(dense.shape[0]) * 3
        x = first = torch.cat([dense.log1p(), *(bag(ids.flatten(), starts) for bag in self.bags)], 1)
        for cross in self.crosses:
            x = first * cross(x) + x
        found: Tensor = self.out(torch.cat([x, self.deep(first)], 1)).squeeze(1)
        return found


class GraphAttention(nn.Module):
    """Attention along edges: a softmax over the edges that end at a node, by scattered maxima and sums."""

    edges: Tensor

    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.out = heads, nn.Linear(10, 3)
        self.project = nn.Linear(8, 10, bias=False)
        self.here, self.there = nn.Parameter(torch.randn(heads, 5)), nn.Parameter(torch.randn(heads, 5))
        self.register_buffer("edges", torch.tensor([[0, 1, 2, 3, 4, 5, 0, 2, 1], [1, 2, 3, 4, 5, 0, 3, 5, 5]]))

    def forward(self, x: Tensor) -> Tensor:
        source, target = self.edges
        h = self.project(x).unflatten(1, (self.heads, 5))
        score = F.leaky_relu((h * self.here).sum(-1)[source] + (h * self.there).sum(-1)[target], 0.2)
        index = target[:, None].expand_as(score)
        most = (
            torch.full((x.shape[0], self.heads), -1e30).to(score.dtype).scatter_reduce(0, index, score.detach(), "amax")
        )
        weight = torch.exp(score - most[target])
        total = torch.zeros_like(most).index_add(0, target, weight)
        sent = (weight / total[target])[..., None] * h[source]
        found: Tensor = self.out(F.elu(torch.zeros_like(h).index_add(0, target, sent)).flatten(1))
        return found


class AttentiveUNet(nn.Module):
    """Strided convolutions down, attention to words in the middle, transposed convolutions up, beside what was skipped."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.down = nn.Conv2d(2, 6, 3, padding=1), nn.Conv2d(6, 8, 4, stride=2, padding=1)
        self.norm, self.low_norm = nn.GroupNorm(3, 6), nn.GroupNorm(2, 8)
        self.q, self.kv, self.proj = nn.Linear(8, 8), nn.Linear(5, 16), nn.Linear(8, 8)
        self.up, self.last = nn.ConvTranspose2d(8, 6, 4, stride=2, padding=1), nn.Conv2d(12, 2, 1)

    def forward(self, x: Tensor, words: Tensor) -> Tensor:
        skipped = F.mish(self.norm(self.first(x)))
        low = F.silu(self.low_norm(self.down(skipped)))
        tokens = low.flatten(2).transpose(1, 2)
        k, v = self.kv(words).chunk(2, -1)
        mixed = (self.q(tokens) @ k.transpose(1, 2) * 8**-0.5).softmax(-1) @ v
        low = low + self.proj(mixed).transpose(1, 2).unflatten(2, low.shape[2:])
        found: Tensor = self.last(torch.cat([self.up(low), skipped], 1))
        return found


class Recognizer(nn.Module):
    """Frames of sound through a gated depthwise convolution with a batch norm, half a layer before and half behind."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.first, self.between = (
            nn.Linear(7, width),
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 18), nn.SiLU(), nn.Linear(18, width)),
        )
        self.gate, self.depth = nn.Conv1d(width, 2 * width, 1), nn.Conv1d(width, width, 3, padding=1, groups=width)
        self.norm, self.point, self.out = nn.BatchNorm1d(width), nn.Conv1d(width, width, 1), nn.Linear(width, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        h = h + 0.5 * self.between(h)
        c = F.glu(self.gate(h.transpose(1, 2)), 1)
        h = h + self.point(F.hardswish(self.norm(self.depth(c)))).transpose(1, 2)
        found: Tensor = self.out(F.layer_norm(h + 0.5 * self.between(h), (h.shape[-1],))).log_softmax(-1)
        return found
