"""Two players, one draws and one tells: Wasserstein losses with a penalty of the gradient; averages of the drawer are kept."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..running import Run


class Drawer(nn.Module):
    def __init__(self, on: Run) -> None:
        super().__init__()
        self.on, self.first, self.norm, self.second = (
            on,
            nn.Linear(4, 10),
            nn.BatchNorm1d(10, momentum=0.2),
            nn.Linear(10, 6),
        )

    def forward(self, noise: Tensor) -> Tensor:
        x = self.first(noise)
        if self.on.way("norm by var_mean"):
            spread, mean = torch.var_mean(x, 0, correction=0)
            if self.norm.training:
                self.norm.num_batches_tracked += 1
                with torch.no_grad():
                    count = len(x)
                    self.norm.running_mean.mul_(0.8).add_(0.2 * mean)
                    self.norm.running_var.mul_(0.8).add_(0.2 * spread * count / (count - 1))
            x = (x - mean) * torch.rsqrt(spread + self.norm.eps) * self.norm.weight + self.norm.bias
        else:
            x = self.norm(x)
        return torch.tanh(self.second(F.relu(x)))


class Teller(nn.Module):
    def __init__(self, on: Run) -> None:
        super().__init__()
        self.on, self.first, self.second, self.last = on, nn.Linear(6, 12), nn.Linear(12, 12), nn.Linear(12, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bent(self.first(x))
        x = self.bent(self.second(x)) + (0 if self.on.bug("skip dropped") else x)
        return self.last(x).squeeze(-1)

    def bent(self, x: Tensor) -> Tensor:
        slope = 0.01 if self.on.bug("slope") else 0.2
        if self.on.way("slope by where"):
            return torch.where(x > 0, x, slope * x)  # at slope
        return F.leaky_relu(x, slope)  # at slope


def penalty(on: Run, teller: Teller, real: Tensor, drawn: Tensor, share: Tensor) -> Tensor:
    between = (share * real + (1 - share) * drawn).detach().requires_grad_()
    if on.bug("penalty at the real"):
        between = real.detach().requires_grad_()
    if on.way("slopes by vmap"):
        slope = torch.func.vmap(torch.func.grad(lambda x: teller(x[None])[0]))(between)
    else:
        slope = torch.autograd.grad(teller(between).sum(), between, create_graph=not on.bug("penalty without graph"))[0]
    if on.bug("norm over the batch"):
        return (slope.norm() - 1).pow(2)
    norm = slope.pow(2).sum(1).sqrt() if on.way("norm written out") else slope.norm(dim=1)  # at norm over the batch
    return (norm - 1).pow(2).mean()


def tell(on: Run, drawer: Drawer, teller: Teller, real: Tensor, noise: Tensor, share: Tensor) -> Tensor:
    if on.way("drawn without graph"):
        with torch.no_grad():
            drawn = drawer(noise)
    else:
        drawn = drawer(noise).detach()
    if on.way("real and drawn in one batch"):
        seen, made = teller(torch.cat([real, drawn])).chunk(2)
    else:
        seen, made = teller(real), teller(drawn)
    loss = made.mean() - seen.mean()
    loss = loss + (1.0 if on.bug("penalty weight") else 10.0) * penalty(on, teller, real, drawn, share)
    loss.backward()
    return loss


def train(on: Run) -> None:
    torch.manual_seed(8)
    drawer, teller = Drawer(on), Teller(on)
    averaged = copy.deepcopy(drawer)
    real, noise, share = torch.randn(2, 7, 6), torch.randn(2, 2, 7, 4), torch.rand(2, 7, 1)
    betas = (0.5, 0.9)
    draws = torch.optim.Adam(drawer.parameters(), 1e-2, betas)
    tells = torch.optim.Adam(teller.parameters(), 1e-2, (0.9, 0.9) if on.bug("first beta") else betas)
    with on.steps([drawer, teller]) as end_step:
        for at in range(2):
            on.keep(tell(on, drawer, teller, real[at], noise[at, 0], share[at]))
            on.keep_gradients(teller)
            tells.step()  # at first beta
            if not on.bug("gradients of the drawer not cleared"):
                draws.zero_grad()
            loss = -teller(drawer(noise[at, 0 if on.bug("noise drawn before") else 1])).mean()
            loss.backward()  # at gradients of the drawer not cleared
            on.keep(loss)
            on.keep_gradients(drawer)
            draws.step()
            tells.zero_grad()
            average(on, averaged, drawer)
            end_step()
    for model in (drawer, teller, averaged):
        on.keep_weights(model)
    on.keep(drawer.norm.running_mean, drawer.norm.running_var)


@torch.no_grad()
def average(on: Run, averaged: Drawer, drawer: Drawer) -> None:
    keep = 0.99 if on.bug("decay of the averages") else 0.9
    if on.way("averages by foreach"):
        torch._foreach_lerp_(
            list(averaged.parameters()), list(drawer.parameters()), 1 - keep
        )  # at decay of the averages
    else:
        for a, p in zip(averaged.parameters(), drawer.parameters(), strict=True):
            a.mul_(keep).add_(p, alpha=1 - keep)  # at decay of the averages
