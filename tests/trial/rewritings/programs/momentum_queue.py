"""Contrast against a queue of earlier keys, which a slowly following encoder makes (MoCo)."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..running import Run

QUEUE, BATCH, SIZE = 12, 4, 5


class Encoder(nn.Module):
    def __init__(self, on: Run) -> None:
        super().__init__()
        self.on = on
        self.first, self.second = nn.Conv1d(2, 6, 3, padding=1), nn.Conv1d(6, 6, 3, stride=2, padding=1)
        self.out = nn.Linear(6, SIZE)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(F.relu(self.convolved(x)))
        x = x.amax(-1) if self.on.bug("largest for mean") else x.mean(-1)
        x = self.out(x)
        if self.on.bug("not normalized"):
            return x
        if self.on.way("normalized by hand"):
            return x * x.pow(2).sum(1, keepdim=True).clamp(min=1e-24).rsqrt()  # at not normalized
        return F.normalize(x, dim=0 if self.on.bug("normalized over the batch") else 1)  # at not normalized

    def convolved(self, x: Tensor) -> Tensor:
        if self.on.way("convolution as product"):
            windows = F.pad(x, (1, 1)).unfold(2, 3, 1)
            return torch.einsum("bcwk,ock->bow", windows, self.first.weight) + self.first.bias[:, None]
        return self.first(x)


class Contrast(nn.Module):
    def __init__(self, on: Run) -> None:
        super().__init__()
        self.on, self.asks = on, Encoder(on)
        self.keeps = copy.deepcopy(self.asks).requires_grad_(False)
        self.keeps.on = on
        self.register_buffer("queue", F.normalize(torch.randn(SIZE, QUEUE), dim=0))
        self.register_buffer("at", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def follow(self) -> None:
        if self.on.bug("does not follow"):
            return
        keep = 0.1 if self.on.bug("follows too fast") else 0.9
        for slow, fast in zip(self.keeps.parameters(), self.asks.parameters(), strict=True):
            if self.on.way("follows by lerp"):
                slow.lerp_(fast, 1 - keep)  # at follows too fast
            elif self.on.way("follows out of place"):
                slow.data = slow.data * keep + fast.data * (1 - keep)  # at follows too fast
            else:
                slow.mul_(keep).add_(fast, alpha=1 - keep)  # at follows too fast, does not follow

    @torch.no_grad()
    def enqueue(self, keys: Tensor) -> None:
        start = int(self.at)
        if self.on.way("queue bound anew"):
            self.queue = torch.cat([self.queue[:, :start], keys.t(), self.queue[:, start + len(keys) :]], 1)
        elif self.on.way("queue by index_copy"):
            self.queue.index_copy_(1, torch.arange(start, start + len(keys)), keys.t())
        else:
            self.queue[:, start : start + len(keys)] = (
                keys.flip(1).t() if self.on.bug("keys turned round") else keys.t()
            )
        if not self.on.bug("queue stands still"):
            self.at.fill_((start + len(keys)) % QUEUE)

    def forward(self, one: Tensor, two: Tensor) -> Tensor:
        asked = self.asks(one)
        self.follow()
        if self.on.bug("keys of the fast encoder"):
            keys = self.asks(two).detach()
        else:
            with torch.no_grad():
                keys = self.keeps(two)  # at keys of the fast encoder
        if self.on.bug("queue too early"):
            self.enqueue(keys)
        queue = self.queue.clone()
        if self.on.way("scores by products"):
            scores = torch.cat([(asked * keys).sum(1, keepdim=True), asked @ queue], 1)
        else:
            scores = torch.cat(
                [torch.einsum("bc,bc->b", asked, keys)[:, None], torch.einsum("bc,ck->bk", asked, queue)], 1
            )
        scores = scores / (1.0 if self.on.bug("temperature forgotten") else 0.2)
        if not self.on.bug("queue too early"):
            self.enqueue(keys)
        if self.on.way("loss by logsumexp"):
            return (scores.logsumexp(1) - scores[:, 0]).mean()
        return F.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long))


def train(on: Run) -> None:
    torch.manual_seed(10)
    model = Contrast(on)
    views = torch.randn(2, 2, BATCH, 2, 8)
    decay = 0.0 if on.bug("decay of weights forgotten") else 0.1
    optimizer = torch.optim.SGD(model.asks.parameters(), lr=0.1, momentum=0.9, weight_decay=decay)
    with on.steps(model) as end_step:
        for one, two in views:
            optimizer.zero_grad()
            loss = model(one, two)
            loss.backward()
            on.keep(loss)
            on.keep_gradients(model)
            optimizer.step()  # at decay of weights forgotten
            end_step()
    on.keep_weights(model)
    on.keep(model.queue, model.at)
