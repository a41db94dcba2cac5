"""Ways to learn: linear attention, a target network, triplets, adapters on frozen weights, gradients of gradients."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from ..training import STEPS, Program, Training


class LinearAttention(nn.Module):
    """Random features in place of softmax; sums so far make it causal."""

    def __init__(self, width: int = 16, heads: int = 2, features: int = 6) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.register_buffer("features", torch.randn(width // heads, features))

    def forward(self, x: Tensor) -> Tensor:
        count, length, width = x.shape
        q, k, v = (t.view(count, length, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        q, k = (torch.exp(t @ self.features - t.square().sum(-1, keepdim=True) / 2) for t in (q * 0.5, k * 0.5))
        sums = torch.cumsum(k.unsqueeze(-1) * v.unsqueeze(-2), dim=2)
        mixed = torch.einsum("bhlf,bhlfd->bhld", q, sums) / (q * k.cumsum(dim=2)).sum(-1, keepdim=True)
        return self.out(mixed.transpose(1, 2).reshape(count, length, width))


class Performer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 16)
        self.norm1, self.attention = nn.LayerNorm(16), LinearAttention()
        self.norm2, self.mlp = nn.LayerNorm(16), nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words[:, :-1])
        x = x + self.attention(self.norm1(x))
        x = x + self.mlp(self.norm2(x))
        return F.cross_entropy((x @ self.words.weight.t()).flatten(0, 1), words[:, 1:].flatten())


def performer() -> Training:
    torch.manual_seed(71)
    return Training(
        Performer(), [{"words": torch.randint(0, 30, (3, 9))} for _ in range(STEPS)], lambda m, b: m(**b), clip=1.0
    )


class Values(nn.Module):
    """Values of actions, told by a network that learns and one that follows it."""

    def __init__(self) -> None:
        super().__init__()
        self.learns = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 3))
        self.follows = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 3)).requires_grad_(False)
        self.follows.load_state_dict(self.learns.state_dict())

    def forward(self, state: Tensor, action: Tensor, reward: Tensor, after: Tensor) -> Tensor:
        value = self.learns(state).gather(1, action.unsqueeze(1)).squeeze(1)
        with torch.no_grad():
            best = self.learns(after).argmax(dim=1, keepdim=True)
            goal = reward + 0.95 * self.follows(after).gather(1, best).squeeze(1)
        return F.smooth_l1_loss(value, goal)


def _follow(model: Values) -> None:
    with torch.no_grad():
        for mine, other in zip(model.follows.parameters(), model.learns.parameters(), strict=True):
            mine.lerp_(other, 0.05)


def values() -> Training:
    torch.manual_seed(72)
    batches = [
        {
            "state": torch.randn(8, 5),
            "action": torch.randint(0, 3, (8,)),
            "reward": torch.randn(8),
            "after": torch.randn(8, 5),
        }
        for _ in range(STEPS)
    ]
    return Training(
        Values(), batches, lambda m, b: m(**b), torch.optim.Adam, {"lr": 1e-2, "foreach": True}, after_step=_follow
    )


class Triplets(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 6, 3), nn.GroupNorm(2, 6)
        self.head = nn.Linear(6, 5)

    def code(self, x: Tensor) -> Tensor:
        return F.normalize(self.head(F.max_pool2d(F.relu(self.norm(self.conv(x))), 2).mean(dim=(2, 3))), dim=1)

    def forward(self, one: Tensor, like: Tensor, unlike: Tensor) -> Tensor:
        near = (self.code(one) - self.code(like)).pow(2).sum(1)
        far = (self.code(one) - self.code(unlike)).pow(2).sum(1)
        return F.relu(near - far + 0.5).mean()


def triplets() -> Training:
    torch.manual_seed(73)
    batches = [{name: torch.randn(4, 1, 8, 8) for name in ("one", "like", "unlike")} for _ in range(STEPS)]
    return Training(Triplets(), batches, lambda m, b: m(**b), torch.optim.Adagrad, {"lr": 0.05, "foreach": True})


class Adapted(nn.Module):
    """A frozen layer and what is learnt beside it, of low rank."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.base = nn.Linear(width, width).requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.randn(3, width) * 0.2), nn.Parameter(torch.randn(width, 3) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + F.linear(F.linear(x, self.down), self.up) * (4 / 3)


class Adapters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(Adapted(10), nn.SiLU(), Adapted(10), nn.SiLU())
        self.norm, self.head = nn.RMSNorm(10), nn.Linear(10, 4)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.norm(self.layers(x) + x)), labels)


def adapters() -> Training:
    torch.manual_seed(74)
    batches = [{"x": torch.randn(6, 10), "labels": torch.randint(0, 4, (6,))} for _ in range(STEPS)]
    return Training(Adapters(), batches, lambda m, b: m(**b))


class Learner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(1, 10), nn.Linear(10, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(torch.tanh(self.one(x)))


def _meta_loss(model: Learner, batch: dict[str, Tensor]) -> Tensor:
    """Learn one step from a few points, then tell the others: the gradient goes through that step."""
    weights = dict(model.named_parameters())
    few = F.mse_loss(functional_call(model, weights, (batch["x"][:5],)), batch["goal"][:5])
    slopes = torch.autograd.grad(few, list(weights.values()), create_graph=True)
    moved = {name: weight - 0.1 * slope for (name, weight), slope in zip(weights.items(), slopes, strict=True)}
    return F.mse_loss(functional_call(model, moved, (batch["x"][5:],)), batch["goal"][5:])


def meta() -> Training:
    torch.manual_seed(75)
    batches = [{"x": torch.randn(12, 1), "goal": torch.randn(12, 1)} for _ in range(STEPS)]
    return Training(Learner(), batches, _meta_loss, torch.optim.Adam, {"lr": 0.01, "foreach": True})


PROGRAMS = [
    Program("performer", "linear attention", performer, 2),
    Program("target network", "reinforcement", values, 2),
    Program("triplets", "metric", triplets, 2),
    Program("adapters", "low rank", adapters, 2),
    Program("meta learner", "meta", meta, 2),
]
