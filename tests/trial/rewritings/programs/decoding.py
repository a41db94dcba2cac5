"""Inference only: a decoder reads a prompt and four words more, with keys and values kept, in eval mode; nothing is learned."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..running import Run

WORDS, SIZE, HEADS, ROOM = 11, 8, 2, 10


class Layer(nn.Module):
    def __init__(self, on: Run) -> None:
        super().__init__()
        self.on, self.first, self.second = on, nn.LayerNorm(SIZE), nn.LayerNorm(SIZE)
        self.q, self.kv, self.out = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, 2 * SIZE), nn.Linear(SIZE, SIZE)
        self.wide, self.narrow = nn.Linear(SIZE, 16), nn.Linear(16, SIZE)
        self.register_buffer("kept", torch.zeros(2, 2, HEADS, ROOM, SIZE // HEADS), persistent=False)

    def remember(self, k: Tensor, v: Tensor, start: int) -> tuple[Tensor, Tensor]:
        end = start + k.shape[2]
        if self.on.way("kept by joining"):
            before = self.kept[..., :start, :]
            self.kept = torch.cat([before, torch.stack([k, v])], 3)
            return self.kept[0], self.kept[1]
        if self.on.way("kept by index_copy"):
            self.kept.index_copy_(3, torch.arange(start, end), torch.stack([k, v]))
        else:
            at = start - 1 if start and self.on.bug("written one early") else start
            self.kept[0][:, :, at : at + k.shape[2]] = k
            self.kept[1][:, :, at : at + k.shape[2]] = v
        return self.kept[0][:, :, :end], self.kept[1][:, :, :end]

    def forward(self, x: Tensor, start: int) -> Tensor:
        y = self.first(x)
        q, (k, v) = self.q(y), self.kv(y).chunk(2, -1)
        q, k, v = (
            turned(self.on, t.unflatten(-1, (HEADS, -1)).transpose(1, 2), start, name)
            for t, name in ((q, "q"), (k, "k"), (v, "v"))
        )
        k, v = self.remember(k, v, start)
        apart = torch.arange(start, start + x.shape[1])[:, None] - torch.arange(k.shape[2])
        mask = apart >= (1 if self.on.bug("last word not seen") and start else 0)
        if self.on.way("attention written out"):
            scores = (q * (SIZE // HEADS) ** -0.5) @ k.mT
            seen = torch.where(mask, scores, -torch.inf).softmax(-1) @ v  # at last word not seen
        else:
            scale = (SIZE if self.on.bug("scale of all heads") else SIZE // HEADS) ** -0.5
            seen = F.scaled_dot_product_attention(q, k, v, mask, scale=scale)  # at last word not seen
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        y = self.wide(self.first(x) if self.on.bug("first norm twice") else self.second(x))
        return x + self.narrow(F.relu(y) if self.on.bug("relu not squared") else F.relu(y).square())


def turned(on: Run, x: Tensor, start: int, name: str) -> Tensor:
    if name == "v":
        return x
    first = 0 if on.bug("angles begin anew") else start
    angles = torch.arange(first, first + x.shape[2])[:, None] * torch.tensor([1.0, 0.1])
    cos, sin = angles.cos(), angles.sin()  # at angles begin anew
    if on.way("turned by halves swapped"):
        other = torch.cat([-x[..., 2:], x[..., :2]], -1)
        return x * cos.repeat(1, 2) + other * sin.repeat(1, 2)
    left, right = x.chunk(2, -1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)


class Decoder(nn.Module):
    def __init__(self, on: Run) -> None:
        super().__init__()
        self.on, self.words, self.norm = on, nn.Embedding(WORDS, SIZE), nn.LayerNorm(SIZE)
        self.layers = nn.ModuleList([Layer(on), Layer(on)])

    def forward(self, tokens: Tensor, start: int) -> Tensor:
        x = self.words(tokens) * (1 if self.on.bug("words not scaled") else SIZE**0.5)
        for layer in self.layers:
            x = layer(x, start)
        x = self.norm(x[:, -1])
        if self.on.way("head by einsum"):
            return torch.einsum("bd,wd->bw", x, self.words.weight)
        return F.linear(x, self.words.weight)


def chosen(on: Run, logits: Tensor, before: Tensor, noise: Tensor) -> Tensor:
    """Draw words by noise, after a penalty of what was said and a cut."""
    said = torch.zeros_like(logits).scatter(1, before, 1.0) > 0
    penalty = 1.0 if on.bug("penalty forgotten") else 1.3
    logits = torch.where(said, torch.where(logits > 0, logits / penalty, logits * penalty), logits)
    logits = logits if on.bug("temperature forgotten") else logits / 5.0
    lowest = logits.topk(1 if on.bug("fewer are kept") else 5, 1).values[:, -1:]
    logits = logits.masked_fill(logits < lowest, -torch.inf)  # at fewer are kept
    if on.way("drawn by exponentials"):
        return (logits.softmax(1) / -noise.log()).argmax(1)
    return (logits - (-noise.log()).log()).argmax(1)


def train(on: Run) -> None:
    torch.manual_seed(23)
    model = Decoder(on).eval()
    for name, p in model.named_parameters():
        p.data += 0.2 * torch.randn_like(p) if "norm" in name or "first" in name or "second" in name else 0
    tokens, noise = torch.randint(0, WORDS, (2, 4)), torch.rand(4, 2, WORDS)
    with on.steps(model) as end_step, torch.inference_mode() if on.way("inference mode") else torch.no_grad():
        said, new = tokens, tokens
        for at in range(4):
            logits = model(new, 0 if at == 0 else said.shape[1] - 1)
            on.keep(logits)
            new = chosen(on, logits, said, noise[at])[:, None]
            said = torch.cat([said, new], 1)
            if at == 1:
                end_step()
        on.keep(said)
        end_step()
