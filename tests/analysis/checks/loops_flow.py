"""More training loops that are right: gradients that are dropped on purpose, choices without a router, ignored extras."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .loops import batch, loop, net, recording


@loop
def adversarial_examples(path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    with recording(path, model) as dump:
        for _ in range(2):
            x, y = batch()
            x.requires_grad_()
            F.cross_entropy(model(x), y).backward()
            worse = (x + 0.1 * x.grad.sign()).detach()  # type: ignore[union-attr]
            optimizer.zero_grad()
            F.cross_entropy(model(worse), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            dump.step()


@loop
def gradients_of_two_tasks_projected(path: Path) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with recording(path, model) as dump:
        for _ in range(2):
            kept = []
            for _ in range(2):
                x, y = batch()
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                kept.append([p.grad for p in model.parameters()])
            for p, one, two in zip(model.parameters(), *kept, strict=True):
                p.grad = one + two - (one * two).sum() / two.square().sum() * two
            optimizer.step()
            dump.step()


@loop
def one_batch_twice_with_dropout(path: Path) -> None:
    model = net(0.5)
    optimizer = torch.optim.AdamW(model.parameters())
    with recording(path, model) as dump:
        for _ in range(2):
            x, y = batch()
            for _ in range(2):
                (F.cross_entropy(model(x), y) / 2).backward()
            optimizer.step()
            optimizer.zero_grad()
            dump.step()


@loop
def q_learning_with_a_copy(path: Path) -> None:
    online, target = (nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)) for _ in range(2))
    optimizer = torch.optim.Adam(online.parameters(), 1e-3)
    with recording(path, nn.ModuleDict({"online": online, "target": target})) as dump:
        for _ in range(2):
            x, after = torch.randn(64, 6), torch.randn(64, 6) * 0.01
            action = torch.randint(0, 3, (64, 1))
            best = online(after).argmax(-1, keepdim=True)
            future = target(after).gather(1, best).detach()
            F.smooth_l1_loss(online(x).gather(1, action), torch.randn(64, 1) + 0.99 * future).backward()
            optimizer.step()
            optimizer.zero_grad()
            dump.step()


@loop
def labels_of_the_model_itself(path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    nn.init.constant_(model[2].bias, 0.0)
    with torch.no_grad():
        model[2].bias[1] = 9.0
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with recording(path, model):
        x, y = batch(64)
        weak, strong = model(x), model(x + 0.1 * torch.randn_like(x))
        share, label = weak.softmax(-1).max(-1)
        kept = (share > 0.5).float().detach()
        (F.cross_entropy(weak, y) + (F.cross_entropy(strong, label, reduction="none") * kept).mean()).backward()
        (weak.argmax(-1) == y).float().mean()
        optimizer.step()


@loop
def margin_to_the_best_wrong_class(path: Path) -> None:
    model = nn.Linear(6, 4)
    nn.init.constant_(model.bias, 0.0)
    with torch.no_grad():
        model.bias[2] = 20.0
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with recording(path, model):
        x, y = torch.randn(64, 6), torch.randint(0, 2, (64,))
        scores = model(x)
        wrong = scores.masked_fill(F.one_hot(y, 4).bool(), -1e4).max(-1)
        hit = (scores.argmax(-1) == y).float().mean()
        (1 + wrong.values - scores.gather(1, y[:, None]).squeeze(1)).relu().mean().backward()
        optimizer.step()
        assert float(hit) <= 1


@loop
def own_words_fed_back(path: Path) -> None:
    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.cell, self.head = nn.Embedding(7, 8), nn.GRUCell(8, 8), nn.Linear(8, 7)

        def forward(self, labels: Tensor) -> Tensor:
            state, word = torch.zeros(len(labels), 8), torch.zeros(len(labels), dtype=torch.long)
            loss = torch.zeros(())
            for at in range(labels.shape[1]):
                state = self.cell(self.words(word), state)
                scores = self.head(state)
                loss = loss + F.cross_entropy(scores, labels[:, at])
                word = scores.argmax(-1)
            return loss

    model = Decoder()
    with torch.no_grad():
        model.head.bias[3] = 9.0
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    with recording(path, model):
        model(torch.randint(0, 7, (64, 3))).backward()
        optimizer.step()


@loop
def places_of_pixels_and_buckets(path: Path) -> None:
    model = nn.ModuleDict({"near": nn.Embedding(4, 6), "mix": nn.Linear(6, 6), "scale": nn.Linear(2, 6)})
    optimizer = torch.optim.AdamW(model.parameters())
    with recording(path, model):
        at = torch.arange(4)
        row, column = at // 4, at % 4
        best = torch.randn(2, 16).argmax(-1)
        point = torch.stack([best // 16, best % 16], -1).float()
        placed = model["scale"](torch.stack([row, column], -1).float() / 4)
        far = model["near"]((at[:, None] - at).abs() // 4)
        angle = 1 / 10 ** (2 * (torch.arange(6) // 2).float() / 6)
        lengths = torch.tensor([9, 17])
        strided = lengths // 4
        out = (model["mix"](placed) * angle + far.mean(0)).sum() / strided.sum()
        (out.square() + point.mean()).backward()
        optimizer.step()


@loop
def extras_that_models_are_given(path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.kept = net(), []

        def forward(self, x: Tensor, mask: Tensor, sizes: Tensor, kinds: Tensor, given: Any = None) -> tuple[Any, ...]:
            if mask.all():
                x = x * 1.0
            parts = [self.inner(part) for part in x.split(sizes.tolist())]
            return torch.cat(parts), kinds, given

    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    with recording(path, model) as dump:
        for _ in range(2):
            x, y = batch()
            ones = torch.ones(16, dtype=torch.bool)
            out, *_ = model(x, ones, torch.tensor([4, 12]), torch.arange(16), {"number": torch.arange(16)})
            F.cross_entropy(out, y).backward()
            optimizer.step()
            optimizer.zero_grad()
            dump.step()


@loop
def code_with_a_straight_path(path: Path) -> None:
    model = nn.ModuleDict({"down": nn.Linear(6, 4), "up": nn.Linear(4, 3)})
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with recording(path, model) as dump:
        for _ in range(2):
            x, y = batch()
            h = model["down"](x)
            h = h + (h.round() - h).detach() + 0.0 * h.sign()
            F.cross_entropy(model["up"](h), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            dump.step()


@loop
def balanced_experts(path: Path) -> None:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router, self.head = nn.Linear(6, 4), nn.Linear(6, 3)
            self.experts = nn.Parameter(torch.randn(4, 6, 6) * 0.3)

        def forward(self, x: Tensor) -> Tensor:
            weight, chosen = self.router(x).softmax(-1).topk(2, -1)
            mixed = (x[:, None, None] @ self.experts[chosen]).squeeze(2)
            return self.head((mixed * weight[..., None]).sum(1))

    model = Experts()
    optimizer = torch.optim.AdamW(model.parameters())
    with recording(path, model) as dump:
        for _ in range(2):
            x, y = batch(64)
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            dump.step()


@loop
def sums_that_half_precision_holds(path: Path) -> None:
    words, kinds = nn.Embedding(200, 8, padding_idx=0), nn.Embedding(2, 8)
    model = nn.ModuleDict({"words": words, "kinds": kinds, "head": nn.Linear(8, 3)}).to(torch.bfloat16)
    kinds.float()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with recording(path, model) as dump:
        for _ in range(2):
            tokens = torch.randint(1, 200, (16, 60))
            tokens[:, 20:] = 0
            hidden = words(tokens) + kinds((tokens == 0).long()).to(torch.bfloat16)
            pooled = torch.zeros(16, 8).index_put((torch.arange(16),), hidden.float().sum(1), accumulate=True)
            out = model["head"](pooled.to(torch.bfloat16) / 60).float()
            F.cross_entropy(out, torch.randint(0, 3, (16,))).backward()
            optimizer.step()
            optimizer.zero_grad()
            dump.step()


@loop
def causal_mask_beside_its_name(path: Path) -> None:
    layer = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    optimizer = torch.optim.AdamW(layer.parameters())
    mask = nn.Transformer.generate_square_subsequent_mask(4)
    with recording(path, layer) as dump:
        for _ in range(2):
            x, memory = torch.randn(3, 4, 8), torch.randn(3, 5, 8)
            layer(x, memory, tgt_mask=mask, tgt_is_causal=True).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            dump.step()
