"""Where a program is written otherwise, the mistake is found by the one change that would correct it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aten_dump import DumpConfig, DumpMode, compare
from aten_dump.analysis.comparison import Comparison

WIDTH, HEADS, WORDS, ROWS, PART = 12, 3, 8, 2, 3
SCALE = (WIDTH // HEADS) ** -0.5


class Reader(nn.Module):
    """Attention with a mask of what is there, between two products."""

    def __init__(self, attend: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.attend = attend

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        q, k, v = (one.unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        return self.out(self.attend(q, k, v, real).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def plain(q: Tensor, k: Tensor, v: Tensor, real: Tensor) -> Tensor:
    scores = (q @ k.mT * SCALE).masked_fill(~real[:, None, None], -math.inf)
    return scores.softmax(-1) @ v


def in_parts(q: Tensor, k: Tensor, v: Tensor, real: Tensor, mistake: str = "") -> Tensor:
    """A softmax over parts of the keys, with a running maximum."""
    top = torch.full((*q.shape[:3], 1), -1e9)
    total, kept = torch.zeros_like(top), torch.zeros_like(q)
    for start in range(0, WORDS, PART):
        part = slice(start, start + PART)
        scores = (q @ k[:, :, part].mT * SCALE).masked_fill(~real[:, None, None, part], -1e9)
        largest = torch.maximum(top, scores.amax(-1, keepdim=True))
        weights = (scores - largest).exp()
        old = (top.add if mistake == "added" else top.sub)(largest).exp()  # added
        total = total * old + weights.sum(-1, keepdim=True)
        if mistake == "not scaled":
            kept = kept + weights @ v[:, :, part]  # not scaled
        else:
            kept = kept * old + weights @ v[:, :, part]
        top = largest
    return kept / total


def by_hand(q: Tensor, k: Tensor, v: Tensor, real: Tensor, mistake: str = "") -> Tensor:
    """A softmax that is written out, and masked by a product."""
    scale = 0.3 if mistake == "other scale" else SCALE
    scores = torch.einsum("nhqd,nhkd->nhqk", q, k)
    scores.mul_(scale)  # other scale
    if mistake == "scaled twice":
        scores = scores * SCALE  # scaled twice
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    there = real[:, None, None].to(q.dtype)
    if mistake != "masked late":
        weights = weights * there
    weights = weights / weights.sum(-1, keepdim=True)
    if mistake == "masked late":
        weights = weights * there  # masked late
    given = k if mistake == "keys for values" else v
    return torch.einsum("nhqk,nhkd->nhqd", weights, given)  # keys for values


def record(path: Path, attend: Callable[..., Tensor]) -> Path:
    x = torch.randn(ROWS, WORDS, WIDTH, generator=torch.Generator().manual_seed(5))
    real = torch.arange(WORDS) < torch.tensor([[WORDS], [WORDS - 2]])
    with DumpMode(DumpConfig(path=path, data="tensor")) as dump:
        Reader(attend)(x, real).square().mean().backward()
        dump.step()
    return path


def compared(folder: Path, attend: Callable[..., Tensor]) -> Comparison:
    return compare(record(folder / "target", attend), record(folder / "baseline", plain))


@pytest.mark.parametrize("attend", [in_parts, by_hand])
def test_what_is_written_otherwise_agrees(tmp_path: Path, attend: Callable[..., Tensor]) -> None:
    found = compared(tmp_path, attend)
    assert found.exit_code == 0, found.answer()


@pytest.mark.parametrize(
    ("attend", "mistake", "correction"),
    [
        (in_parts, "not scaled", "goes through aten::mul"),
        (in_parts, "added", "if it is aten::sub"),
        (by_hand, "other scale", "if other is 0.5, and not 0.3"),
        (by_hand, "scaled twice", "without it"),
        (by_hand, "masked late", "if it is done to output.0 of Aten.exp"),
        (by_hand, "keys for values", "is what"),
    ],
)
def test_the_one_change_that_corrects_the_ends_names_the_mistake(
    tmp_path: Path, attend: Callable[..., Tensor], mistake: str, correction: str
) -> None:
    found = compared(tmp_path, partial(attend, mistake=mistake))
    assert found.exit_code == 1, found.answer()
    cause = found.cause
    assert cause is not None
    assert cause.row.target is not None, cause.text
    line = int(cause.row.target.source.partition(":")[2].split()[0])
    assert Path(__file__).read_text().splitlines()[line - 1].endswith(f"# {mistake}"), found.answer()
    assert correction in cause.text


def test_two_mistakes_in_one_region_are_still_a_difference(tmp_path: Path) -> None:
    """No single change corrects them, and the answer says nothing that is not so."""

    def both(q: Tensor, k: Tensor, v: Tensor, real: Tensor) -> Tensor:
        return by_hand(q.sigmoid(), k, F.relu(v) + 1, real, "masked late")

    found = compared(tmp_path, both)
    assert found.exit_code == 1, found.answer()
    assert found.cause is not None
    assert not re.search("agrees? (if it|without)", found.cause.text)


# -- several layers, layouts that are only supposed -------------------------------------------------------------------


class Deep(nn.Module):
    def __init__(self, attend: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.readers = nn.ModuleList(Reader(attend) for _ in range(5))

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        for reader in self.readers:
            x = x + reader(x, real)
        return x


def deep(path: Path, attend: Callable[..., Tensor]) -> Path:
    model = Deep(attend)
    x = torch.randn(ROWS, WORDS, WIDTH, generator=torch.Generator().manual_seed(1))
    real = torch.arange(WORDS) < torch.tensor([[WORDS], [WORDS - 2]])
    with DumpMode(DumpConfig(path=path, data="tensor"), model=model) as dump:
        model(x, real).square().mean().backward()
        dump.step()
    return path


def test_a_mistake_in_each_of_several_layers_is_looked_for_in_the_first(tmp_path: Path) -> None:
    """All layers together are too many calls to try many changes on."""
    target = deep(tmp_path / "target", partial(in_parts, mistake="not scaled"))
    found = compare(target, deep(tmp_path / "baseline", plain))
    assert found.exit_code == 1 and found.cause is not None
    line = int(re.findall(r"test_corrections\.py:(\d+)", found.cause.row.place.source)[0])
    assert "# not scaled" in Path(__file__).read_text(encoding="utf-8").splitlines()[line - 1], found.answer()


def routed(path: Path, *, is_sorted: bool, mistake: bool = False) -> Path:
    """Rows that go through the expert of their own, weighted: one by one with a mask, or sorted by expert."""
    torch.manual_seed(0)
    experts, gate = nn.ModuleList(nn.Linear(8, 8) for _ in range(3)), nn.Linear(8, 3)
    x = torch.randn(12, 8)
    with DumpMode(DumpConfig(path=path, data="tensor"), model=experts) as dump:
        for _ in range(2):
            weight, of = gate(x).softmax(-1).max(-1)
            if is_sorted:
                order = of.argsort(stable=True)
                parts = x[order].split(torch.bincount(of, minlength=3).tolist())
                y = torch.cat([expert(part) for expert, part in zip(experts, parts, strict=True)])[order.argsort()]
                weight = weight[order] if mistake else weight  # of the wrong row
                y = y * weight[:, None]
            else:
                y = torch.zeros_like(x)
                for number, expert in enumerate(experts):
                    y = y + (weight * (of == number))[:, None] * expert(x)
            x = x + y
        x.square().mean().backward()
        dump.step()
    return path


def test_what_lies_in_another_order_may_be_the_mistake(tmp_path: Path) -> None:
    baseline = routed(tmp_path / "baseline", is_sorted=False)
    right = compare(routed(tmp_path / "right", is_sorted=True), baseline)
    assert right.exit_code == 0, right.answer()
    found = compare(routed(tmp_path / "wrong", is_sorted=True, mistake=True), baseline)
    assert found.exit_code == 1 and found.cause is not None
    line = int(re.findall(r"test_corrections\.py:(\d+)", found.cause.row.place.source)[0])
    assert "# of the wrong row" in Path(__file__).read_text(encoding="utf-8").splitlines()[line - 1], found.answer()
