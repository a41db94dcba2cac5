"""Speech to letters: a front of convolutions, a bidirectional LSTM, and the CTC loss."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..running import Run

LETTERS = 6  # the first is the blank


class Recurrent(nn.Module):
    def __init__(self, on: Run, enters: int, size: int) -> None:
        super().__init__()
        self.on, self.size = on, size
        self.cell = nn.LSTM(enters, size, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        if not self.on.way("cell by hand"):
            return self.cell(x.flip(0) if self.on.bug("time turned round") else x)[0]
        cell = self.cell
        ahead = self.run(x, cell.weight_ih_l0, cell.weight_hh_l0, cell.bias_ih_l0 + cell.bias_hh_l0)
        back = self.run(
            x.flip(0),
            cell.weight_ih_l0_reverse,
            cell.weight_hh_l0_reverse,
            cell.bias_ih_l0_reverse + cell.bias_hh_l0_reverse,
        )
        return torch.cat([ahead, back if self.on.bug("not turned back") else back.flip(0)], -1)

    def run(self, x: Tensor, enter: Tensor, stay: Tensor, bias: Tensor) -> Tensor:
        h, c, found = torch.zeros(x.shape[1], self.size), torch.zeros(x.shape[1], self.size), []
        for one in x:
            i, f, g, o = (one @ enter.t() + h @ stay.t() + bias).chunk(4, 1)
            if self.on.bug("gates in another order"):
                f, i = i, f
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            found.append(h)
        return torch.stack(found)


TOGETHER = (("cell by hand", "gates in another order"), ("cell by hand", "not turned back"))


class Model(nn.Module):
    def __init__(self, on: Run) -> None:
        super().__init__()
        self.on, self.first, self.second = on, nn.Conv1d(5, 8, 3, stride=2, padding=1), nn.Conv1d(8, 8, 3, padding=1)
        self.norm, self.cell = nn.LayerNorm(8, eps=1e-3 if on.bug("eps of the norm") else 1e-5), Recurrent(on, 8, 5)
        self.out = nn.Linear(10, LETTERS)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        if not self.on.bug("padding not masked"):
            short = (lengths + 1) // 2
            seen = torch.arange(x.shape[2]) < short[:, None]
            x = torch.where(seen[:, None], x, 0.0) if self.on.way("mask by where") else x * seen[:, None]
        x = self.second(x)  # at padding not masked
        x = F.hardtanh(x, 0, 0.3) if self.on.bug("bent at the top") else F.relu(x)
        if self.on.way("time first by einops of torch"):
            x = torch.einsum("bcl->lbc", x)
        else:
            x = x.permute(2, 0, 1)
        if self.on.way("norm written out"):
            x = x - x.mean(-1, keepdim=True)
            x = (
                x / (x.pow(2).mean(-1, keepdim=True) + self.norm.eps).sqrt() * self.norm.weight + self.norm.bias
            )  # at eps of the norm
        else:
            x = self.norm(x)  # at eps of the norm
        return self.out(self.cell(x)).log_softmax(1 if self.on.bug("softmax over the batch") else -1)


def loss_of(on: Run, logs: Tensor, lengths: Tensor, letters: Tensor, counts: Tensor) -> Tensor:
    lengths = lengths if on.bug("lengths not halved") else (lengths + 1) // 2
    lengths = lengths.clamp(max=len(logs))
    blank = LETTERS - 1 if on.bug("blank is the last") else 0
    if on.way("mean by hand"):
        losses = F.ctc_loss(logs, letters, lengths, counts, blank, "none")  # at blank is the last, lengths not halved
        return (losses / counts).sum() / len(losses)
    if on.way("targets joined"):
        joined = torch.cat([row[:count] for row, count in zip(letters, counts.tolist(), strict=True)])
        return F.ctc_loss(logs, joined, lengths, counts, blank)  # at blank is the last, lengths not halved
    return F.ctc_loss(
        logs, letters, lengths, counts, blank, "sum" if on.bug("sum for mean") else "mean"
    )  # at blank is the last, lengths not halved


def train(on: Run) -> None:
    torch.manual_seed(15)
    model = Model(on)
    sounds, lengths = torch.randn(2, 3, 5, 16), torch.tensor([16, 13, 10])
    letters, counts = torch.randint(1, LETTERS - 1, (2, 3, 3)), torch.tensor([3, 2, 1])
    optimizer = torch.optim.Adagrad(
        model.parameters(), lr=0.02, initial_accumulator_value=0.1 if on.bug("starts at 0.1") else 0.01
    )
    with on.steps(model) as end_step:
        for at in range(2):
            loss = loss_of(on, model(sounds[at], lengths), lengths, letters[at], counts)
            if on.way("gradients by autograd.grad"):
                for p, slope in zip(
                    model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True
                ):
                    p.grad = slope
            else:
                loss.backward()
            on.keep(loss)
            on.keep_gradients(model)
            optimizer.step()  # at starts at 0.1
            optimizer.zero_grad()
            end_step()
    on.keep_weights(model)
