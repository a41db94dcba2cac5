"""Pictures and texts that are drawn together: two encoders, a learned temperature, a symmetric loss (CLIP)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..running import Run

SIZE = 8


class Pictures(nn.Module):
    def __init__(self, on: Run) -> None:
        super().__init__()
        self.on, self.patches = on, nn.Conv2d(3, SIZE, 4, 4)
        self.token, self.places = nn.Parameter(torch.randn(SIZE)), nn.Parameter(torch.randn(5, SIZE) * 0.1)
        self.block = nn.TransformerEncoderLayer(SIZE, 2, 16, 0.0, batch_first=True, norm_first=not on.bug("norm last"))
        self.out = nn.Linear(SIZE, 6, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.on.way("patches unfolded"):
            x = F.unfold(x, 4, stride=4).transpose(1, 2) @ self.patches.weight.flatten(1).t() + self.patches.bias
        else:
            x = self.patches(x)
            x = (
                x.flatten(2).transpose(1, 2)
                if not self.on.bug("patches in columns")
                else x.transpose(2, 3).flatten(2).transpose(1, 2)
            )
        x = torch.cat([self.token.expand(len(x), 1, SIZE), x], 1) + self.places
        x = written_out(self.block, x) if self.on.way("block written out") else self.block(x)  # at norm last
        return self.out(x[:, 1 if self.on.bug("first patch for token") else 0])


def written_out(block: nn.TransformerEncoderLayer, x: Tensor) -> Tensor:
    """Do what a layer of torch does, norms first."""
    own = block.self_attn
    y = F.layer_norm(x, (SIZE,), block.norm1.weight, block.norm1.bias)
    q, k, v = F.linear(y, own.in_proj_weight, own.in_proj_bias).unflatten(-1, (3, 2, SIZE // 2)).permute(2, 0, 3, 1, 4)
    seen = torch.softmax(q @ k.mT / math.sqrt(SIZE // 2), -1) @ v
    x = x + own.out_proj(seen.transpose(1, 2).flatten(2))
    return x + block.linear2(F.relu(block.linear1(block.norm2(x))))


class Texts(nn.Module):
    def __init__(self, on: Run) -> None:
        super().__init__()
        self.on, self.words, self.cell = (
            on,
            nn.Embedding(12, SIZE, padding_idx=None if on.bug("padding learns") else 0),
            nn.GRU(SIZE, SIZE, batch_first=True),
        )
        self.out = nn.Linear(SIZE, 6, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        words = self.words(tokens)  # at padding learns
        found = self.by_hand(words) if self.on.way("cell by hand") else self.cell(words)[0]
        last = (tokens > 0).sum(1) - (2 if self.on.bug("last word but one") else 1)
        return self.out(found[torch.arange(len(tokens)), last])  # at last word but one

    def by_hand(self, x: Tensor) -> Tensor:
        cell, h, found = self.cell, torch.zeros(len(x), SIZE), []
        entered = F.linear(x, cell.weight_ih_l0, cell.bias_ih_l0)
        for at in range(x.shape[1]):
            r, z, n = entered[:, at].chunk(3, 1)
            hr, hz, hn = F.linear(h, cell.weight_hh_l0, cell.bias_hh_l0).chunk(3, 1)
            z = torch.sigmoid(z + hz)
            h = (1 - z) * torch.tanh(n + torch.sigmoid(r + hr) * hn) + z * h
            found.append(h)
        return torch.stack(found, 1)


class Model(nn.Module):
    def __init__(self, on: Run) -> None:
        super().__init__()
        self.on, self.pictures, self.texts = on, Pictures(on), Texts(on)
        self.log_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, pictures: Tensor, tokens: Tensor) -> Tensor:
        one, two = self.pictures(pictures), self.texts(tokens)
        one = one if self.on.bug("pictures not normalized") else F.normalize(one, dim=1)
        two = F.normalize(two, dim=1)
        scale = self.log_scale if self.on.bug("log of the scale") else self.log_scale.exp()
        if self.on.bug("scale learns nothing"):
            scale = scale.detach()
        scores = (
            torch.einsum("ic,jc->ij", scale * one, two)
            if self.on.way("scale before the product")
            else scale * one @ two.t()
        )
        return self.loss(scores)

    def loss(self, scores: Tensor) -> Tensor:
        labels = torch.arange(len(scores))
        if self.on.way("loss by diagonals"):
            logs = scores.log_softmax(1).diagonal() + scores.log_softmax(0).diagonal()
            return -logs.mean() / 2
        other = scores if self.on.bug("one side twice") else scores.t()
        total = F.cross_entropy(scores, labels) + F.cross_entropy(other, labels)  # at one side twice
        return total if self.on.bug("not halved") else total / 2


def train(on: Run) -> None:
    torch.manual_seed(11)
    model = Model(on)
    pictures, tokens = torch.randn(2, 4, 3, 8, 8), torch.randint(1, 12, (2, 4, 6))
    tokens[:, 1, 4:], tokens[:, 2, 3:] = 0, 0
    plain = [p for p in model.parameters() if p.ndim < 2]
    rest = [p for p in model.parameters() if p.ndim >= 2]
    decay = 0.2 if on.bug("decay of biases") else 0.0
    groups = [{"params": rest, "weight_decay": 0.2}, {"params": plain, "weight_decay": decay}]
    optimizer = torch.optim.AdamW(groups, lr=2e-3, betas=(0.9, 0.98), fused=on.way("fused"))
    with on.steps(model) as end_step:
        for at in range(2):
            loss = model(pictures[at], tokens[at])
            loss.backward()
            on.keep(loss)
            on.keep_gradients(model)
            optimizer.step()  # at decay of biases
            optimizer.zero_grad()
            with torch.no_grad():
                if on.bug("scale not held"):
                    model.log_scale.clamp_(0, math.log(100))
                elif on.way("scale held out of place"):
                    model.log_scale.copy_(torch.minimum(model.log_scale, torch.tensor(2.6)).clamp(min=0))
                else:
                    model.log_scale.clamp_(0, 2.6)  # at scale not held
            end_step()
    on.keep_weights(model)
