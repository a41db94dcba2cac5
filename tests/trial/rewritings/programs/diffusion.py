"""A step of denoising diffusion: a small U-Net with a time embedding, averages of its weights, and one step of drawing."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..running import Run

TIMES = 20


def embedded(on: Run, t: Tensor, size: int = 8) -> Tensor:
    rates = torch.exp(
        -math.log(1000.0 if on.bug("base of the times") else 10000.0) * torch.arange(size // 2) / (size // 2)
    )
    angles = t[:, None] * rates  # at base of the times
    if on.way("outer product"):
        angles = torch.outer(t.to(rates.dtype), rates)
    return torch.cat([angles.cos(), angles.sin()] if on.bug("cosine first") else [angles.sin(), angles.cos()], 1)


class Block(nn.Module):
    def __init__(self, on: Run, enters: int, leaves: int) -> None:
        super().__init__()
        self.on, self.norm, self.first = on, nn.GroupNorm(2, enters, eps=1e-6), nn.Conv2d(enters, leaves, 3, padding=1)
        self.time, self.second, self.skip = (
            nn.Linear(8, 2 * leaves),
            nn.Conv2d(leaves, leaves, 3, padding=1),
            nn.Conv2d(enters, leaves, 1),
        )

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        y = self.first(F.silu(self.normed(x)))
        scale, shift = self.time(F.silu(t))[:, :, None, None].chunk(2, 1)
        if self.on.bug("one forgotten"):
            y = y * scale + shift
        elif self.on.way("addcmul"):
            y = torch.addcmul(shift, y, 1 + scale)  # at one forgotten
        else:
            y = y * (1 + scale) + shift  # at one forgotten
        y = self.second(F.silu(y))
        return y if self.on.bug("skip left out") else y + self.skip(x)

    def normed(self, x: Tensor) -> Tensor:
        if not self.on.way("group norm by hand"):
            return self.norm(x)
        parts = x.unflatten(1, (2, -1))
        spread, mean = torch.var_mean(parts, (2, 3, 4), correction=0, keepdim=True)
        whole = ((parts - mean) / torch.sqrt(spread + 1e-6)).flatten(1, 2)
        return whole * self.norm.weight[:, None, None] + self.norm.bias[:, None, None]


class UNet(nn.Module):
    def __init__(self, on: Run) -> None:
        super().__init__()
        self.on, self.time = on, nn.Linear(8, 8)
        self.enter, self.down, self.middle = nn.Conv2d(1, 4, 3, padding=1), Block(on, 4, 8), Block(on, 8, 8)
        self.up, self.leave = Block(on, 12, 4), nn.Conv2d(4, 1, 1)
        if on.way("channels last"):
            self.to(memory_format=torch.channels_last)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        time = self.time(embedded(self.on, t))
        x = self.enter(x)
        y = F.max_pool2d(x, 2) if self.on.bug("largest for mean") else F.avg_pool2d(x, 2)
        y = self.middle(self.down(y, time), time)
        if self.on.way("raised by repeat_interleave"):
            y = y.repeat_interleave(2, 2).repeat_interleave(2, 3)
        else:
            y = F.interpolate(y, scale_factor=2, mode="bilinear" if self.on.bug("bilinear") else "nearest")
        return self.leave(self.up(torch.cat([x, y] if self.on.bug("joined the other way") else [y, x], 1), time))


class Schedule:
    def __init__(self, on: Run) -> None:
        self.betas = torch.linspace(1e-3, 0.2, TIMES)
        self.kept = torch.cumprod(1 - self.betas, 0)
        if on.way("cumulated by logs"):
            self.kept = (1 - self.betas).log().cumsum(0).exp()
        self.on = on

    def noised(self, x: Tensor, t: Tensor, noise: Tensor) -> Tensor:
        kept = self.kept[t - 1 if self.on.bug("time off by one") else t].view(-1, 1, 1, 1)
        if self.on.bug("root forgotten"):
            return kept.sqrt() * x + (1 - kept) * noise
        return kept.sqrt() * x + (1 - kept).sqrt() * noise  # at root forgotten, time off by one


def train(on: Run) -> None:
    torch.manual_seed(12)
    model, schedule = UNet(on), Schedule(on)
    averaged = copy.deepcopy(model).requires_grad_(False)
    for part in averaged.modules():
        if hasattr(part, "on"):
            part.on = on
    pictures, noise, times = (*torch.randn(2, 2, 3, 1, 8, 8).abs().unbind(0), torch.randint(1, TIMES, (2, 3)))
    noise = noise - 0.8
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    with on.steps(model) as end_step:
        for at in range(2):
            x, wanted = schedule.noised(pictures[at], times[at], noise[at]), noise[at]
            if on.bug("clean for noise"):
                wanted = pictures[at]
            loss = F.mse_loss(model(x, times[at]), wanted)  # at clean for noise
            loss.backward()
            on.keep(loss)
            on.keep_gradients(model)
            if on.bug("averages of the old weights"):
                average(on, averaged, model)
            optimizer.step()
            optimizer.zero_grad()
            if not on.bug("averages of the old weights"):
                average(on, averaged, model)
            end_step()
    on.keep_weights(model)
    on.keep_weights(averaged)


@torch.no_grad()
def average(on: Run, averaged: nn.Module, model: nn.Module) -> None:
    keep = 0.9
    for slow, fast in zip(averaged.parameters(), model.parameters(), strict=True):
        if on.way("averages from the difference"):
            slow.sub_((1 - keep) * (slow - fast))
        elif on.bug("averages the other way"):
            slow.mul_(1 - keep).add_(fast, alpha=keep)
        else:
            slow.mul_(keep).add_(fast, alpha=1 - keep)  # at averages the other way
