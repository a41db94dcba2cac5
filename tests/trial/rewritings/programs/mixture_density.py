"""A recurrent network that draws: mixtures of Gaussians of two variables, a window over letters, truncated gradients."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..running import Run

PARTS, SIZE, LETTERS = 3, 7, 5


class Writer(nn.Module):
    def __init__(self, on: Run) -> None:
        super().__init__()
        self.on, self.cell = on, nn.LSTMCell(3 + LETTERS, SIZE)
        self.window, self.out = nn.Linear(SIZE, 6), nn.Linear(SIZE, 1 + 6 * PARTS)

    def step(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        if not self.on.way("cell by hand"):
            return self.cell(x, (h, c))
        both = (
            torch.cat([x, h], 1) @ torch.cat([self.cell.weight_ih, self.cell.weight_hh], 1).t()
            + self.cell.bias_ih
            + self.cell.bias_hh
        )
        i, f, g, o = both.chunk(4, 1)
        forget = f + 1 if self.on.bug("bias of the forget gate") else f
        c = torch.sigmoid(forget) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c

    def looked(self, h: Tensor, place: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
        height, width, moved = self.window(h).exp().chunk(3, 1)
        place = moved * 0.1 if self.on.bug("window does not move on") else place + moved * 0.1
        places = torch.arange(text.shape[1]) + (1 if self.on.bug("letters off by one") else 0)
        off = place.unsqueeze(-1) - places
        weight = (height.unsqueeze(-1) * torch.exp(-width.unsqueeze(-1) * off * off)).sum(1)  # at letters off by one
        if self.on.way("window by einsum"):
            return torch.einsum("bl,blc->bc", weight, text), place
        return (weight.unsqueeze(1) @ text).squeeze(1), place

    def forward(self, x: Tensor, text: Tensor, state: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        h, c, place, seen = state
        found = torch.zeros(x.shape[1], len(x), SIZE) if self.on.way("written into a buffer") else []
        for at in range(x.shape[1]):
            h, c = self.step(torch.cat([x[:, at], seen], 1), h, c)
            seen, place = self.looked(h, place, text)
            if isinstance(found, Tensor):
                found[at] = h
            else:
                found.append(h)
        whole = found.transpose(0, 1) if isinstance(found, Tensor) else torch.stack(found, 1)
        return self.out(whole), [h, c, place, seen]


def loss_of(on: Run, out: Tensor, wanted: Tensor) -> Tensor:
    """Return the negative log of the density of the next point and of the end of a stroke."""
    end, rest = out[..., 0], out[..., 1:].unflatten(-1, (6, PARTS))
    weight, mean_x, mean_y, log_x, log_y, turned = rest.unbind(-2)
    if on.way("one correlated Gaussian of torch"):
        logs = by_torch(mean_x, mean_y, log_x, log_y, turned.tanh(), wanted)
    else:
        related = torch.sigmoid(turned) if on.bug("sigmoid for tanh") else torch.tanh(turned)
        x, y = (wanted[..., :1] - mean_x) / log_x.exp(), (wanted[..., 1:2] - mean_y) / log_y.exp()
        rest_of = 1 - related * related
        square = x * x + y * y - (1 if on.bug("two forgotten") else 2) * related * x * y
        logs = -square / (2 * rest_of) - math.log(2 * math.pi) - (log_x if on.bug("one scale twice") else log_y) - log_x
        logs = logs - (1.0 if on.bug("root forgotten") else 0.5) * rest_of.log()
    mixed = (logs + weight.log_softmax(-1)) if not on.bug("weights not normed") else logs + weight
    if on.way("sum of exponentials by hand"):
        top = mixed.amax(-1, keepdim=True).detach()
        total = ((mixed - top).exp().sum(-1) + 0.0).log() + top.squeeze(-1)  # at weights not normed
    else:
        total = mixed.logsumexp(-1)  # at weights not normed
    if on.way("ends by softplus"):
        ends = F.softplus(end) - end * wanted[..., 2]
    else:
        ends = F.binary_cross_entropy_with_logits(
            -end if on.bug("sign of the ends") else end, wanted[..., 2], reduction="none"
        )
    return (ends - total).mean()


def by_torch(mean_x: Tensor, mean_y: Tensor, log_x: Tensor, log_y: Tensor, related: Tensor, wanted: Tensor) -> Tensor:
    """Return the logs of the densities through a triangular factor."""
    x, y = log_x.exp(), log_y.exp()
    factor = torch.stack([x, torch.zeros_like(x), related * y, (1 - related * related).sqrt() * y], -1).unflatten(
        -1, (2, 2)
    )
    normal = torch.distributions.MultivariateNormal(
        torch.stack([mean_x, mean_y], -1), scale_tril=factor, validate_args=False
    )
    return normal.log_prob(wanted[..., None, :2])


def train(on: Run) -> None:
    torch.manual_seed(21)
    model = Writer(on)
    points = torch.randn(2, 3, 6, 3)
    points[..., 2] = (points[..., 2] > 0.5).to(points.dtype)
    text = F.one_hot(torch.randint(0, LETTERS, (3, 4)), LETTERS).to(points.dtype)
    state = [torch.zeros(3, SIZE), torch.zeros(3, SIZE), torch.zeros(3, 2), torch.zeros(3, LETTERS)]
    rate = torch.optim.RMSprop(
        model.parameters(), lr=0.01, alpha=0.95, centered=not on.bug("not centered"), momentum=0.9
    )
    with on.steps(model) as end_step:
        for batch in points:
            out, state = model(batch[:, :-1], text, state)
            state = [torch.zeros_like(s) for s in state] if on.bug("state begins anew") else [s.detach() for s in state]
            loss = loss_of(on, out, batch[:, 1:])
            loss.backward()
            on.keep(loss)
            on.keep_gradients(model)
            if not on.bug("clipping forgotten"):
                if on.way("clipping by clamp"):
                    for p in model.parameters():
                        p.grad = p.grad.clamp(-0.1, 0.1)
                else:
                    nn.utils.clip_grad_value_(model.parameters(), 0.1)
            rate.step()  # at clipping forgotten, not centered
            rate.zero_grad()
            end_step()
    on.keep_weights(model)
    on.keep(*state)


TOGETHER = (("cell by hand", "bias of the forget gate"),)
