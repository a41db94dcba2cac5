"""Direct preference optimization of a small language model with adapters, against a frozen reference."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..running import Run

SIZE, WORDS = 12, 13


class Adapted(nn.Module):
    """A frozen matrix of eight-bit integers beside an adapter of rank two."""

    def __init__(self, on: Run, enters: int, leaves: int) -> None:
        super().__init__()
        self.on = on
        weight = torch.randn(leaves, enters) / enters**0.5
        self.register_buffer("scale", weight.abs().amax(1) / 127)
        self.register_buffer("whole", (weight / self.scale[:, None]).round().to(torch.int8))
        self.down, self.up = nn.Parameter(torch.randn(2, enters) * 0.3), nn.Parameter(torch.randn(leaves, 2) * 0.3)

    def forward(self, x: Tensor) -> Tensor:
        factor = 2.0 if self.on.bug("adapter scaled by its rank") else 4.0
        scale = self.scale.mean() if self.on.bug("one scale for all rows") else self.scale[:, None]
        if self.on.way("scale after the product"):
            y = (x @ self.whole.to(x.dtype).t()) * (
                scale if scale.dim() == 0 else scale.t()
            )  # at one scale for all rows
        else:
            y = x @ (self.whole.to(x.dtype) * scale).t()  # at one scale for all rows
        if self.on.way("adapter merged"):
            return y + x @ ((self.up @ self.down) * factor).t()  # at adapter scaled by its rank
        return y + factor * ((x @ self.down.t()) @ self.up.t())  # at adapter scaled by its rank


class Block(nn.Module):
    def __init__(self, on: Run) -> None:
        super().__init__()
        self.on, self.first, self.second = on, nn.LayerNorm(SIZE), nn.LayerNorm(SIZE)
        self.qkv, self.out = Adapted(on, SIZE, 3 * SIZE), Adapted(on, SIZE, SIZE)
        self.wide, self.narrow = nn.Linear(SIZE, 2 * SIZE), nn.Linear(2 * SIZE, SIZE)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        x = x + self.attend(self.first(x), seen)
        y = self.wide(self.second(x))
        y = F.gelu(y, approximate="tanh" if self.on.bug("gelu by tanh") else "none")
        return x + self.narrow(y)

    def attend(self, x: Tensor, seen: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (3, 4)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        early = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril(1 if self.on.bug("mask one too wide") else 0)
        mask = (early if self.on.bug("padding seen") else early & seen[:, None, None, :]) | torch.eye(
            x.shape[1], dtype=torch.bool
        )
        if self.on.way("attention written out"):
            scores = (q @ k.transpose(-1, -2)) * 4**-0.5
            y = scores.masked_fill(~mask, -torch.inf).softmax(-1) @ v  # at padding seen, mask one too wide
        else:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # at padding seen, mask one too wide
        return self.out(y.transpose(1, 2).flatten(2))


class Model(nn.Module):
    def __init__(self, on: Run) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, SIZE), nn.Embedding(10, SIZE)
        self.block, self.head = Block(on), nn.Linear(SIZE, WORDS, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        return self.head(self.block(x, tokens > 0))


def log_likelihood(on: Run, model: Model, tokens: Tensor, start: int) -> Tensor:
    """Sum the logs of the probabilities of the answer, which begins at `start`."""
    logits, wanted = model(tokens)[:, :-1], tokens[:, 1:]
    counted = (wanted > 0) & (
        torch.arange(1, tokens.shape[1]) >= (start + 1 if on.bug("first word not counted") else start)
    )
    if on.way("logs by cross entropy"):
        logs = -F.cross_entropy(logits.transpose(1, 2), wanted, reduction="none")
    else:
        logs = logits.log_softmax(-1).gather(-1, wanted.unsqueeze(-1)).squeeze(-1)
    total = (logs * counted).sum(1)  # at first word not counted
    return total / counted.sum(1) if on.bug("mean for sum") else total


def loss_of(on: Run, model: Model, reference: Model, good: Tensor, bad: Tensor) -> Tensor:
    if on.way("both answers in one batch"):
        ours = log_likelihood(on, model, torch.cat([good, bad]), 3).chunk(2)
    else:
        ours = log_likelihood(on, model, good, 3), log_likelihood(on, model, bad, 3)
    with torch.no_grad():
        theirs = [
            log_likelihood(on, model if on.bug("reference is the model") else reference, t, 3) for t in (good, bad)
        ]
    beta = 0.2 if on.bug("beta") else 0.1
    margin = (ours[0] - theirs[0]) - (ours[1] - theirs[1])
    if on.bug("references swapped"):
        margin = (ours[0] - theirs[1]) - (ours[1] - theirs[0])
    if on.way("softplus"):
        return F.softplus(-beta * margin).mean()  # at beta, references swapped
    return -F.logsigmoid(beta * margin).mean()  # at beta, references swapped


def train(on: Run) -> None:
    torch.manual_seed(5)
    model = Model(on)
    reference = copy.deepcopy(model)
    for p in model.parameters():
        p.data.add_(0.05 * torch.randn_like(p))
    answers = torch.randint(1, WORDS, (2, 2, 3, 8))
    answers[:, 0, :, :2] = 0
    adapters = [p for name, p in model.named_parameters() if "down" in name or "up" in name]
    rest = [p for name, p in model.named_parameters() if not ("down" in name or "up" in name)]
    groups = [
        {"params": adapters, "lr": 1e-3 if on.bug("rate of the other group") else 1e-2},
        {"params": rest, "lr": 1e-3},
    ]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.1, foreach=on.way("foreach"))
    with on.steps(model) as end_step:
        for good, bad in answers:
            loss = loss_of(on, model, reference, good, bad)
            loss.backward()
            on.keep(loss)
            on.keep_gradients(model)
            optimizer.step()  # at rate of the other group
            optimizer.zero_grad(set_to_none=not on.way("gradients kept as zeros"))
            end_step()
    on.keep_weights(model)
