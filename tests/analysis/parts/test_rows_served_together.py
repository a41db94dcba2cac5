"""An engine that serves several requests in one call, against each request alone: the same rows in other places."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from aten_dump import DumpConfig, DumpMode, compare

WIDTH, VOCABULARY = 16, 40
REQUESTS = [torch.tensor([3, 9, 21, 7, 9]), torch.tensor([9, 30, 2]), torch.tensor([11, 3, 3, 25])]
NEXT = [[5, 17], [8, 5], [31, 2]]  # that each request goes on with


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, seen: Tensor, cache: list[Tensor]) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        if cache:
            k, v = torch.cat((cache[0], k), 1), torch.cat((cache[1], v), 1)
        cache[:] = [k, v]
        scores = (q @ k.mT * 0.25).masked_fill(~seen, -torch.inf)
        return x + self.out(scores.softmax(-1) @ v)


class Model(nn.Module):
    """Words of several requests, each with its place and the number of its request, [1, words]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(16, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.turned = False

    def forward(
        self, ids: Tensor, places: Tensor, of: Tensor, caches: list[list[Tensor]], kept: list[Tensor]
    ) -> Tensor:
        kept[:] = [torch.cat((*kept[:1], places), 1), torch.cat((*kept[1:], of), 1)]
        seen = (of[..., None] == kept[1][:, None]) & (places[..., None] >= kept[0][:, None])
        x = self.words(ids) + self.places(places)
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, seen, cache)
        x = self.norm(x)
        return self.head(x.flip(1) if self.turned else x)  # type: ignore[no-any-return]


def alone(model: Model) -> None:
    for number, (ids, after) in enumerate(zip(REQUESTS, NEXT, strict=True)):
        words = torch.cat((ids, torch.tensor(after)))[None]
        of = torch.full_like(words, number)
        model(words, torch.arange(words.shape[1])[None], of, [[], [], []], [])


def together(model: Model, slip: str = "") -> None:
    caches: list[list[Tensor]] = [[], [], []]
    kept: list[Tensor] = []
    lengths = torch.tensor([len(ids) for ids in REQUESTS])
    of = torch.repeat_interleave(torch.arange(3), lengths)[None]
    model(torch.cat(REQUESTS)[None], torch.cat([torch.arange(n) for n in lengths])[None], of, caches, kept)
    for turn in range(2):
        requests = torch.tensor([[0, 1, 2]])
        if slip == "cache of another":
            requests = torch.tensor([[0, 2, 1]])
        model.turned = slip == "turned" and turn == 1
        words = torch.tensor([[after[turn] for after in NEXT]])
        if slip == "one word twice":
            words[0, 2] = words[0, 0]
        model(words, (lengths + turn + (slip == "place"))[None], requests, caches, kept)


def recorded(path: Path, work: Callable[[Model], None]) -> Path:
    model = Model().eval()
    with torch.no_grad(), DumpMode(DumpConfig(path=path, data="tensor"), model=model) as dump:
        work(model)
        dump.step()
    return path


def test_requests_that_are_served_together_agree_with_each_alone(tmp_path: Path) -> None:
    one, other = recorded(tmp_path / "together", together), recorded(tmp_path / "alone", alone)
    for pair in ((one, other), (other, one)):
        found = compare(*pair)
        assert found.exit_code == 0, found.answer()
        assert "the same rows in other places, 18 rows against 18" in found.answer()


@pytest.mark.parametrize("slip", ["cache of another", "turned", "one word twice", "place"])
def test_requests_that_are_served_otherwise_differ(slip: str, tmp_path: Path) -> None:
    """Outputs in another order hold the right rows, at wrong places."""
    target = recorded(tmp_path / "together", lambda model: together(model, slip))
    found = compare(target, recorded(tmp_path / "alone", alone))
    assert found.exit_code == 1, found.answer()


class Rotated(nn.Module):
    """Attention with a table of angles for each sample, or one for all; `off` is added to the places it decodes at."""

    def __init__(self, *, for_each: bool, off: int = 0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.qk, self.head = nn.Embedding(40, 16), nn.Linear(16, 32), nn.Linear(16, 40)
        self.for_each, self.off = for_each, off

    def forward(self, ids: Tensor, start: int, cache: list[Tensor]) -> Tensor:
        first = start + self.off if start else 0
        places = torch.arange(first, first + ids.shape[1]).expand(len(ids) if self.for_each else 1, -1)
        angles = (places[..., None] / torch.arange(1, 17)).cos() * 1.5
        q, k = ((one * angles) for one in self.qk(self.words(ids)).chunk(2, -1))
        k = torch.cat((*cache, k), 1)
        cache[:] = [k]
        hidden = torch.ones(ids.shape[1], k.shape[1], dtype=torch.bool).triu(1 + start)
        return self.head((q @ k.mT * 0.25).masked_fill(hidden, -torch.inf).softmax(-1) @ k)  # type: ignore[no-any-return]


def decoded(path: Path, model: Rotated, *, at_once: bool) -> Path:
    ids = torch.arange(14).mul(7).remainder(40).view(2, 7)
    with torch.no_grad(), DumpMode(DumpConfig(path=path, data="tensor"), model=model) as dump:
        cache: list[Tensor] = []
        for start, stop in [(0, 7)] if at_once else [(0, 4), (4, 5), (5, 6), (6, 7)]:
            model(ids[:, start:stop].clone(), start, cache)
        dump.step()
    return path


def test_a_table_for_each_sample_is_the_one_for_all(tmp_path: Path) -> None:
    whole = decoded(tmp_path / "whole", Rotated(for_each=False), at_once=True)
    right = compare(decoded(tmp_path / "right", Rotated(for_each=True), at_once=False), whole)
    assert right.exit_code == 0, right.answer()
    off = compare(decoded(tmp_path / "off", Rotated(for_each=True, off=1), at_once=False), whole)
    assert off.exit_code == 1 and off.cause is not None
    assert "input.1 is index 5 of 7 along dimension 1 of the baseline's Aten.mul" in off.cause.inputs, off.answer()
