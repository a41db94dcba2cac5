"""Models of densities: an autoencoder that draws, a pair that plays against each other, flows, masked layers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..training import STEPS, Batch, Program, Training


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.mean, self.log_variance = nn.Linear(14, 16), nn.Linear(16, 4), nn.Linear(16, 4)
        self.back, self.out = nn.Linear(4, 16), nn.Linear(16, 14)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.softplus(self.inner(x))
        mean, log_variance = self.mean(inner), self.log_variance(inner)
        drawn = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        seen = self.out(torch.tanh(self.back(drawn)))
        divergence = -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum(1)
        return (F.binary_cross_entropy_with_logits(seen, x, reduction="none").sum(1) + divergence).mean()


def autoencoder() -> Training:
    torch.manual_seed(51)
    return Training(Autoencoder(), [{"x": torch.rand(7, 14)} for _ in range(STEPS)], lambda m, b: m(**b))


class Players(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.draws = nn.Sequential(nn.Linear(5, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 6), nn.Tanh())
        self.tells = nn.Sequential(nn.Linear(6, 12), nn.LeakyReLU(0.2), nn.Linear(12, 1))


class Duel(Training):
    """Two optimizers in turn: one player tells drawn from real, the other draws."""

    def make_optimizer(self) -> Any:
        return [self.optimizer(part.parameters(), **self.settings) for part in self.model.children()]

    def step(self, optimizer: Any, batch: Batch) -> list[Tensor]:
        draws, tells = self.model.draws, self.model.tells
        for one in optimizer:
            one.zero_grad()
        with self.context(), self.forward():
            drawn = draws(torch.randn(len(batch["real"]), 5).to(batch["real"].device))
            real, fake = tells(batch["real"]), tells(drawn.detach())
            first = F.softplus(-real).mean() + F.softplus(fake).mean()
        ends = [first.detach().clone(), *self.descend(optimizer[1], first, tells.parameters())]
        with self.context(), self.forward():
            second = F.softplus(-tells(drawn)).mean()
        return [*ends, second.detach().clone(), *self.descend(optimizer[0], second, draws.parameters())]


def duel() -> Training:
    torch.manual_seed(52)
    batches = [{"real": torch.rand(8, 6) * 2 - 1} for _ in range(STEPS)]
    return Duel(
        Players(),
        batches,
        lambda m, b: m.tells(b["real"]).mean() + m.draws(b["real"][:, :5]).mean(),
        torch.optim.Adam,
        {"lr": 2e-3, "betas": (0.5, 0.999), "foreach": True},
    )


class Coupling(nn.Module):
    """Scales and shifts one half by what it knows of the other."""

    def __init__(self, width: int, flip: bool) -> None:
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(nn.Linear(width, 12), nn.ReLU(), nn.Linear(12, 2 * width))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        one, other = x.chunk(2, dim=1)
        if self.flip:
            one, other = other, one
        scale, shift = self.net(one).chunk(2, dim=1)
        scale = torch.tanh(scale)
        other = other * torch.exp(scale) + shift
        return torch.cat([other, one] if self.flip else [one, other], dim=1), scale.sum(1)


class Flow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Coupling(3, bool(n % 2)) for n in range(4))

    def forward(self, x: Tensor) -> Tensor:
        volume = torch.zeros(len(x), device=x.device)
        for layer in self.layers:
            x, more = layer(x)
            volume = volume + more
        return -(-0.5 * (x.pow(2) + math.log(2 * math.pi)).sum(1) + volume).mean()


def flow() -> Training:
    torch.manual_seed(53)
    return Training(Flow(), [{"x": torch.randn(9, 6)} for _ in range(STEPS)], lambda m, b: m(**b), clip=1.0)


class MaskedLinear(nn.Linear):
    def __init__(self, into: int, out: int, mask: Tensor) -> None:
        super().__init__(into, out)
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight * self.mask, self.bias)


class Autoregressive(nn.Module):
    """Each bit is told from the bits before it."""

    def __init__(self, bits: int = 8, inner: int = 20) -> None:
        super().__init__()
        first, degree = torch.arange(bits), torch.arange(inner) % (bits - 1)
        self.first = MaskedLinear(bits, inner, (degree[:, None] >= first).float())
        self.second = MaskedLinear(inner, bits, (first[:, None] > degree).float())

    def forward(self, bits: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(self.second(F.relu(self.first(bits))), bits)


def autoregressive() -> Training:
    torch.manual_seed(54)
    batches = [{"bits": torch.randint(0, 2, (10, 8)).float()} for _ in range(STEPS)]
    return Training(
        Autoregressive(), batches, lambda m, b: m(**b), torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "foreach": True}
    )


PROGRAMS = [
    Program("vae", "variational", autoencoder, 2),
    Program("gan", "adversarial", duel, 2),
    Program("flow", "flow", flow, 2),
    Program("masked autoregressive", "autoregressive", autoregressive, 2),
]
