"""Models that gather and scatter: attention over a graph, experts, embeddings of many fields."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..training import STEPS, Program, Training


class GraphAttention(nn.Module):
    """Attention of each node over its edges, by scatter."""

    def __init__(self, into: int, out: int, heads: int) -> None:
        super().__init__()
        self.heads, self.out = heads, out
        self.project = nn.Linear(into, heads * out, bias=False)
        self.source, self.goal = (
            nn.Parameter(torch.randn(heads, out) * 0.3),
            nn.Parameter(torch.randn(heads, out) * 0.3),
        )
        self.bias = nn.Parameter(torch.zeros(heads * out))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        nodes = len(x)
        h = self.project(x).view(nodes, self.heads, self.out)
        source, goal = edges.unbind(0)
        scores = (h * self.source).sum(-1)[source] + (h * self.goal).sum(-1)[goal]
        scores = F.leaky_relu(scores, 0.2)
        index = goal[:, None].expand_as(scores)
        highest = torch.full((nodes, self.heads), -1e9, device=x.device)
        highest = highest.scatter_reduce(0, index, scores, "amax")
        weights = torch.exp(scores - highest[goal])
        total = torch.zeros(nodes, self.heads, device=x.device).scatter_add(0, index, weights)
        weights = weights / (total[goal] + 1e-16)
        mixed = torch.zeros(nodes, self.heads, self.out, device=x.device)
        mixed = mixed.index_add(0, goal, weights.unsqueeze(-1) * h[source])
        return mixed.flatten(1) + self.bias


class GraphNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GraphAttention(9, 6, 3), GraphAttention(18, 5, 1)

    def forward(self, x: Tensor, edges: Tensor, labels: Tensor, seen: Tensor) -> Tensor:
        x = F.elu(self.first(F.dropout(x, 0.2, training=self.training), edges))
        scores = F.log_softmax(self.second(x, edges), dim=1)
        return F.nll_loss(scores[seen], labels[seen])


def graph_attention() -> Training:
    torch.manual_seed(31)
    batches = []
    for _ in range(STEPS):
        edges = torch.cat([torch.randint(0, 20, (2, 60)), torch.arange(20).expand(2, 20)], dim=1)
        seen = torch.rand(20) < 0.6
        batches.append({"x": torch.randn(20, 9), "edges": edges, "labels": torch.randint(0, 5, (20,)), "seen": seen})
    return Training(
        GraphNet(), batches, lambda m, b: m(**b), torch.optim.Adam, {"lr": 0.01, "weight_decay": 5e-4, "foreach": True}
    )


class Experts(nn.Module):
    """Two of four experts for each token, with a loss that spreads them."""

    def __init__(self, width: int = 20, experts: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 32), nn.SiLU(), nn.Linear(32, width)) for _ in range(experts)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        odds = F.softmax(self.router(x), dim=-1)
        weights, chosen = torch.topk(odds, 2, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        mixed = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, place = torch.where(chosen == number)
            mixed = mixed.index_add(0, token, expert(x[token]) * weights[token, place].unsqueeze(-1))
        used = F.one_hot(chosen, len(self.experts)).float().mean(dim=(0, 1))
        return mixed, len(self.experts) * (used * odds.mean(dim=0)).sum()


class ExpertModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(45, 20)
        self.norm1, self.norm2 = nn.RMSNorm(20), nn.RMSNorm(20)
        self.moe1, self.moe2 = Experts(), Experts()
        self.head = nn.Linear(20, 45, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words[:, :-1]).flatten(0, 1)
        mixed, spread1 = self.moe1(self.norm1(x))
        x = x + mixed
        mixed, spread2 = self.moe2(self.norm2(x))
        scores = self.head(x + mixed)
        return F.cross_entropy(scores, words[:, 1:].flatten()) + 0.01 * (spread1 + spread2)


def experts() -> Training:
    torch.manual_seed(32)
    batches = [{"words": torch.randint(0, 45, (3, 12))} for _ in range(STEPS)]
    return Training(ExpertModel(), batches, lambda m, b: m(**b), clip=1.0)


class DeepFm(nn.Module):
    """A factorisation machine and a deep network over the same embeddings; rows of the first order come sparse."""

    def __init__(self, fields: int = 5) -> None:
        super().__init__()
        self.first = nn.EmbeddingBag(60, 1, mode="sum")
        self.embed = nn.Embedding(60, 8)
        self.deep = nn.Sequential(nn.Linear(8 * fields + 3, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 1))

    def forward(self, fields: Tensor, dense: Tensor, clicked: Tensor) -> Tensor:
        v = self.embed(fields)
        pairs = 0.5 * (v.sum(1).pow(2) - v.pow(2).sum(1)).sum(-1)
        deep = self.deep(torch.cat([v.flatten(1), torch.log1p(dense)], dim=1)).squeeze(-1)
        score = self.first(fields).squeeze(-1) + pairs + deep
        return F.binary_cross_entropy_with_logits(score, clicked, pos_weight=torch.tensor(2.0))


def deepfm() -> Training:
    torch.manual_seed(33)
    start = torch.arange(5) * 12
    batches = [
        {
            "fields": torch.randint(0, 12, (8, 5)) + start,
            "dense": torch.rand(8, 3) * 9,
            "clicked": torch.randint(0, 2, (8,)).float(),
        }
        for _ in range(STEPS)
    ]
    return Training(DeepFm(), batches, lambda m, b: m(**b), torch.optim.Adagrad, {"lr": 0.05, "foreach": True})


PROGRAMS = [
    Program("graph attention", "graph", graph_attention),
    Program("experts", "mixture of experts", experts),
    Program("deepfm", "recommender", deepfm),
]
