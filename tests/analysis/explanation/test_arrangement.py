"""Where the work is laid out in other rows, the mistake is found by the rows that should be there."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aten_dump import DumpConfig, DumpMode, compare
from aten_dump.analysis.comparison import Comparison

WIDTH, HEADS, WORDS, LONGEST = 12, 3, 29, 7
LENGTHS = (4, 7, 2, 5)


class Reader(nn.Module):
    """Two layers of attention over words with learned places."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor, places: Tensor, seen: Tensor) -> Tensor:
        x = self.words(words) + self.places(places)
        for qkv, out in zip(self.qkv, self.out, strict=True):
            q, k, v = (one.unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in qkv(x).chunk(3, -1))
            scores = (q @ k.mT * (WIDTH // HEADS) ** -0.5).masked_fill(~seen, -1e9)
            x = x + out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2)).tanh()
        return self.head(x)  # type: ignore[no-any-return]


def texts() -> list[Tensor]:
    lot = torch.Generator().manual_seed(6)
    return [torch.randint(0, WORDS, (length,), generator=lot) for length in LENGTHS]


def padded(model: Reader) -> Tensor:
    """Read each text in a row of its own."""
    words = torch.zeros(len(LENGTHS), LONGEST, dtype=torch.int64)
    labels = torch.full_like(words, -100)
    for row, text in enumerate(texts()):
        words[row, : len(text)], labels[row, : len(text) - 1] = text, text[1:]
    seen = torch.ones(LONGEST, LONGEST, dtype=torch.bool).tril().expand(len(LENGTHS), 1, -1, -1)
    logits = model(words, torch.arange(LONGEST).expand(len(LENGTHS), -1), seen)
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def packed(model: Reader, mistake: str = "") -> Tensor:
    """Read all texts in one row."""
    words, labels = torch.cat(texts()), torch.cat([F.pad(text[1:], (0, 1), value=-100) for text in texts()])
    number = torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor(LENGTHS))
    if mistake == "places go on":
        places = torch.arange(len(words)) % LONGEST  # places go on
    else:
        places = torch.cat([torch.arange(len(text)) for text in texts()])
    seen = torch.ones(len(words), len(words), dtype=torch.bool).tril()  # sees others
    if mistake != "sees others":
        seen = seen & (number[:, None] == number)
    logits = model(words[None], places[None], seen[None, None])
    return F.cross_entropy(logits[0], labels)


def record(path: Path, loss: Callable[[Reader], Tensor]) -> Path:
    model = Reader()
    with DumpMode(DumpConfig(path=path, data="tensor"), model=model) as dump:
        loss(model).backward()
        dump.step()
    return path


def compared(folder: Path, mistake: str = "") -> Comparison:
    target = record(folder / "target", lambda model: packed(model, mistake))
    return compare(target, record(folder / "baseline", padded))


def test_packed_texts_agree_with_padded_ones(tmp_path: Path) -> None:
    found = compared(tmp_path)
    assert found.exit_code == 0, found.answer()


@pytest.mark.parametrize(
    ("mistake", "rows"),
    [("places go on", [4, 5, 6, 7, 8, 9, 10, 11]), ("sees others", [4, 5, 6, 7, 8, 9, 10, 11])],
)
def test_a_mistake_in_packed_texts_is_named_with_its_rows(tmp_path: Path, mistake: str, rows: list[int]) -> None:
    """The first text is right; so are places that are the same by chance."""
    found = compared(tmp_path, mistake)
    assert found.exit_code == 1
    assert found.cause is not None
    assert found.cause.row.target is not None
    line = next(n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if f"# {mistake}" in text)
    assert f"test_arrangement.py:{line} " in found.cause.row.target.source, found.answer()
    said = re.search(r"in rows ([\d, ]+?)(?:, \.\.\.)? of 18, counted from 0", found.cause.text)
    assert said is not None, found.answer()
    assert [int(row) for row in said[1].split(", ")] == rows
