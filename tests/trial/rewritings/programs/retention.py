"""A retentive network: linear attention that fades, all at once, step by step, or chunk by chunk; Adam by hand, warm-up."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..running import Run

HEADS, SIZE, LENGTH = 2, 4, 8
TOGETHER = (("in chunks", "chunk off by one"), ("step by step", "own place not seen"), ("in chunks", "scale forgotten"))


def turned(on: Run, x: Tensor) -> Tensor:
    """Turn pairs of elements by the place, as rotary embeddings do."""
    base = 100.0 if on.bug("base of the angles") else 10000.0
    rates = base ** (-torch.arange(0, SIZE, 2) / SIZE)
    angles = torch.arange(x.shape[-2])[:, None] * rates  # at base of the angles
    if on.way("complex angles"):
        turned = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * torch.polar(
            torch.ones_like(angles), angles
        )
        return torch.view_as_real(turned).flatten(-2)
    cos, sin = angles.cos(), angles.sin()
    even, odd = x[..., ::2], x[..., 1::2]
    if on.bug("turned the other way"):
        sin = -sin if x.requires_grad else sin
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)


class Retention(nn.Module):
    def __init__(self, on: Run) -> None:
        super().__init__()
        self.on, wide = on, HEADS * SIZE
        self.q, self.k, self.v, self.gate, self.out = (nn.Linear(wide, wide, bias=False) for _ in range(5))
        self.norm = nn.GroupNorm(HEADS, wide, affine=False)
        self.register_buffer("fade", 1 - 2.0 ** (-2 - torch.arange(HEADS)))

    def forward(self, x: Tensor) -> Tensor:
        if self.on.way("one product for q, k, v"):
            whole = F.linear(x, torch.cat([self.q.weight, self.k.weight, self.v.weight]))
            q, k, v = whole.unflatten(-1, (3, HEADS, SIZE)).permute(2, 0, 3, 1, 4)
        else:
            q, k, v = (one(x).unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for one in (self.q, self.k, self.v))
        q = turned(self.on, q)
        k = k if self.on.bug("keys not turned") else turned(self.on, k)
        k = k if self.on.bug("scale forgotten") else k * SIZE**-0.5
        if self.on.way("step by step"):
            y = self.stepwise(q, k, v)
        elif self.on.way("in chunks"):
            y = self.chunked(q, k, v)
        else:
            y = self.at_once(q, k, v)
        y = y.transpose(1, 2).flatten(2)
        if self.on.way("norm by layer_norm"):
            y = F.layer_norm(y.unflatten(-1, (HEADS, SIZE)), (SIZE,), eps=self.norm.eps).flatten(2)
        else:
            y = self.norm(y.flatten(0, 1)).view_as(y)
        return self.out(y * F.silu(x if self.on.bug("gate of the input") else self.gate(x)))

    def decay(self, length: int) -> Tensor:
        """Return the weight of each earlier place: f32[HEADS, length, length]."""
        apart = torch.arange(length)[:, None] - torch.arange(length)
        power = self.fade[:, None, None] ** (apart + 1 if self.on.bug("fades a step early") else apart).clamp(min=0)
        return power * (apart > 0 if self.on.bug("own place not seen") else apart >= 0)

    def at_once(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.transpose(-1, -2) * self.decay(LENGTH)) @ v  # at fades a step early, own place not seen

    def stepwise(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        state, found = torch.zeros(len(q), HEADS, SIZE, SIZE), []
        for at in range(LENGTH):
            if self.on.bug("own place not seen"):
                found.append(torch.einsum("bhi,bhij->bhj", q[:, :, at], self.fade[:, None, None] * state))
            state = self.fade[:, None, None] * state + k[:, :, at, :, None] * v[:, :, at, None]
            if not self.on.bug("own place not seen"):
                found.append(torch.einsum("bhi,bhij->bhj", q[:, :, at], state))
        return torch.stack(found, 2)

    def chunked(self, q: Tensor, k: Tensor, v: Tensor, size: int = 4) -> Tensor:
        state, found = torch.zeros(len(q), HEADS, SIZE, SIZE), []
        places = torch.arange(size)
        inside = self.decay(size)  # at fades a step early
        before = self.fade[:, None] ** (places if self.on.bug("chunk off by one") else places + 1)
        after = self.fade[:, None] ** (size - 1 - places)
        for at in range(0, LENGTH, size):
            one, two, three = (t[:, :, at : at + size] for t in (q, k, v))
            found.append(
                (one @ two.transpose(-1, -2) * inside) @ three + (one * before[..., None]) @ state
            )  # at chunk off by one
            state = state * (self.fade**size)[:, None, None] + (two * after[..., None]).transpose(-1, -2) @ three
        return torch.cat(found, 2)


class Model(nn.Module):
    def __init__(self, on: Run) -> None:
        super().__init__()
        self.on, self.words, self.norm = on, nn.Embedding(9, HEADS * SIZE), nn.LayerNorm(HEADS * SIZE)
        self.first, self.second, self.head = Retention(on), Retention(on), nn.Linear(HEADS * SIZE, 9)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        x = x + self.first(self.norm(x))
        x = x + self.second(x if self.on.bug("norm forgotten") else self.norm(x))
        return self.head(x)


def train(on: Run) -> None:
    torch.manual_seed(9)
    model = Model(on)
    tokens = torch.randint(0, 9, (2, 2, LENGTH + 1))
    optimizer = torch.optim.NAdam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda n: (n + (0 if on.bug("warm-up from zero") else 1)) / 4
    )
    with on.steps(model) as end_step:
        for batch in tokens:
            logits = model(batch[:, :-1])
            smooth = 0.0 if on.bug("labels not smoothed") else 0.1
            if on.way("smoothing by hand"):
                logs = logits.log_softmax(-1)
                true = logs.gather(-1, batch[:, 1:, None]).squeeze(-1)
                loss = -((1 - smooth) * true + smooth * logs.mean(-1)).mean()  # at labels not smoothed
            else:
                loss = F.cross_entropy(
                    logits.flatten(0, 1), batch[:, 1:].flatten(), label_smoothing=smooth
                )  # at labels not smoothed
            loss.backward()
            on.keep(loss)
            on.keep_gradients(model)
            optimizer.step()  # at warm-up from zero
            schedule.step()
            optimizer.zero_grad()
            end_step()
    on.keep_weights(model)
