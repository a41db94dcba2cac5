"""Honest pairs of programs, and one that is not, recorded with statistics alone: what noise does to these is no cause."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aten_dump import DumpConfig, DumpMode, compare
from aten_dump.analysis.comparison import Comparison
from tests.sampling import one_in

STEPS = 2
X = torch.randn(STEPS, 4, 12, 16, generator=torch.Generator().manual_seed(1))


class Attention(nn.Module):
    """One layer; nothing that its key's bias does shows in the loss."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        self.q, self.k, self.v, self.out = (nn.Linear(16, 16) for _ in range(4))
        self.norm = nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (layer(x) for layer in (self.q, self.k, self.v))
        if self.fused:
            y = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]
        else:
            y = ((q @ k.mT) / 4).softmax(-1) @ v
        found: torch.Tensor = self.norm(x + self.out(y))
        return found


def convolutions() -> nn.Sequential:
    """Two of them, each before a norm that takes its bias away."""
    layers = nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.BatchNorm2d(4)
    return nn.Sequential(nn.Unflatten(1, (1, 12)), *layers)


def record(path: Path, model: nn.Module, scale: float = 1.0, *, adam: bool = True) -> Path:
    make = torch.optim.AdamW if adam else torch.optim.SGD
    optimizer = make(model.parameters(), lr=1e-3)
    with DumpMode(DumpConfig(path, data="statistic"), model=model) as dump:
        for x in X:
            (model(x) * scale).pow(3).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            dump.step()
    return path


def attention(path: Path, *, fused: bool, scale: float = 1.0) -> Path:
    torch.manual_seed(0)
    return record(path, nn.Sequential(Attention(fused), Attention(fused)), scale)


def verdict(found: Comparison) -> str:
    return f"{found.verdict}: {found.answer()}"


def test_the_gradient_of_a_bias_that_does_nothing_is_noise_on_both_sides(tmp_path: Path) -> None:
    baseline = attention(tmp_path / "b", fused=False)
    found = compare(attention(tmp_path / "a", fused=True), baseline)
    assert verdict(found).startswith("within")
    found = compare(attention(tmp_path / "c", fused=True, scale=1.02), baseline)
    assert found.verdict == "different" and found.cause is not None and found.cause.row.place.op == "aten::mul.Tensor"


def test_weights_that_lie_in_channels_last_are_the_same_weights(tmp_path: Path) -> None:
    made: list[Path] = []
    for name in ("a", "b"):
        torch.manual_seed(0)
        model = convolutions()
        if made:
            for weight in [one for one in model.parameters() if one.dim() == 4]:
                weight.data = weight.data.contiguous(memory_format=torch.channels_last)
        made.append(record(tmp_path / name, model, adam=False))
    assert verdict(compare(*made)).startswith("within")


@pytest.mark.parametrize("same", [True, False])
def test_statistics_of_many_weights_that_other_threads_added_up(tmp_path: Path, same: bool) -> None:
    made: list[Path] = []
    for name, threads in (("a", 1), ("b", 2)):
        torch.manual_seed(0)
        model = nn.Linear(16, 4096)
        if made and not same:
            model.weight.data[3] *= 1.1
        had = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            made.append(record(tmp_path / name, model))
        finally:
            torch.set_num_threads(had)
    assert compare(*made).verdict == ("within" if same else "different")


class Layer(nn.Module):
    """A layer of a language model, written in the ways of a set."""

    def __init__(self, ways: frozenset[str]) -> None:
        super().__init__()
        self.ways = ways
        self.norm, self.qkv, self.out, self.scale = (
            nn.LayerNorm(16),
            nn.Linear(16, 48),
            nn.Linear(16, 16),
            nn.Linear(1, 1),
        )
        self.scale.weight.data.fill_(1e-7)  # of a branch that hardly shows in what it is added to

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril(1 if "mask" in self.ways else 0)
        if "by hand" in self.ways:
            least = -1e4 if "finite" in self.ways else -math.inf
            y = (q @ k.mT / math.sqrt(8)).masked_fill(~mask, least).softmax(-2 if "dimension" in self.ways else 3) @ v
        elif "causal" in self.ways:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            y = F.scaled_dot_product_attention(q, k, v, mask)
        y = self.out(y.transpose(1, 2).flatten(2))
        branch = self.scale.weight * (2 * y.tanh() if "branch" in self.ways else y.tanh())
        return branch + (y + x) if "swapped" in self.ways else (x + y) + branch


