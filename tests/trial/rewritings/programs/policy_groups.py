"""Groups of answers with rewards: advantages within a group, clipped ratios, a divergence to a reference (GRPO)."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..running import Run

WORDS, SIZE, LENGTH = 10, 8, 7


class Block(nn.Module):
    """Attention with a bias by distance (ALiBi) within a window, two heads of queries for one of keys."""

    def __init__(self, on: Run) -> None:
        super().__init__()
        self.on, self.norm = on, nn.RMSNorm(SIZE, eps=1e-6)
        self.q, self.kv, self.out = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, 8), nn.Linear(SIZE, SIZE)
        self.gate, self.up, self.down = nn.Linear(SIZE, 12), nn.Linear(SIZE, 12), nn.Linear(12, SIZE)

    def bias(self) -> Tensor:
        slopes = torch.tensor([0.25, 0.5] if self.on.bug("slopes turned round") else [0.5, 0.25])
        apart = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
        seen = (apart >= 0) & (apart < (5 if self.on.bug("window too wide") else 4))
        bias = slopes[:, None, None] * apart * (1 if self.on.bug("far is near") else -1)
        if self.on.way("bias from a loop"):
            rows = [[-float(max(i - j, 0)) for j in range(LENGTH)] for i in range(LENGTH)]
            bias = slopes[:, None, None] * torch.tensor(rows) * (-1 if self.on.bug("far is near") else 1)
        return bias.masked_fill(~seen, -torch.inf)  # at window too wide, slopes turned round

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        q = self.q(y).unflatten(-1, (2, 4)).transpose(1, 2)
        k, v = self.kv(y).chunk(2, -1)[:: -1 if self.on.bug("keys and values swapped") else 1]
        if self.on.way("attention of torch"):
            wide = (len(x), 2, LENGTH, 4)
            seen = F.scaled_dot_product_attention(
                q, k[:, None].expand(wide), v[:, None].expand(wide), attn_mask=self.bias()
            )
        elif self.on.way("keys repeated"):
            k, v = (t.unsqueeze(1).repeat_interleave(2, 1) for t in (k, v))
            seen = torch.einsum(
                "bhij,bhjd->bhid", (torch.einsum("bhid,bhjd->bhij", q, k) / 2 + self.bias()).softmax(-1), v
            )
        else:
            scores = q @ k[:, None].mT / (4 if self.on.bug("scale without root") else 2)
            seen = (scores + self.bias()).softmax(-1) @ v[:, None]
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        if self.on.way("gate and up in one"):
            gate, up = F.linear(
                x, torch.cat([self.gate.weight, self.up.weight]), torch.cat([self.gate.bias, self.up.bias])
            ).chunk(2, -1)
        else:
            gate, up = self.gate(x), self.up(x)
        return x + self.down(gate * F.silu(up) if self.on.bug("gate and up swapped") else F.silu(gate) * up)


class Policy(nn.Module):
    def __init__(self, on: Run) -> None:
        super().__init__()
        self.words, self.block, self.norm = nn.Embedding(WORDS, SIZE), Block(on), nn.LayerNorm(SIZE)
        self.head = nn.Linear(SIZE, WORDS, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the log of the probability of each word but the first."""
        logs = self.head(self.norm(self.block(self.words(tokens[:, :-1]))))
        return logs.log_softmax(-1).gather(-1, tokens[:, 1:, None]).squeeze(-1)


def advantages(on: Run, rewards: Tensor) -> Tensor:
    """Rewards are f32[groups, answers]."""
    if on.bug("mean of all groups"):
        return ((rewards - rewards.mean()) / (rewards.std(1, keepdim=True) + 1e-4)).flatten()
    if on.way("advantages by var_mean"):
        spread, mean = torch.var_mean(rewards, 1, keepdim=True)
        return ((rewards - mean) / (spread.sqrt() + 1e-4)).flatten()  # at mean of all groups
    return (
        (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
    ).flatten()  # at mean of all groups


def loss_of(on: Run, logs: Tensor, old: Tensor, fixed: Tensor, gains: Tensor, counted: Tensor) -> Tensor:
    ratio = (logs - old).exp()
    high = 1.2 if not on.bug("clipped too far") else 1.4
    held = (
        torch.min(torch.max(ratio, torch.tensor(0.8)), torch.tensor(high))
        if on.way("clipped by min and max")
        else ratio.clamp(0.8, high)
    )  # at clipped too far
    both = torch.stack([ratio * gains[:, None], held * gains[:, None]])
    gain = both.amax(0) if on.bug("largest for least") else both.amin(0)
    if on.way("least by minimum"):
        gain = torch.minimum(both[0], both[1])
    apart = fixed - logs
    divergence = apart.exp() - apart - (0 if on.bug("one forgotten") else 1)
    if on.bug("divergence the other way"):
        divergence = (-apart).exp() + apart - 1
    each = -(gain - 0.05 * divergence) * counted  # at one forgotten, divergence the other way
    if on.bug("mean over answers first"):
        return (each.sum(1) / counted.sum(1)).mean()
    return each.sum() / counted.sum()  # at mean over answers first


def train(on: Run) -> None:
    torch.manual_seed(18)
    model = Policy(on)
    fixed, older = copy.deepcopy(model), copy.deepcopy(model)
    for part in (older, model):
        for p in part.parameters():
            p.data.add_(0.15 * torch.randn_like(p))
    fixed.block.on = older.block.on = on
    tokens, rewards = torch.randint(0, WORDS, (6, LENGTH + 1)), torch.rand(2, 3)
    counted = (torch.arange(LENGTH) < torch.tensor([7, 5, 6, 7, 4, 3])[:, None]).to(rewards.dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    with on.steps(model) as end_step:
        with torch.no_grad():
            old, kept = older(tokens), fixed(tokens)
            gains = advantages(on, rewards)
        for _ in range(2):
            logs = model(tokens)
            loss = loss_of(on, logs, old, kept, gains, counted)
            loss.backward()
            on.keep(loss)
            on.keep_gradients(model)
            optimizer.step()
            optimizer.zero_grad()
            end_step()
    on.keep_weights(model)
