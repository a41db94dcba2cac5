"""A few latents that read a long input by cross attention, share their layers, and are asked by queries; in training."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ..running import Run

SIZE, HEADS = 8, 2


def waves(on: Run, count: int, bands: int = 3) -> Tensor:
    """Return Fourier features of places: f32[count, 2 * bands + 1]."""
    places = torch.linspace(-1, 1, count)[:, None]
    rates = torch.linspace(1, count / (4 if on.bug("highest rate") else 2), bands)
    turned = places * rates * (1 if on.bug("pi forgotten") else math.pi)  # at highest rate
    if on.way("waves in a buffer"):
        found = torch.empty(count, 2 * bands + 1)
        found[:, :bands], found[:, bands:-1], found[:, -1:] = turned.sin(), turned.cos(), places
        return found
    return torch.cat([turned.sin(), turned.cos(), places], 1)


class Attention(nn.Module):
    def __init__(self, on: Run, asks: int, reads: int) -> None:
        super().__init__()
        self.on, self.asks, self.reads = on, nn.LayerNorm(asks), nn.LayerNorm(reads)
        self.q, self.kv, self.out = (
            nn.Linear(asks, SIZE, bias=False),
            nn.Linear(reads, 2 * SIZE, bias=False),
            nn.Linear(SIZE, asks),
        )

    def forward(self, x: Tensor, read: Tensor, mask: Tensor | None = None) -> Tensor:
        read = read if self.on.bug("what is read is not normed") else self.reads(read)
        q, (k, v) = self.q(self.asks(x)), self.kv(read).chunk(2, -1)
        if self.on.bug("heads not apart"):
            q, k, v = (t.unflatten(-1, (SIZE // HEADS, HEADS)).movedim(-1, 1) for t in (q, k, v))
        else:
            q, k, v = (t.unflatten(-1, (HEADS, SIZE // HEADS)).transpose(1, 2) for t in (q, k, v))  # at heads not apart
        if mask is not None:
            mask = (~mask if self.on.bug("mask inverted") else mask)[:, None, None, :]
        if self.on.way("attention of torch"):
            seen = F.scaled_dot_product_attention(q, k, v, mask)  # at mask inverted
        elif self.on.way("softmax in blocks"):
            seen = self.in_blocks(q, k, v, mask)
        else:
            scores = q @ k.mT / math.sqrt(SIZE // HEADS)
            if mask is not None:
                scores = scores.masked_fill(~mask, -torch.inf)  # at mask inverted
            seen = scores.softmax(-1) @ v
        return self.out(seen.transpose(1, 2).flatten(2))

    def in_blocks(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, size: int = 5) -> Tensor:
        """Add up block by block with the largest so far, as flash attention does."""
        top, total, weight = torch.full(q.shape[:3], -1e30), torch.zeros_like(q), torch.zeros(q.shape[:3])
        for at in range(0, k.shape[2], size):
            scores = q @ k[:, :, at : at + size].mT / math.sqrt(q.shape[-1])
            if mask is not None:
                scores = scores.masked_fill(~mask[..., at : at + size], -torch.inf)  # at mask inverted
            higher = torch.maximum(top, scores.amax(-1).detach())
            part, fade = (scores - higher[..., None]).exp(), (top - higher).exp()
            fade = torch.ones_like(fade) if self.on.bug("not scaled again") else fade
            total, weight = total * fade[..., None] + part @ v[:, :, at : at + size], weight * fade + part.sum(-1)
            top = higher
        return total / weight[..., None]


TOGETHER = (("softmax in blocks", "not scaled again"), ("attention of torch", "mask inverted"))


class Perceiver(nn.Module):
    def __init__(self, on: Run) -> None:
        super().__init__()
        self.on, self.latents, self.asks = (
            on,
            nn.Parameter(torch.randn(4, SIZE) * 0.5),
            nn.Parameter(torch.randn(3, SIZE)),
        )
        self.read, self.think, self.answer = (
            Attention(on, SIZE, 2 + 7),
            Attention(on, SIZE, SIZE),
            Attention(on, SIZE, SIZE),
        )
        self.norm, self.wide, self.narrow, self.out = (
            nn.LayerNorm(SIZE),
            nn.Linear(SIZE, 16),
            nn.Linear(8, SIZE),
            nn.Linear(SIZE, 2),
        )

    def mixed(self, x: Tensor) -> Tensor:
        one, two = self.wide(self.norm(x)).chunk(2, -1)
        if self.on.way("gelu by erf"):
            return self.narrow(one * 0.5 * two * (1 + torch.erf(two / math.sqrt(2))))
        return self.narrow(one * (F.relu(two) if self.on.bug("relu for gelu") else F.gelu(two)))

    def thought(self, x: Tensor) -> Tensor:
        x = x + self.think(x, x)
        return self.mixed(x) if self.on.bug("residual dropped") else x + self.mixed(x)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        read = torch.cat([x, waves(self.on, x.shape[1]).expand(len(x), -1, -1)], -1)
        latents = self.latents.expand(len(x), -1, -1)
        latents = latents + self.read(latents, read, None if self.on.bug("mask forgotten") else seen)
        for _ in range(1 if self.on.bug("a round too few") else 2):
            latents = (
                checkpoint(self.thought, latents, use_reentrant=False)
                if self.on.way("checkpointed")
                else self.thought(latents)
            )
        return self.out(self.answer(self.asks.expand(len(x), -1, -1), latents))


def train(on: Run) -> None:
    torch.manual_seed(20)
    model = Perceiver(on)
    x, wanted = torch.randn(2, 3, 12, 2), torch.randn(2, 3, 3, 2)
    seen = torch.arange(12) < torch.tensor([[12], [9], [7]])
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    with on.steps(model) as end_step:
        for at in range(2):
            found = model(x[at], seen)
            beta = 0.5 if on.bug("bend of the loss") else 1.0
            if on.way("loss by hand"):
                off = (found - wanted[at]).abs()
                loss = torch.where(off < beta, 0.5 * off * off / beta, off - 0.5 * beta).mean()  # at bend of the loss
            else:
                loss = F.smooth_l1_loss(found, wanted[at], beta=beta)  # at bend of the loss
            loss.backward()
            on.keep(loss)
            on.keep_gradients(model)
            for group in optimizer.param_groups:
                group["lr"] = 5e-3 * (1 if on.bug("rate does not fall") else 0.5**at)
            optimizer.step()  # at rate does not fall
            optimizer.zero_grad()
            end_step()
    on.keep_weights(model)