class Language(nn.Module):
    def __init__(self, ways: frozenset[str]) -> None:
        super().__init__()
        self.ways = ways
        self.words, self.places = nn.Embedding(20, 16), nn.Embedding(12, 16)
        self.layers = nn.Sequential(Layer(ways), Layer(ways))
        self.head = nn.Linear(16, 20)

    def forward(self, words: Tensor) -> Tensor:
        places = torch.arange(words.shape[1]) + (1 if "places" in self.ways else 0)
        found: Tensor = self.head(self.layers(self.words(words) + self.places(places)))
        return found

    def loss(self, words: Tensor) -> Tensor:
        scores, labels = self(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten()
        labels = (labels + 1) % 20 if "labels" in self.ways else labels
        if "gathered" in self.ways:
            return -scores.log_softmax(-1).gather(1, labels[:, None]).mean()
        return F.cross_entropy(scores, labels)


def clipped(parameters: list[nn.Parameter], ways: frozenset[str]) -> None:
    if "clipped by hand" not in ways:
        nn.utils.clip_grad_norm_(parameters, 0.1)
        return
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = sum(g.abs().sum() if "norm" in ways else g.pow(2).sum() for g in gradients) ** 0.5
    for gradient in gradients:
        gradient.mul_(torch.clamp(0.1 / (norm + 1e-6), max=1.0))


def language(path: Path, *ways: str) -> Path:
    torch.manual_seed(0)
    model = Language(frozenset(ways))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    words = torch.randint(0, 20, (STEPS, 4, 9), generator=torch.Generator().manual_seed(1))
    parts = 2 if "parts" in ways else 1
    with DumpMode(DumpConfig(path), model=model) as dump:
        for batch in words:
            for part in batch.chunk(parts):
                (model.loss(part) / (1 if "undivided" in ways else parts)).backward()
            clipped(list(model.parameters()), model.ways)
            optimizer.step()
            optimizer.zero_grad()
            dump.step()
    return path


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What all but those by hand are compared with."""
    return language(tmp_path_factory.mktemp("plain") / "b")


WRITTEN_OTHERWISE = [
    ("gathered",),
    ("swapped",),
    ("causal",),
    ("by hand", "finite"),
    ("parts",),
    ("clipped by hand",),
    ("swapped", "by hand", "gathered", "clipped by hand"),
]


@pytest.mark.parametrize("ways", one_in(3, WRITTEN_OTHERWISE), ids=" ".join)
def test_what_is_written_otherwise_agrees_by_statistics_alone(
    tmp_path: Path, plain: Path, ways: tuple[str, ...]
) -> None:
    like = language(tmp_path / "b", "by hand") if "finite" in ways else plain
    found = compare(language(tmp_path / "a", *ways), like)
    assert verdict(found).startswith("within")


WRONG = {
    ("mask",): "aten::tril",
    ("places",): "aten::add.Tensor",
    ("labels",): "aten::add.Tensor",
    ("branch",): "aten::mul.Tensor",
    ("swapped", "branch"): "aten::mul.Tensor",
    ("by hand", "dimension"): "aten::_softmax",
    ("parts", "undivided"): "aten::",
    ("clipped by hand", "norm"): "aten::",
    ("gathered", "mask"): "aten::tril",
}


@pytest.mark.parametrize("ways", one_in(3, WRONG), ids=" ".join)
def test_what_is_wrong_is_found_by_statistics_alone(tmp_path: Path, plain: Path, ways: tuple[str, ...]) -> None:
    like = language(tmp_path / "b", "by hand") if "dimension" in ways else plain
    found = compare(language(tmp_path / "a", *ways), like)
    assert found.verdict == "different", found.answer()
    assert found.cause is not None
    assert found.cause.row.place.op.startswith(WRONG[ways]), found.answer()


def columns(path: Path, *, unfolded: bool, bias: float = 0.0) -> Path:
    """Train a convolution before a norm that takes its bias away."""
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8)])
    conv, norm = model
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    with DumpMode(DumpConfig(path), model=model) as dump:
        for x in X[:, :, None]:
            if unfolded:
                y = conv.weight.flatten(1) @ F.unfold(x, 3) + (conv.bias[:, None] + bias)
                y = y.unflatten(-1, (10, 14))
            else:
                y = conv(x)
            norm(y).pow(3).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            dump.step()
    return path


@pytest.mark.parametrize("bias", [0.0, 1.0])
def test_a_gradient_that_cancels_is_noise_whichever_ops_add_it_up(tmp_path: Path, bias: float) -> None:
    found = compare(columns(tmp_path / "a", unfolded=True, bias=bias), columns(tmp_path / "b", unfolded=False))
    assert found.verdict == ("different" if bias else "within"), found.answer()


class Graph(nn.Module):
    """A layer of a graph network, whose nodes have an edge to themselves as well."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.layer, self.out = nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        own = torch.arange(12)
        if self.way:
            ends = edges[1].flip(0) if self.way == "flipped" else edges[1]
            sources, targets = torch.cat([edges[0], own]), torch.cat([ends, own])
        else:
            sources, targets = torch.cat([edges, own.repeat(2, 1)], 1)
        degrees = torch.zeros(12).index_add(0, targets, torch.ones(len(targets)))
        shares = (degrees[sources] * degrees[targets]).rsqrt()
        messages = self.layer(x)[sources] * shares[:, None]
        found: Tensor = self.out(torch.zeros(12, 16).index_add(0, targets, messages).relu())
        return found


def graph(path: Path, way: str = "") -> Path:
    torch.manual_seed(0)
    model = Graph(way)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    edges = torch.randint(0, 12, (2, 30), generator=torch.Generator().manual_seed(3))
    with DumpMode(DumpConfig(path), model=model) as dump:
        for x in X[:, 0]:
            F.cross_entropy(model(x, edges)[:8], torch.arange(8) % 3).backward()
            optimizer.step()
            optimizer.zero_grad()
            dump.step()
    return path


@pytest.mark.parametrize("way", ["apart", "flipped"])
def test_integers_of_equal_statistics_are_no_difference(tmp_path: Path, way: str) -> None:
    """Indices that are flipped have nearly the same, and so has what they pick; what that leads to differs."""
    found = compare(graph(tmp_path / "a", way), graph(tmp_path / "b"))
    assert found.verdict == ("within" if way == "apart" else "different"), found.answer()
    if way == "flipped":
        assert found.cause is not None
        assert found.cause.row.place.op in ("aten::flip", "aten::mul.Tensor", "aten::index_add"), found.answer()
