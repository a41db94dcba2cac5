"""Model-agnostic meta-learning: the loss after two steps on few examples, with gradients of the second order."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..running import Run

Weights = dict[str, Tensor]


class Learner(nn.Module):
    def __init__(self, on: Run) -> None:
        super().__init__()
        self.on, self.first, self.second, self.third = on, nn.Linear(2, 12), nn.Linear(12, 12), nn.Linear(12, 1)
        self.rates = nn.Parameter(torch.full((2,), 0.1))

    def forward(self, x: Tensor, weights: Weights) -> Tensor:
        for name in ("first", "second", "third"):
            weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
            if self.on.way("baddbmm"):
                x = torch.baddbmm(bias.view(1, 1, -1), x[None], weight.t()[None])[0]
            else:
                x = F.linear(x, weight, bias)
            if name != "third" or self.on.bug("bend at the end"):
                x = torch.tanh(x) if self.on.bug("tanh for softplus") else F.softplus(x)
        return x.squeeze(-1)

    def adapted(self, x: Tensor, y: Tensor) -> Weights:
        """Take two steps of descent from the weights."""
        weights = {name: p for name, p in self.named_parameters() if name != "rates"}
        started = weights
        for at in range(2):
            loss = (self(x, weights) - y).pow(2).mean()
            held = started if self.on.bug("slope at the start") else weights
            if self.on.bug("slope at the start"):
                loss = (self(x, held) - y).pow(2).mean()
            slopes = torch.autograd.grad(loss, list(held.values()), create_graph=not self.on.bug("first order only"))
            rate = self.rates[0 if self.on.bug("rate of the first step") else at]
            if self.on.bug("rate detached"):
                rate = rate.detach()
            weights = {
                name: p - rate * g for (name, p), g in zip(weights.items(), slopes, strict=True)
            }  # at rate of the first step
        return weights

    def adapted_by_func(self, x: Tensor, y: Tensor) -> Weights:
        """Take the same steps, by gradients of functions."""
        weights = {name: p for name, p in self.named_parameters() if name != "rates"}
        for at in range(2):
            slopes = torch.func.grad(lambda w: (self(x, w) - y).pow(2).mean())(weights)
            rate = self.rates[0 if self.on.bug("rate of the first step") else at]
            weights = {name: p - rate * slopes[name] for name, p in weights.items()}  # at rate of the first step
        return weights


def loss_of(on: Run, model: Learner, x: Tensor, y: Tensor) -> Tensor:
    """Return the loss of one task: five examples to learn from, the others to be asked."""
    learns = slice(0, 5)
    asked = slice(0, 5) if on.bug("asked what it learnt from") else slice(5, None)
    adapted = model.adapted_by_func if on.way("torch.func.grad") or on.way("tasks by vmap") else model.adapted
    weights = adapted(x[learns], y[learns])
    return (model(x[asked], weights) - y[asked]).pow(2).mean()  # at asked what it learnt from


def train(on: Run) -> None:
    torch.manual_seed(7)
    model = Learner(on)
    xs = torch.randn(2, 3, 10, 2)
    ys = torch.sin(xs[..., 0] * torch.rand(2, 3, 1) * 2) + xs[..., 1]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, dampening=0.9 if on.bug("dampening") else 0)
    with on.steps(model) as end_step:
        for x, y in zip(xs, ys, strict=True):
            loss = descend(on, model, x, y)
            on.keep(loss)
            on.keep_gradients(model)
            if on.way("sgd by hand"):
                sgd(optimizer)
            else:
                optimizer.step()  # at dampening
            optimizer.zero_grad()
            end_step()
    on.keep_weights(model)


def descend(on: Run, model: Learner, xs: Tensor, ys: Tensor) -> Tensor:
    count = 3 - 1 if on.bug("mean of too few") else 3
    if on.way("tasks by vmap"):
        loss = torch.func.vmap(lambda x, y: loss_of(on, model, x, y))(xs, ys).sum() / count  # at mean of too few
        loss.backward()
    elif on.way("backward for each task"):
        loss = torch.zeros(())
        for x, y in zip(xs, ys, strict=True):
            one = loss_of(on, model, x, y) / count  # at mean of too few
            one.backward()
            loss = loss + one.detach()
    else:
        loss = sum(loss_of(on, model, x, y) for x, y in zip(xs, ys, strict=True)) / count  # at mean of too few
        loss.backward()
    return loss


@torch.no_grad()
def sgd(optimizer: torch.optim.SGD) -> None:
    for p in optimizer.param_groups[0]["params"]:
        state = optimizer.state[p]
        state["velocity"] = p.grad.clone() if "velocity" not in state else 0.9 * state["velocity"] + p.grad
        p.add_(state["velocity"], alpha=-0.05)
