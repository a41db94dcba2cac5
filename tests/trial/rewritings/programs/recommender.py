"""Bags of items, factorization and a deep part; sparse gradients of the bags, negatives with a correction."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..running import Run

ITEMS, SIZE, FIELDS = 15, 4, 3


class Bags(nn.Module):
    """A bag of items for each user, weighted."""

    def __init__(self, on: Run) -> None:
        super().__init__()
        self.on, self.table = on, nn.Parameter(torch.randn(ITEMS, SIZE) * 0.5)

    def forward(self, items: Tensor, weights: Tensor, starts: Tensor) -> Tensor:
        if self.on.bug("weights forgotten"):
            weights = torch.ones_like(weights)
        if self.on.way("bags by index_add"):
            ends = torch.cat([starts[1:], torch.tensor([len(items)])])
            bag = torch.repeat_interleave(torch.arange(len(starts)), ends - starts)
            return torch.zeros(len(starts), SIZE).index_add(
                0, bag, self.table[items] * weights[:, None]
            )  # at weights forgotten
        if self.on.way("bags by product"):
            ends = torch.cat([starts[1:], torch.tensor([len(items)])])
            bag = torch.repeat_interleave(torch.arange(len(starts)), ends - starts)
            counts = torch.zeros(len(starts), ITEMS).index_put((bag, items), weights, accumulate=True)
            return counts @ self.table  # at weights forgotten
        starts = torch.cat([starts[:1], starts[1:] - 1]) if self.on.bug("bags one early") else starts
        return F.embedding_bag(
            items, self.table, starts, mode="sum", per_sample_weights=weights
        )  # at weights forgotten, bags one early


class Model(nn.Module):
    def __init__(self, on: Run) -> None:
        super().__init__()
        self.on, self.bags = on, Bags(on)
        self.fields = nn.ModuleList(nn.Embedding(5, SIZE) for _ in range(FIELDS))
        self.deep = nn.Sequential(
            nn.Linear(SIZE * (FIELDS + 1), 10), nn.BatchNorm1d(10), nn.ReLU(), nn.Linear(10, SIZE)
        )
        self.wide = nn.Embedding(5 * FIELDS, 1)

    def forward(self, users: Tensor, items: Tensor, weights: Tensor, starts: Tensor) -> Tensor:
        if self.on.way("one table for all fields"):
            table = torch.cat([f.weight for f in self.fields])
            found = list(F.embedding(users + 5 * torch.arange(FIELDS), table).unbind(1))
        else:
            found = [f(users[:, at]) for at, f in enumerate(self.fields)]
        if self.on.bug("fields swapped"):
            found[0], found[1] = self.fields[0](users[:, 1]), self.fields[1](users[:, 0])
        vectors = torch.stack([*found, self.bags(items, weights, starts)], 1)
        if self.on.way("pairs one by one"):
            pairs = sum(vectors[:, i] * vectors[:, j] for i in range(FIELDS + 1) for j in range(i))
        else:
            squares = vectors.sum(1).pow(2) - (
                vectors.sum(1) if self.on.bug("sum of squares forgotten") else vectors.pow(2).sum(1)
            )
            pairs = squares if self.on.bug("half forgotten") else 0.5 * squares
        wide = self.wide(users + (4 if self.on.bug("offset off by one") else 5) * torch.arange(FIELDS)).sum(1)
        return self.deep(vectors.flatten(1)) + pairs + wide


def loss_of(on: Run, asked: Tensor, table: Tensor, wanted: Tensor, often: Tensor) -> Tensor:
    """Return the sampled softmax in the batch, corrected by how often an item occurs."""
    scores = asked @ table[wanted].t() / SIZE**0.5
    if not on.bug("correction forgotten"):
        scores = scores - often[wanted].log()
    same = wanted[:, None] == wanted
    same = same & ~torch.eye(len(wanted), dtype=torch.bool)
    if not on.bug("accidental hits not masked"):
        scores = scores.masked_fill(same, -1e9) if not on.way("hits by addition") else scores + same * -1e9
    loss = F.cross_entropy(scores, torch.arange(len(wanted)))  # at accidental hits not masked, correction forgotten
    decay = 1e-3 if on.bug("penalty too large") else 1e-4
    return loss + decay * (
        table[wanted].pow(2).sum() if on.way("penalty squared") else table[wanted].norm() ** 2
    )  # at penalty too large


def train(on: Run) -> None:
    torch.manual_seed(16)
    model = Model(on)
    users, items, weights = torch.randint(0, 5, (2, 6, FIELDS)), torch.randint(0, ITEMS, (2, 14)), torch.rand(2, 14)
    starts, wanted = torch.tensor([0, 2, 5, 6, 9, 12]), torch.randint(0, ITEMS, (2, 6))
    wanted[:, 1] = wanted[:, 0]
    often = torch.rand(ITEMS) * 0.2 + 0.01
    rate = 0.01 if on.bug("rate of the table") else 0.1
    tables = torch.optim.Adagrad([model.bags.table], lr=rate)
    rest = torch.optim.Adam(
        [p for p in model.parameters() if p is not model.bags.table], lr=0.01, foreach=on.way("foreach")
    )
    with on.steps(model) as end_step:
        for at in range(2):
            tables.zero_grad()
            rest.zero_grad()
            asked = model(users[at], items[at], weights[at], starts)
            table = model.bags.table.detach() if on.bug("table detached") else model.bags.table
            loss = loss_of(on, asked, table, wanted[at], often)  # at table detached
            loss.backward()
            on.keep(loss)
            on.keep_gradients(model)
            tables.step()  # at rate of the table
            rest.step()
            end_step()
    on.keep_weights(model)
