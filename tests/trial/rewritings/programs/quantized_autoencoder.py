"""An autoencoder with a vector-quantized middle: straight-through gradients, a codebook kept by moving averages."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..running import Run

CODES, SIZE = 7, 4


class Quantizer(nn.Module):
    def __init__(self, on: Run) -> None:
        super().__init__()
        self.on = on
        self.register_buffer("codes", torch.randn(CODES, SIZE) * 0.4)
        self.register_buffer("counts", torch.ones(CODES))
        self.register_buffer("sums", self.codes.clone())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        flat = x.permute(0, 2, 3, 1).reshape(-1, SIZE)
        if self.on.way("distances by cdist"):
            chosen = torch.cdist(flat, self.codes, compute_mode="donot_use_mm_for_euclid_dist").argmin(1)
        elif self.on.bug("farthest code"):
            chosen = (flat.unsqueeze(1) - self.codes).pow(2).sum(-1).argmax(1)
        else:
            chosen = (flat.pow(2).sum(1, True) - 2 * flat @ self.codes.t() + self.codes.pow(2).sum(1)).argmin(
                1
            )  # at farthest code
        if self.on.way("codes by one-hot product"):
            found = F.one_hot(chosen, CODES).to(flat.dtype) @ self.codes
        else:
            found = self.codes[chosen]
        self.learn(flat.detach(), chosen)
        if self.on.bug("wrong commitment"):
            loss = F.mse_loss(flat.detach(), found) + 0 * flat.sum()
        else:
            loss = F.mse_loss(
                flat, found, reduction="sum" if self.on.bug("sum for mean") else "mean"
            )  # at wrong commitment
        passed = found if self.on.bug("not straight through") else flat + (found - flat).detach()
        if self.on.bug("codes doubled"):
            passed = flat + found.detach()
        return passed.view(x.shape[0], *x.shape[2:], SIZE).permute(
            0, 3, 1, 2
        ), loss  # at not straight through, codes doubled

    @torch.no_grad()
    def learn(self, flat: Tensor, chosen: Tensor) -> None:
        keep = 0.8 if self.on.bug("decay of the averages") else 0.9
        one_hot = F.one_hot(chosen, CODES).to(flat.dtype)
        counts = one_hot.sum(0)
        sums = (
            torch.zeros(CODES, SIZE).index_add(0, chosen, flat)
            if self.on.way("sums by index_add")
            else one_hot.t() @ flat
        )
        if self.on.bug("counts not averaged"):
            self.counts = counts
        elif self.on.way("averages bound anew"):
            self.counts = self.counts * keep + counts * (1 - keep)  # at decay of the averages, counts not averaged
            self.sums = self.sums * keep + sums * (1 - keep)  # at decay of the averages
        else:
            self.counts.mul_(keep).add_(counts, alpha=1 - keep)  # at decay of the averages, counts not averaged
        if not self.on.way("averages bound anew"):
            self.sums.lerp_(sums, 1 - keep)  # at decay of the averages
        total = self.counts.sum()
        smooth = (self.counts + 1e-5) / (total + CODES * 1e-5) * total
        if self.on.bug("codes not refreshed"):
            return
        self.codes = (
            self.sums / smooth[:, None]
            if self.on.way("averages bound anew")
            else self.codes.copy_(self.sums / smooth[:, None])
        )  # at codes not refreshed


class Model(nn.Module):
    def __init__(self, on: Run) -> None:
        super().__init__()
        self.on = on
        self.enter = nn.Sequential(nn.Conv2d(1, 8, 4, 2, 1), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, SIZE, 1))
        self.middle = Quantizer(on)
        self.leave = nn.Sequential(nn.Conv2d(SIZE, 8, 3, padding=1), nn.ReLU(), nn.ConvTranspose2d(8, 1, 4, 2, 1))
        if on.way("channels last"):
            self.to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        if self.on.way("channels last"):
            x = x.contiguous(memory_format=torch.channels_last)
        inner = self.enter(x)
        if self.on.way("last layer as product"):
            y = self.enter[2](self.enter[1](self.enter[0](x)))
            inner = torch.einsum("oi,bihw->bohw", self.enter[3].weight.flatten(1), y) + self.enter[3].bias.view(
                -1, 1, 1
            )
        middle, loss = self.middle(inner)
        return F.mse_loss(self.leave(middle), x) + (0.5 if self.on.bug("commitment weight") else 0.25) * loss


def train(on: Run) -> None:
    torch.manual_seed(6)
    model = Model(on)
    batches = torch.rand(2, 3, 1, 8, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, amsgrad=on.bug("amsgrad"), betas=(0.5, 0.9))
    with on.steps(model) as end_step:
        for batch in batches:
            optimizer.zero_grad()
            loss = model(batch)
            loss.backward()
            on.keep(loss)
            on.keep_gradients(model)
            optimizer.step()  # at amsgrad
            end_step()
    on.keep_weights(model)
    on.keep(model.middle.codes, model.middle.counts, model.middle.sums)
