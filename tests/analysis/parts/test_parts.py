"""Work done in parts: rows of a batch, chunks of a sequence with a cache, layers that one side splits."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aten_dump import DumpConfig, DumpMode, compare
from aten_dump.analysis.parts.blocks import Block, Blocks, Rows

WIDTH, HEADS, VOCABULARY, LENGTH = 16, 2, 40, 8
Cache = list[Tensor]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, cache: Cache) -> Tensor:
        size, length, _ = x.shape
        q, k, v = (p.view(size, length, HEADS, -1).transpose(1, 2) for p in self.qkv(x).chunk(3, -1))
        if cache:
            k, v = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
        cache[:] = [k, v]
        unseen = ~torch.ones(length, k.shape[2], dtype=torch.bool).tril(k.shape[2] - length)
        weights = (q @ k.transpose(-1, -2) * 0.35).masked_fill(unseen, -torch.inf).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(size, length, WIDTH))  # type: ignore[no-any-return]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(32, WIDTH)
        self.attentions = nn.ModuleList(Attention() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor, caches: list[Cache], start: int = 0) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(start, start + ids.shape[1]))
        for attention, cache in zip(self.attentions, caches, strict=True):
            x = x + attention(x, cache)
        return self.head(self.norm(x))  # type: ignore[no-any-return]


IDS = torch.arange(3 * LENGTH).mul(7).remainder(VOCABULARY).reshape(3, LENGTH)  # no two neighbours are equal


def fresh() -> list[Cache]:
    return [[], []]


def whole(model: Model) -> None:
    model(IDS[:1].clone(), fresh())


def batch(model: Model) -> None:
    model(IDS, fresh())


def row(model: Model, start: int = 0) -> None:
    model(IDS[1:2].clone(), fresh(), start)


def padded(model: Model) -> None:
    model(F.pad(IDS[1:2], (0, 4)), fresh())


def decoded(model: Model, off: int = 0) -> None:
    caches = fresh()
    model(IDS[:1, :5].clone(), caches)
    for place in range(5, LENGTH):
        model(IDS[:1, place : place + 1].clone(), caches, place + off)


def in_chunks(model: Model) -> None:
    caches = fresh()
    for place in range(0, LENGTH, 3):
        model(IDS[:1, place : place + 3].clone(), caches, place)


def recorded(path: Path, work: Callable[[Model], None]) -> Path:
    model = Model().eval()
    with torch.no_grad(), DumpMode(DumpConfig(path=path, data="tensor"), model=model) as dump:
        work(model)
        dump.step()
    return path


@pytest.mark.parametrize(
    ("part", "all_of_it", "said"),
    [
        (row, batch, "is index 1 of 3 along dimension 0"),
        (decoded, whole, "is index 5 of 8 along dimension 1"),
        pytest.param(in_chunks, whole, "is indices 3 to 5 of 8 along dimension 1", marks=pytest.mark.slow),
        (row, padded, "is indices 0 to 7 of 12 along dimension 1"),
    ],
    ids=["row of a batch", "decoded", "in chunks", "padded"],
)
def test_parts_agree_with_the_whole_and_say_which_they_are(
    tmp_path: Path, part: Callable[[Model], None], all_of_it: Callable[[Model], None], said: str
) -> None:
    one, other = recorded(tmp_path / "part", part), recorded(tmp_path / "whole", all_of_it)
    for pair in ((one, other), (other, one)):
        found = compare(*pair)
        assert found.exit_code == 0, found.answer()
        assert said in found.answer()


def test_a_position_off_by_one_is_found_where_it_enters(tmp_path: Path) -> None:
    target = recorded(tmp_path / "off", lambda model: decoded(model, off=1))
    found = compare(target, recorded(tmp_path / "whole", whole))
    assert found.exit_code == 1 and found.cause is not None, found.answer()
    place = found.cause.row.place
    assert place.op == "aten::add.Tensor" and " in Model.forward" in place.source, found.answer()


def test_a_row_at_other_positions_is_found(tmp_path: Path) -> None:
    target = recorded(tmp_path / "off", lambda model: row(model, start=1))
    found = compare(target, recorded(tmp_path / "batch", batch))
    assert found.exit_code == 1 and found.cause is not None
    assert found.cause.row.place.op == "aten::arange.start", found.answer()


class Split(nn.Module):
    """One layer, or the same as three."""

    def __init__(self, parts: int, swapped: bool = False) -> None:
        super().__init__()
        torch.manual_seed(1)
        weight, bias = torch.randn(12, 8) / 3, torch.randn(12) / 5
        self.layers = nn.ModuleList(nn.Linear(8, 12 // parts) for _ in range(parts))
        self.out = nn.Linear(4, 3)
        order = [1, 0, 2] if swapped else range(parts)
        with torch.no_grad():
            for place, layer in zip(order, self.layers, strict=True):
                layer.weight.copy_(weight.chunk(parts)[place])
                layer.bias.copy_(bias.chunk(parts)[place])

    def forward(self, x: Tensor) -> Tensor:
        made = [layer(x) for layer in self.layers]
        q, k, v = made if len(made) == 3 else made[0].chunk(3, -1)
        return self.out(F.scaled_dot_product_attention(q, k, v))  # type: ignore[no-any-return]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """The gradient of the bias of keys is nothing but rounding, and so is the direction in which this changes it."""
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def trained(path: Path, model: nn.Module, make: Callable[[nn.Module], torch.optim.Optimizer] = sgd) -> Path:
    optimizer = make(model)
    with DumpMode(DumpConfig(path=path, data="tensor"), model=model) as dump:
        for step in range(2):
            x = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            F.cross_entropy(model(x).flatten(0, 1), torch.arange(12) % 3).backward()
            optimizer.step()
            dump.step()
    return path


@pytest.mark.parametrize("make", [pytest.param(sgd, marks=pytest.mark.slow), adamw], ids=["SGD", "AdamW"])
def test_a_layer_agrees_with_the_same_one_in_pieces(
    tmp_path: Path, make: Callable[[nn.Module], torch.optim.Optimizer]
) -> None:
    one, other = trained(tmp_path / "one", Split(1), make), trained(tmp_path / "three", Split(3), make)
    for pair in ((one, other), (other, one)):
        found = compare(*pair)
        assert found.exit_code == 0, found.answer()


def test_pieces_that_were_swapped_are_found(tmp_path: Path) -> None:
    found = compare(trained(tmp_path / "swapped", Split(3, swapped=True)), trained(tmp_path / "one", Split(1)))
    assert found.exit_code == 1 and found.cause is not None
    assert found.cause.row.place.phase == "forward", found.answer()


@pytest.mark.parametrize("dim", [0, 1])
def test_a_block_is_found_where_it_lies(dim: int) -> None:
    large = torch.randn(5, 7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    blocks = Blocks({1: Rows(torch.randn(5, 7, 3, dtype=torch.float64)), 2: Rows(large)})
    assert blocks.find(Rows(large.narrow(dim, 2, 3))) == [(2, Block(dim, 2, 3, large.shape[dim]))]
    assert blocks.find(Rows(large.narrow(dim, 2, 3).flip(dim))) == []


def lengths_padded(model: Model) -> None:
    """Score three rows, of which the second has five words; what lies behind these is padding."""
    ids = IDS.clone()
    ids[1, 5:] = 0
    model(ids, fresh())


def short_row(model: Model) -> None:
    model(IDS[1:2, :5].clone(), fresh())


def test_a_row_without_its_padding_is_a_part_in_two_dimensions(tmp_path: Path) -> None:
    one, other = recorded(tmp_path / "part", short_row), recorded(tmp_path / "whole", lengths_padded)
    for pair in ((one, other), (other, one)):
        found = compare(*pair)
        assert found.exit_code == 0, found.answer()
        assert "is indices 0 to 4 of 8 along dimension 1, in index 1 of 3 along dimension 0" in found.answer()


def scored(
    model: Model, order: tuple[int, ...], *, back: bool = True, wrong: float = 0.0, chosen: bool = False
) -> None:
    """Score rows in some order, and put the scores back."""
    rows = torch.tensor(order)
    logits = model(IDS[rows], fresh()) + wrong * (torch.arange(VOCABULARY) == 7)
    if chosen:
        (logits.argmax(-1) >= 0).float().mean()
        return
    losses = F.cross_entropy(logits.flatten(0, 1), IDS[rows].flatten(), reduction="none").view(3, LENGTH).sum(1)
    losses[rows.argsort()] if back else losses.clone()


def test_rows_in_another_order_agree_if_what_is_made_of_them_does(tmp_path: Path) -> None:
    one = recorded(tmp_path / "one", lambda model: scored(model, (2, 0, 1)))
    other = recorded(tmp_path / "other", lambda model: scored(model, (0, 1, 2)))
    found = compare(one, other)
    assert found.exit_code == 0, found.answer()
    assert "what the program makes of it is the same" in found.answer()


def test_rows_in_another_order_differ_if_what_is_made_of_them_does(tmp_path: Path) -> None:
    other = recorded(tmp_path / "other", lambda model: scored(model, (0, 1, 2)))
    for name, options in {"order": {"back": False}, "wrong": {"wrong": 0.1}}.items():
        found = compare(recorded(tmp_path / name, lambda model, o=options: scored(model, (2, 0, 1), **o)), other)
        assert found.exit_code == 1, found.answer()


def test_what_an_output_chooses_shows_too_little_of_it(tmp_path: Path) -> None:
    one = recorded(tmp_path / "one", lambda model: scored(model, (2, 0, 1), chosen=True))
    other = recorded(tmp_path / "other", lambda model: scored(model, (0, 1, 2), chosen=True))
    assert compare(one, other).exit_code == 1


def test_a_tensor_of_zeros_has_no_rows_to_find() -> None:
    blocks = Blocks({1: Rows(torch.zeros(3, 4)), 2: Rows(torch.full((3, 4), 1e3))})
    assert list(blocks.with_all_rows(Rows(torch.full((2, 4), 1e-8)))) == []


def test_rows_are_found_in_any_order_but_not_more_often_than_they_are_there() -> None:
    torch.manual_seed(2)
    whole = torch.randn(5, 4)
    for rows in (whole, whole[:, :1].flatten()):
        blocks = Blocks({1: Rows(rows), 2: Rows(rows.repeat_interleave(2, 0))})
        assert set(blocks.with_all_rows(Rows(rows[[3, 0, 4]]))) == {1, 2}
        assert set(blocks.with_all_rows(Rows(rows[[3, 3, 0, 0]]))) == {1, 2}  # keys that two heads share
        assert list(blocks.with_all_rows(Rows(rows[[3, 0, 3]]))) == []  # a stale page of a cache
    assert list(Blocks({1: Rows(torch.arange(5))}).with_all_rows(Rows(torch.tensor([3, 0, 4])))) == []


class Chooser(nn.Module):
    """Reads words, and then the ones it draws among the likeliest."""

    def __init__(self, among: int) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.among, self.words, self.head = among, nn.Embedding(9, 8), nn.Linear(8, 9)
        self.noise = 3 * torch.randn(2, 9)

    def forward(self, words: Tensor, *others: Tensor) -> Tensor:
        found = [self.head(one * torch.linspace(0, 1, 8)) for one in others]
        for at in range(2):
            scores = self.head(self.words(words).mean(1) * (1 + at))
            least = scores.topk(self.among, 1).values[:, -1:]
            words = (scores.masked_fill(scores < least, -torch.inf) + self.noise).argmax(1)[:, None]
            found.append(scores)
        return torch.stack(found)


def test_words_that_were_chosen_are_not_those_that_are_there_by_chance(tmp_path: Path) -> None:
    """The words that either chooses first are among those that both were given."""
    dumps = []
    for among in (1, 3):
        model = Chooser(among)
        with DumpMode(DumpConfig(path=tmp_path / str(among), data="full"), model=model), torch.no_grad():
            model(torch.arange(6).view(2, 3), torch.tensor([[5], [2]]), torch.tensor([[3], [6]]))
        dumps.append(tmp_path / str(among))
    found = compare(*dumps)
    assert found.exit_code == 1 and found.cause is not None
    assert "least" in linecache.getline(__file__, int(found.cause.row.place.source.rpartition(":")[2].split()[0]))


def in_chunks(path: Path, *, chunks: int) -> Path:
    """Compute a loss of all tokens at once, or as the mean of the means of chunks, which is another one: 7 and 8 count."""
    torch.manual_seed(0)
    hidden, head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
    x, labels = torch.randn(15, WIDTH), torch.randint(VOCABULARY, (15,))
    with DumpMode(DumpConfig(path=str(path), data="tensor"), model=nn.ModuleList((hidden, head))):
        made = torch.tanh(hidden(x))
        if chunks == 1:
            loss = F.cross_entropy(head(made), labels)
        else:
            loss = torch.zeros(())
            for some, wanted in zip(made.chunk(chunks), labels.chunk(chunks), strict=True):
                scores = head(some)
                loss = loss + F.cross_entropy(scores, wanted) / chunks
        loss.backward()
    return path


def test_a_loss_in_chunks_at_a_line_of_its_own_is_held_against_the_whole(tmp_path: Path) -> None:
    """What the chunks make before the loss are parts of the baseline's: the loss is the first that is not."""
    found = compare(in_chunks(tmp_path / "target", chunks=2), in_chunks(tmp_path / "baseline", chunks=1))
    assert found.exit_code == 1 and found.cause is not None
    assert found.cause.row.place.op == "aten::nll_loss_forward"
    assert "from parts of the same inputs it computes something else" in found.answer()
    assert "Input.0 is indices 0 to 7 of 15 along dimension 0 of the baseline's" in found.answer()
