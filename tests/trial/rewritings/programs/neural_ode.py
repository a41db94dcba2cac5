"""A neural ordinary differential equation, solved by Runge-Kutta of order four, fitted to a damped swing."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..running import Run


class Field(nn.Module):
    def __init__(self, on: Run) -> None:
        super().__init__()
        self.on, self.enter, self.time, self.leave = (
            on,
            nn.Linear(2, 10),
            nn.Linear(1, 10, bias=False),
            nn.Linear(10, 2),
        )

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        if self.on.way("one matrix for state and time"):
            weight = torch.cat([self.enter.weight, self.time.weight], 1)
            inner = torch.cat([y, t.expand(len(y), 1)], 1) @ weight.t() + self.enter.bias
        else:
            inner = self.enter(y) + self.time(t.view(1, 1))
        inner = torch.tanh(inner) * (torch.tanh(inner) if self.on.bug("squared") else 1)
        return self.leave(inner)


class Solver(nn.Module):
    def __init__(self, on: Run) -> None:
        super().__init__()
        self.on, self.field = on, Field(on)
        self.register_buffer("times", torch.linspace(0, 1, 5))

    def step(self, t: Tensor, h: Tensor, y: Tensor) -> Tensor:
        k1 = self.field(t, y)
        k2 = self.field(t if self.on.bug("time not halved") else t + h / 2, y + h / 2 * k1)
        k3 = self.field(t + h / 2, y + h / 2 * (k1 if self.on.bug("first slope twice") else k2))
        k4 = self.field(t + h, y + (h / 2 if self.on.bug("half step at the end") else h) * k3)
        if self.on.way("weights as a vector"):
            weights = torch.tensor([1 / 6, 1 / 3, 1 / 3, 1 / 6])
            slope = torch.einsum("k,kbd->bd", weights, torch.stack([k1, k2, k3, k4]))
        elif self.on.bug("wrong weights"):
            slope = (k1 + k2 + k3 + k4) / 4
        else:
            slope = (k1 + 2 * k2 + 2 * k3 + k4) / 6  # at wrong weights
        return torch.add(y, h * slope)

    def forward(self, y: Tensor) -> Tensor:
        path = torch.empty(len(self.times), *y.shape) if self.on.way("path in a buffer") else [y]
        if isinstance(path, Tensor):
            path[0] = y
        for at in range(len(self.times) - 1):
            h = self.times[at + 1] - self.times[at]
            y = self.step(self.times[at + 1 if self.on.bug("time of the end") else at], h, y)
            if at == 1 and self.on.bug("path detached"):
                y = y.detach()
            if isinstance(path, Tensor):
                path[at + 1] = y
            else:
                path.append(y)
        return path if isinstance(path, Tensor) else torch.stack(path)


def train(on: Run) -> None:
    torch.manual_seed(4)
    model = Solver(on)
    start = torch.randn(6, 2)
    turn = torch.stack([torch.matrix_exp(t * torch.tensor([[-0.3, 2.0], [-2.0, -0.3]])) for t in model.times])
    wanted = torch.einsum("tij,bj->tbi", turn, start)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01, alpha=0.9 if on.bug("smoothing constant") else 0.99)
    with on.steps(model) as end_step:
        for _ in range(2):
            optimizer.zero_grad()
            losses = losses_of(on, model, start, wanted)
            on.keep(losses)
            on.keep_gradients(model)
            rms_prop(on, optimizer)  # at smoothing constant
            end_step()
    on.keep_weights(model)


def losses_of(on: Run, model: nn.Module, start: Tensor, wanted: Tensor) -> Tensor:
    """Set gradients and return the loss."""
    if on.way("torch.func.grad"):

        def loss_of(weights: dict[str, Tensor]) -> Tensor:
            return (torch.func.functional_call(model, weights, (start,)) - wanted).pow(2).mean()

        weights = {name: p.detach() for name, p in model.named_parameters()}
        gradients, loss = torch.func.grad_and_value(loss_of)(weights)
        for name, p in model.named_parameters():
            p.grad = gradients[name]
        return loss
    if on.way("each start alone"):
        loss = torch.stack([(model(start[i : i + 1]) - wanted[:, i : i + 1]).pow(2).mean() for i in range(6)]).mean()
    elif on.bug("start counted out"):
        loss = (model(start)[1:] - wanted[1:]).pow(2).mean()
    else:
        loss = (model(start) - wanted).pow(2).mean()  # at start counted out
    loss.backward()
    return loss


def rms_prop(on: Run, optimizer: torch.optim.RMSprop) -> None:
    if not on.way("rmsprop by hand"):
        optimizer.step()  # at smoothing constant
        return
    alpha = 0.9 if on.bug("smoothing constant") else 0.99
    with torch.no_grad():
        for p in optimizer.param_groups[0]["params"]:
            state = optimizer.state[p]
            before = state["square"] if "square" in state else torch.zeros_like(p)
            state["square"] = before.mul(alpha).addcmul(p.grad, p.grad, value=1 - alpha)  # at smoothing constant
            p.addcdiv_(p.grad, state["square"].sqrt() + 1e-8, value=-0.01)
