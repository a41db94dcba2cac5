"""What differs and leads to no end is no cause: padding of other numbers, on the other side, or more of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from aten_dump import DumpConfig, DumpMode, compare
from aten_dump.analysis.comparison import Comparison

WORDS, WIDTH, LENGTHS = 30, 16, (5, 8, 3)


@dataclass(frozen=True)
class Padding:
    """How rows are padded: with which word and position, to which length, on which side."""

    word: int = 0
    position: int = 0
    length: int = 8
    on_the_left: bool = False


PADDINGS = {
    "another word": Padding(word=1),
    "another word and position": Padding(word=1, position=9),
    "longer": Padding(length=11),
    "on the left": Padding(on_the_left=True),
}


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.given, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.back = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor, bug: str) -> Tensor:
        q, k, v = self.given(self.norms[0](x)).chunk(3, -1)
        scores = (q @ k.transpose(-1, -2) / WIDTH**0.5).masked_fill(~mask, float("-inf"))
        x = x + self.out(scores.softmax(-1) @ v)
        wide = self.wide(self.norms[1](x))
        wide = F.silu(wide) if bug == "silu" else F.gelu(wide)  # the activation
        return x + self.back(wide)


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.positions = nn.Embedding(WORDS, WIDTH), nn.Embedding(16, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor, positions: Tensor, mask: Tensor, bug: str) -> Tensor:
        x = self.words(words) + self.positions(positions)
        for layer in self.layers:
            x = layer(x, mask, bug)
        if bug != "norm":
            x = self.norm(x)  # the last norm
        return self.head(x)  # type: ignore[no-any-return]


def padded(padding: Padding) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return words, positions, a mask and labels, made before the recording begins."""
    chosen = random.Random(0)
    shape = len(LENGTHS), padding.length
    words, positions = torch.full(shape, padding.word), torch.full(shape, padding.position)
    labels, mask = torch.full(shape, -100), torch.eye(padding.length, dtype=torch.bool).repeat(len(LENGTHS), 1, 1)
    for row, length in enumerate(LENGTHS):
        sentence = torch.tensor([chosen.randrange(2, WORDS) for _ in range(length)])
        start = padding.length - length if padding.on_the_left else 0
        at = slice(start, start + length)
        words[row, at], positions[row, at], labels[row, at] = sentence, torch.arange(length), sentence.roll(-1)
        mask[row, at, at] = torch.ones(length, length).tril().bool()
    return words, positions, mask, labels


def train(path: Path, padding: Padding, bug: str = "") -> Path:
    model = Decoder()
    words, positions, mask, labels = padded(padding)
    with DumpMode(DumpConfig(path=path, data="tensor"), model=model):
        logits = model(words, positions, mask, bug)
        if bug == "temperature":
            logits = logits / 1.05  # the temperature
        F.cross_entropy(logits.flatten(0, 1), labels.flatten()).backward()
    return path


def named(found: Comparison) -> str:
    assert found.cause is not None, found.answer()
    line = int(found.cause.row.place.source.partition(":")[2].split()[0])
    return Path(__file__).read_text().splitlines()[line - 1]


@pytest.mark.parametrize("padding", PADDINGS.values(), ids=PADDINGS)
def test_padding_is_honest(padding: Padding, tmp_path: Path) -> None:
    found = compare(train(tmp_path / "t", padding), train(tmp_path / "b", Padding()))
    assert found.exit_code == 0, found.answer()


BUGS = {"silu": "# the activation", "norm": "# the last norm", "temperature": "# the temperature"}


# One mistake for each padding, and all with the slow tests.
_BESIDE = [
    pytest.param(padding, bug, id=f"{name}-{bug}", marks=[] if at % len(BUGS) == place else pytest.mark.slow)
    for place, bug in enumerate(BUGS)
    for at, (name, padding) in enumerate(PADDINGS.items())
]


@pytest.mark.parametrize(("padding", "bug"), _BESIDE)
def test_a_mistake_beside_other_padding_is_named(padding: Padding, bug: str, tmp_path: Path) -> None:
    found = compare(train(tmp_path / "t", padding, bug), train(tmp_path / "b", Padding()))
    assert found.exit_code == 1 and named(found).endswith(BUGS[bug]), found.answer()


def test_what_is_put_right_is_said(tmp_path: Path) -> None:
    found = compare(train(tmp_path / "t", PADDINGS["another word"], "silu"), train(tmp_path / "b", Padding()))
    answer = found.answer()
    assert "Aten.embedding.0.forward differs (it reads other contents" in answer
    assert "and nothing that the step ends with depends on it" in answer
    assert "Its inputs are the same, if Aten.embedding.0.forward is put right." in answer


Change = Callable[[Tensor], Tensor]


@pytest.mark.parametrize(
    "change", [lambda x: x.roll(1, 0), lambda x: (x + 1) % WORDS], ids=["other rows", "other words"]
)
def test_other_data_that_count_are_the_cause(change: Change, tmp_path: Path) -> None:
    """Words of every row are changed, and labels are not: the loss is another one."""
    model, (words, positions, mask, labels) = Decoder(), padded(Padding())
    for name, given in (("t", change(words)), ("b", words)):
        with DumpMode(DumpConfig(path=tmp_path / name, data="tensor"), model=model):
            F.cross_entropy(model(given, positions, mask, "").flatten(0, 1), labels.flatten()).backward()
        model.zero_grad()
    found = compare(tmp_path / "t", tmp_path / "b")
    assert found.cause is not None and found.cause.kind == "source", found.answer()
    assert found.cause.row.place.op == "aten::embedding"
