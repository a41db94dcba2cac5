"""Capsules that route by agreement, with a margin loss and a picture put together again."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..running import Run

ENTER, LEAVE, CLASSES = 8, 4, 3


def squashed(on: Run, x: Tensor, axis: int = -1) -> Tensor:
    square = x.pow(2).sum(axis, keepdim=True)
    if on.way("squashed through the norm"):
        norm = torch.linalg.vector_norm(x, dim=axis, keepdim=True)
        return x * (norm / (1 + norm * norm))
    if on.bug("squashed without root"):
        return x * (square / (1 + square))
    return x * (square / (1 + square)) / square.sqrt()  # at squashed without root


class Routing(nn.Module):
    def __init__(self, on: Run) -> None:
        super().__init__()
        self.on, self.weight = on, nn.Parameter(torch.randn(ENTER, CLASSES, LEAVE, 4) * 0.4)

    def forward(self, x: Tensor) -> Tensor:
        if self.on.way("votes by matmul"):
            votes = (self.weight @ x[:, :, None, :, None]).squeeze(-1)
        else:
            votes = torch.einsum("iclk,bik->bicl", self.weight, x)
        still = votes if self.on.bug("votes not detached") else votes.detach()
        logits = torch.zeros(*votes.shape[:3])
        for at in range(2 if self.on.bug("a round too few") else 3):
            shares = logits.softmax(1 if self.on.bug("softmax over what enters") else 2)
            used = votes if at == 2 else still
            if self.on.way("sums by einsum"):
                total = torch.einsum("bic,bicl->bcl", shares, used)
            else:
                total = (shares.unsqueeze(-1) * used).sum(1)
            out = squashed(self.on, total)
            agreed = (
                torch.einsum("bicl,bcl->bic", still, out)
                if self.on.way("sums by einsum")
                else (still * out.unsqueeze(1)).sum(-1)
            )
            if self.on.bug("agreement not added up"):
                logits = agreed
            elif self.on.way("logits in place") and not self.on.bug("votes not detached"):
                with torch.no_grad():
                    logits = logits.clone().add_(agreed)  # at agreement not added up
            else:
                logits = logits + (
                    agreed if self.on.bug("votes not detached") else agreed.detach()
                )  # at agreement not added up
        return out


class Model(nn.Module):
    def __init__(self, on: Run) -> None:
        super().__init__()
        self.on, self.enter, self.routing = on, nn.Conv2d(1, 8, 3, stride=2), Routing(on)
        self.inner, self.leave = nn.Linear(CLASSES * LEAVE, 16), nn.Linear(16, 36)

    def forward(self, x: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
        y = F.softplus(self.enter(x))  # never zero: a vector of zeros has no direction
        if self.on.bug("capsules across places"):
            y = y.flatten(1).view(len(x), ENTER, 4)
        else:
            y = y.flatten(2).permute(0, 2, 1).reshape(len(x), ENTER, 4)  # at capsules across places
        capsules = self.routing(squashed(self.on, y))
        lengths = capsules.pow(2).sum(-1).sqrt() if self.on.way("length written out") else capsules.norm(dim=-1)
        if self.on.way("mask by index"):
            masked = torch.zeros_like(capsules)
            rows = torch.arange(len(x))
            masked[rows, label] = capsules[rows, label]
        else:
            masked = capsules * F.one_hot(label, CLASSES).unsqueeze(-1)
        masked = capsules if self.on.bug("other classes not masked") else masked
        return lengths, torch.sigmoid(self.leave(F.relu(self.inner(masked.flatten(1)))))


def loss_of(on: Run, model: Model, x: Tensor, label: Tensor) -> Tensor:
    lengths, seen = model(x, label)
    true = F.one_hot(label, CLASSES).to(x.dtype)
    weight = 1.0 if on.bug("weight of absent classes") else 0.5
    low = 0.2 if on.bug("lower margin") else 0.1
    if on.way("margins by clamp"):
        margin = (
            true * (0.9 - lengths).clamp(min=0).square() + weight * (1 - true) * (lengths - low).clamp(min=0).square()
        )  # at lower margin, weight of absent classes
    else:
        margin = (
            true * F.relu(0.9 - lengths) ** 2 + weight * (1 - true) * F.relu(lengths - low) ** 2
        )  # at lower margin, weight of absent classes
    picture = (seen - x.flatten(1)).pow(2)
    return margin.sum(1).mean() + 0.05 * (picture.mean() if on.bug("mean for sum") else picture.sum(1).mean())


def train(on: Run) -> None:
    torch.manual_seed(13)
    model = Model(on)
    pictures, labels = torch.rand(2, 4, 1, 6, 6), torch.randint(0, CLASSES, (2, 4))
    optimizer = torch.optim.Adadelta(model.parameters(), lr=0.5, rho=0.95 if on.bug("rho") else 0.9)
    with on.steps(model) as end_step:
        for x, label in zip(pictures, labels, strict=True):
            optimizer.zero_grad()
            loss = loss_of(on, model, x, label)
            loss.backward()
            on.keep(loss)
            on.keep_gradients(model)
            optimizer.step()  # at rho
            end_step()
    on.keep_weights(model)
