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
