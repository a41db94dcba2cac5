"""A normalizing flow of affine couplings, trained by the likelihood; gradients are clipped."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..running import Run


class ActNorm(nn.Module):
    def __init__(self, on: Run, size: int) -> None:
        super().__init__()
        self.on, self.log_scale, self.shift = (
            on,
            nn.Parameter(torch.linspace(-0.2, 0.2, size)),
            nn.Parameter(torch.zeros(size)),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scale = self.log_scale.exp()
        volume = self.log_scale.sum() * (0 if self.on.bug("volume of the norm forgotten") else 1)
        if self.on.way("norm as one multiply-add"):
            return torch.addcmul(self.shift * scale, x, scale), volume
        return (x + self.shift) * scale, volume


class Coupling(nn.Module):
    def __init__(self, on: Run, size: int, flipped: bool) -> None:
        super().__init__()
        self.on, self.half, self.flipped = on, size // 2, flipped
        self.first, self.last = nn.Linear(self.half, 12), nn.Linear(12, size)
        self.bound = nn.Parameter(torch.ones(self.half))

    def parameters_of(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.on.way("two products for one"):
            inner = torch.tanh(self.first(x))
            weight, bias = self.last.weight, self.last.bias
            scale, shift = (inner @ w.t() + b for w, b in zip(weight.chunk(2), bias.chunk(2), strict=True))
        elif self.on.way("addmm"):
            inner = torch.addmm(self.first.bias, x, self.first.weight.t()).tanh()
            scale, shift = torch.addmm(self.last.bias, inner, self.last.weight.t()).split(self.half, 1)
        else:
            scale, shift = self.last(torch.tanh(self.first(x))).chunk(2, 1)
        if self.on.bug("scale and shift swapped"):
            scale, shift = shift, scale
        bounded = scale if self.on.bug("scale not bounded") else torch.tanh(scale)
        return bounded * self.bound, shift

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        kept, moved = x.chunk(2, 1) if not self.flipped else x.chunk(2, 1)[::-1]
        scale, shift = self.parameters_of(kept)
        moved = moved * scale.exp() + shift
        if self.on.bug("halves not put back"):
            whole = torch.cat([kept, moved], 1)
        elif self.on.way("written into a buffer"):
            whole = torch.empty_like(x)
            start = self.half if self.flipped else 0
            whole[:, start : start + self.half] = kept  # at halves not put back
            whole[:, self.half - start : 2 * self.half - start] = moved
        else:
            whole = torch.cat([moved, kept] if self.flipped else [kept, moved], 1)  # at halves not put back
        return whole, scale.sum() if self.on.bug("volume summed over the batch") else scale.sum(1)


class Flow(nn.Module):
    def __init__(self, on: Run, size: int = 6) -> None:
        super().__init__()
        self.on, self.size = on, size
        self.parts = nn.ModuleList(
            [ActNorm(on, size), Coupling(on, size, False), ActNorm(on, size), Coupling(on, size, True)]
        )
        self.turn = nn.Parameter(torch.eye(size) + 0.1 * torch.randn(size, size))

    def forward(self, x: Tensor) -> Tensor:
        volume = torch.zeros(len(x))
        for part in self.parts:
            x, more = part(x)
            volume = volume - more if self.on.bug("volume with the wrong sign") else volume + more
        x = x @ (self.turn if self.on.bug("rotation transposed") else self.turn.t())
        if self.on.way("determinant by lu"):
            _factors, _, upper = torch.linalg.lu(self.turn)[::1]
            volume = volume + upper.diagonal().abs().log().sum()
        else:
            volume = volume + torch.linalg.slogdet(self.turn).logabsdet
        constant = 0.5 * math.log(2 * math.pi) * self.size
        if self.on.way("density of torch"):
            normal = torch.distributions.Normal(torch.zeros(self.size), torch.ones(self.size))
            return normal.log_prob(x).sum(1) + volume
        return -0.5 * x.pow(2).sum(1) * (2 if self.on.bug("half forgotten") else 1) - constant + volume


def train(on: Run) -> None:
    torch.manual_seed(2)
    model = Flow(on)
    batches = torch.randn(2, 8, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=on.bug("nesterov"))
    with on.steps(model) as end_step:
        for batch in batches:
            if on.way("micro-batches"):
                loss = torch.zeros(())
                for part in batch.split(2):
                    loss_of_part = -model(part).sum() / len(batch)
                    loss_of_part.backward()  # at gradients not cleared
                    loss = loss + loss_of_part.detach()
            else:
                loss = -model(batch).mean()
                loss.backward()  # at gradients not cleared
            on.keep(loss)
            on.keep_gradients(model)
            clip(on, model)
            optimizer.step()  # at nesterov, clipping forgotten
            if not on.bug("gradients not cleared"):
                optimizer.zero_grad()
            end_step()
    on.keep_weights(model)


def clip(on: Run, model: nn.Module, most: float = 1.0) -> None:
    if on.bug("clipping forgotten"):
        return
    if on.way("clipping by hand"):
        gradients = [p.grad for p in model.parameters()]
        norm = sum((g.pow(2).sum() for g in gradients), torch.zeros(())).sqrt()
        for gradient in gradients:
            gradient.mul_((most / (norm + 1e-6)).clamp(max=1.0))
    else:
        nn.utils.clip_grad_norm_(model.parameters(), most)  # at clipping forgotten
