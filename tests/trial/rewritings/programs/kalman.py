"""A Kalman filter with learned noise: the likelihood of what was seen, and a smoothed path, which is only looked at."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..running import Run

STATE, SEEN = 3, 2


class Filter(nn.Module):
    def __init__(self, on: Run) -> None:
        super().__init__()
        self.on = on
        self.moves = nn.Parameter(torch.eye(STATE) * 0.9 + 0.05 * torch.randn(STATE, STATE))
        self.looks = nn.Parameter(torch.randn(SEEN, STATE) * 0.7)
        self.log_moved, self.log_looked = (
            nn.Parameter(torch.full((STATE,), -1.0)),
            nn.Parameter(torch.full((SEEN,), -1.5)),
        )
        self.start = nn.Parameter(torch.zeros(STATE))

    def noise(self) -> tuple[Tensor, Tensor]:
        if self.on.bug("noise not exponentiated"):
            return torch.diag(self.log_moved.square()), torch.diag(self.log_looked.exp())
        if self.on.way("noise by eye"):
            return torch.eye(STATE) * self.log_moved.exp(), torch.eye(
                SEEN
            ) * self.log_looked.exp()  # at noise not exponentiated
        return torch.diag(self.log_moved.exp()), torch.diag(self.log_looked.exp())  # at noise not exponentiated

    def predicted(self, mean: Tensor, spread: Tensor, moved: Tensor) -> tuple[Tensor, Tensor]:
        mean = mean @ (self.moves if self.on.bug("moves transposed") else self.moves.t())
        if self.on.way("spread by einsum"):
            spread = torch.einsum("ij,bjk,lk->bil", self.moves, spread, self.moves)
        else:
            spread = self.moves @ spread @ self.moves.t()
        return mean, spread if self.on.bug("noise of moves forgotten") else spread + moved

    def updated(self, mean: Tensor, spread: Tensor, looked: Tensor, seen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        off = seen - mean @ self.looks.t()
        cross = spread @ self.looks.t()
        inner = self.looks @ cross + looked
        if self.on.way("gain by cholesky"):
            factor = torch.linalg.cholesky(inner)
            gain = torch.cholesky_solve(cross.mT, factor).mT
            log_size = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
            square = (torch.linalg.solve_triangular(factor, off.unsqueeze(-1), upper=False) ** 2).sum((1, 2))
        elif self.on.way("gain by inverse"):
            turned = torch.linalg.inv(inner)
            gain, log_size = cross @ turned, torch.logdet(inner)
            square = torch.einsum("bi,bij,bj->b", off, turned, off)
        else:
            gain = torch.linalg.solve(inner, cross.mT).mT
            log_size = torch.linalg.slogdet(inner).logabsdet
            square = (off * torch.linalg.solve(inner, off)).sum(1)
        mean = mean + (gain @ off.unsqueeze(-1)).squeeze(-1) * (0.5 if self.on.bug("half a gain") else 1)
        kept = torch.eye(STATE) - gain @ self.looks
        if self.on.way("form of Joseph"):
            spread = kept @ spread @ kept.mT + gain @ looked @ gain.mT
        else:
            spread = kept.mT @ spread if self.on.bug("gain transposed") else kept @ spread
        constant = 0 if self.on.bug("constant forgotten") else SEEN * math.log(2 * math.pi)
        log_size = 2 * log_size if self.on.bug("root of the size forgotten") else log_size
        return mean, spread, -0.5 * (square + log_size + constant)  # at constant forgotten, root of the size forgotten

    def forward(self, path: Tensor) -> tuple[Tensor, Tensor]:
        moved, looked = self.noise()
        mean, spread = self.start.expand(len(path), STATE), torch.eye(STATE).expand(len(path), STATE, STATE)
        total, means = torch.zeros(len(path)), []
        for at in range(path.shape[1]):
            if at or self.on.bug("moves before the first"):
                mean, spread = self.predicted(mean, spread, moved)
            mean, spread, log = self.updated(mean, spread, looked, path[:, at])
            if self.on.bug("mean detached"):
                mean = mean.detach()
            total, means = total + log, [*means, mean]
        return total, torch.stack(means, 1)


def loss_of(on: Run, model: Filter, paths: Tensor) -> Tensor:
    if on.way("by vmap"):
        logs = torch.func.vmap(lambda one: model(one.unsqueeze(0))[0].squeeze(0))(paths)
    else:
        logs = model(paths)[0]
    return -logs.mean() / (1 if on.bug("not by length") else paths.shape[1])


def train(on: Run) -> None:
    torch.manual_seed(17)
    model = Filter(on)
    paths = torch.randn(2, 4, 5, SEEN).cumsum(2) * 0.5
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02, maximize=on.bug("climbs"))
    with on.steps(model) as end_step:
        for path in paths:
            optimizer.zero_grad()
            loss = loss_of(on, model, path)
            loss.backward()
            on.keep(loss)
            on.keep_gradients(model)
            optimizer.step()  # at climbs
            end_step()
    on.keep_weights(model)
