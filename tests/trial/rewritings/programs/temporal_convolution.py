"""Causal dilated convolutions with normed weights; a forecast by quantiles; averaged weights at the end."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..running import Run

QUANTILES = (0.1, 0.5, 0.9)


class Causal(nn.Module):
    """A convolution whose weight is a direction and a length."""

    def __init__(self, on: Run, enters: int, leaves: int, dilation: int) -> None:
        super().__init__()
        self.on, self.dilation = on, dilation
        self.direction = nn.Parameter(torch.randn(leaves, enters, 3) * 0.3)
        self.length = nn.Parameter(self.direction.detach().pow(2).sum((1, 2), keepdim=True).sqrt() * 1.1)
        self.bias = nn.Parameter(torch.zeros(leaves))

    def weight(self) -> Tensor:
        if self.on.way("weight norm of torch"):
            return torch._weight_norm(self.direction, self.length, 0)
        axes = (
            (0, 1)
            if self.on.bug("norm over the wrong axes") and self.direction.shape[0] == self.direction.shape[2]
            else (1, 2)
        )
        norm = self.direction.pow(2).sum(axes, keepdim=True)
        if self.on.bug("norm detached"):
            norm = norm.detach()
        return (
            self.length * self.direction / norm
            if self.on.bug("norm squared")
            else self.length * self.direction / norm.sqrt()
        )

    def forward(self, x: Tensor) -> Tensor:
        room = 2 * self.dilation
        if self.on.bug("looks ahead"):
            x = F.pad(x, (room // 2, room - room // 2))
        elif self.on.way("padded on both sides, then cut"):
            return F.conv1d(x, self.weight(), self.bias, dilation=self.dilation, padding=room)[..., : x.shape[-1]]
        else:
            x = F.pad(x, (room, 0))  # at looks ahead, dilation forgotten
        if self.on.way("taps one by one"):
            size, weight = x.shape[-1] - room, self.weight()
            taps = [
                torch.einsum("oc,bcl->bol", weight[..., at], x[..., at * self.dilation : at * self.dilation + size])
                for at in range(3)
            ]
            return taps[0] + taps[1] + taps[2] + self.bias[:, None]
        return F.conv1d(x, self.weight(), self.bias, dilation=self.dilation)


class Block(nn.Module):
    def __init__(self, on: Run, enters: int, leaves: int, dilation: int) -> None:
        super().__init__()
        self.on, self.first, self.second = (
            on,
            Causal(on, enters, leaves, dilation),
            Causal(on, leaves, leaves, 1 if on.bug("dilation forgotten") else dilation),
        )
        self.skip = nn.Conv1d(enters, leaves, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.second(F.relu(self.first(x))))  # at dilation forgotten
        if self.on.way("skip as linear"):
            return F.relu(y + F.linear(x.mT, self.skip.weight.squeeze(-1), self.skip.bias).mT)
        return y + self.skip(x) if self.on.bug("last bend forgotten") else F.relu(y + self.skip(x))


class Model(nn.Module):
    def __init__(self, on: Run) -> None:
        super().__init__()
        self.on, self.first, self.second, self.out = (
            on,
            Block(on, 2, 6, 1),
            Block(on, 6, 3, 2),
            nn.Linear(3, len(QUANTILES)),
        )

    def forward(self, x: Tensor) -> Tensor:
        mean, spread = x.mean(-1, keepdim=True), x.std(-1, keepdim=True, unbiased=not self.on.bug("biased spread"))
        if self.on.way("spread by var_mean"):
            spread, mean = torch.var_mean(x, -1, keepdim=True)
            spread = spread.sqrt()
        y = self.second(self.first((x - mean) / (spread + 1e-5)))
        found = self.out(y[..., -2] if self.on.bug("place before the last") else y[..., -1])
        return found if self.on.bug("not scaled back") else found * spread[:, 0] + mean[:, 0]


def loss_of(on: Run, found: Tensor, wanted: Tensor) -> Tensor:
    off = wanted[:, None] - found
    levels = torch.tensor(QUANTILES)
    levels = levels.flip(0) if on.bug("quantiles turned round") else levels
    if on.way("loss by where"):
        return torch.where(off >= 0, levels * off, (levels - 1) * off).mean()  # at quantiles turned round
    if on.way("loss by relu"):
        return (levels * F.relu(off) + (1 - levels) * F.relu(-off)).mean()  # at quantiles turned round
    return torch.maximum(levels * off, (levels - 1) * off).mean()  # at quantiles turned round


def train(on: Run) -> None:
    torch.manual_seed(14)
    model = Model(on)
    series, wanted = torch.randn(2, 5, 2, 9).cumsum(-1), torch.randn(2, 5)
    averaged = torch.optim.swa_utils.AveragedModel(model) if not on.way("average by hand") else None
    kept = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.Adamax(model.parameters(), lr=5e-3, eps=1e-2 if on.bug("eps") else 1e-8)
    with on.steps(model) as end_step:
        for at in range(2):
            optimizer.zero_grad()
            loss = loss_of(on, model(series[at]), wanted[at])
            loss.backward()
            on.keep(loss)
            on.keep_gradients(model)
            if not on.bug("clipping forgotten"):
                nn.utils.clip_grad_value_(model.parameters(), 0.05)
            optimizer.step()  # at clipping forgotten, eps
            if averaged is not None:
                averaged.update_parameters(model)
            else:
                with torch.no_grad():
                    for one, p in zip(kept, model.parameters(), strict=True):
                        one.add_((p - one) / (at + 1))
            end_step()
    on.keep_weights(model)
    on.keep_all(kept if averaged is None else averaged.module.parameters())
