"""Functions of space and time: a radiance field, a neural differential equation, dilated convolutions, points in a set."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..training import STEPS, Program, Training


class RadianceField(nn.Module):
    """Colours of rays, gathered over samples by how much light is left."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(27, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU())
        self.density, self.colour = nn.Linear(24, 1), nn.Linear(24, 3)
        self.register_buffer("powers", 2.0 ** torch.arange(4))

    def forward(self, start: Tensor, way: Tensor, seen: Tensor) -> Tensor:
        at = torch.linspace(0.5, 2.0, 6, device=way.device)
        points = start[:, None] + way[:, None] * at[:, None]
        angle = (points.unsqueeze(-1) * self.powers).flatten(2)
        inner = self.body(torch.cat([points, angle.sin(), angle.cos()], dim=-1))
        step = torch.cat([at[1:] - at[:-1], torch.tensor([0.3], device=way.device)])
        opaque = 1 - torch.exp(-F.softplus(self.density(inner).squeeze(-1)) * step)
        left = torch.cumprod(
            torch.cat([torch.ones(len(start), 1, device=way.device), 1 - opaque + 1e-6], dim=1), dim=1
        )[:, :-1]
        colour = ((opaque * left).unsqueeze(-1) * torch.sigmoid(self.colour(inner))).sum(dim=1)
        return F.mse_loss(colour, seen)


def radiance() -> Training:
    torch.manual_seed(61)
    batches = [
        {"start": torch.randn(6, 3), "way": F.normalize(torch.randn(6, 3), dim=1), "seen": torch.rand(6, 3)}
        for _ in range(STEPS)
    ]
    return Training(
        RadianceField(), batches, lambda m, b: m(**b), torch.optim.Adam, {"lr": 5e-3, "foreach": True}, decay=0.9
    )


class Rates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 12), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(torch.tanh(self.one(x)))


class Trajectory(nn.Module):
    """Four steps of Runge and Kutta."""

    def __init__(self) -> None:
        super().__init__()
        self.rates = Rates()

    def forward(self, x: Tensor, after: Tensor) -> Tensor:
        h = 0.2
        for _ in range(3):
            k1 = self.rates(x)
            k2 = self.rates(x + h / 2 * k1)
            k3 = self.rates(x + h / 2 * k2)
            k4 = self.rates(x + h * k3)
            x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return (x - after).abs().mean()


def trajectory() -> Training:
    torch.manual_seed(62)
    batches = [{"x": torch.randn(5, 4), "after": torch.randn(5, 4)} for _ in range(STEPS)]
    return Training(Trajectory(), batches, lambda m, b: m(**b), torch.optim.RMSprop, {"lr": 0.01, "foreach": True})


class CausalConvolution(nn.Module):
    def __init__(self, into: int, out: int, gap: int) -> None:
        super().__init__()
        self.gap = gap
        self.conv = nn.Conv1d(into, 2 * out, 3, dilation=gap)
        self.skip = nn.Conv1d(into, out, 1)

    def forward(self, x: Tensor) -> Tensor:
        one, gate = self.conv(F.pad(x, (2 * self.gap, 0))).chunk(2, dim=1)
        return torch.tanh(one) * torch.sigmoid(gate) + self.skip(x)


class Dilated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(CausalConvolution(3, 8, 1), CausalConvolution(8, 8, 2), CausalConvolution(8, 8, 4))
        self.head = nn.Conv1d(8, 3, 1)

    def forward(self, series: Tensor) -> Tensor:
        return F.smooth_l1_loss(self.head(self.layers(series[:, :, :-1])), series[:, :, 1:], beta=0.5)


def dilated() -> Training:
    torch.manual_seed(63)
    batches = [{"series": torch.randn(4, 3, 16).cumsum(2)} for _ in range(STEPS)]
    return Training(
        Dilated(), batches, lambda m, b: m(**b), settings={"lr": 2e-3, "weight_decay": 0.05, "foreach": True}
    )


class PointSet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.each = nn.Sequential(nn.Linear(3, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 16))
        self.head = nn.Linear(32, 5)

    def forward(self, points: Tensor, labels: Tensor) -> Tensor:
        x = self.each(points - points.mean(dim=1, keepdim=True))
        x = torch.cat([x.amax(dim=1), x.mean(dim=1)], dim=1)
        return F.cross_entropy(self.head(x), labels)


def point_set() -> Training:
    torch.manual_seed(64)
    batches = [{"points": torch.randn(6, 11, 3), "labels": torch.randint(0, 5, (6,))} for _ in range(STEPS)]
    return Training(
        PointSet(), batches, lambda m, b: m(**b), torch.optim.SGD, {"lr": 0.1, "momentum": 0.8, "foreach": True}
    )


PROGRAMS = [
    Program("radiance field", "rendering", radiance, 2),
    Program("neural ode", "differential equation", trajectory, 2),
    Program("dilated convolutions", "temporal convolution", dilated, 2),
    Program("point set", "set", point_set, 2),
]
