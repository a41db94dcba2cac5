"""Where a program is written otherwise, the mistake is what puts the ends right, and not what is merely otherwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aten_dump import DumpConfig, DumpMode, compare
from aten_dump.analysis.comparison import Comparison

SIZE, HEADS, VOCABULARY = 12, 2, 23
LENGTHS = (5, 3, 6)


def recorded(path: Path, run: Callable[[], object]) -> Path:
    with DumpMode(DumpConfig(path=path, data="tensor")) as dump:
        run()
        dump.step()
    return path


def compared(folder: Path, target: Callable[[], object], baseline: Callable[[], object]) -> Comparison:
    return compare(recorded(folder / "target", target), recorded(folder / "baseline", baseline))


def lines_named(found: Comparison) -> list[str]:
    """Return the lines of this file that the first cause is at, on either side."""
    assert found.cause is not None, found.answer()
    places = [place for place in (found.cause.row.target, found.cause.row.baseline) if place is not None]
    text = Path(__file__).read_text().splitlines()
    return [text[int(place.source.partition(":")[2].split()[0]) - 1] for place in places]


# -- documents in one row, and one below the other with padding ---------------------------------------------------------


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.words, self.places = nn.Embedding(VOCABULARY, SIZE), nn.Embedding(max(LENGTHS), SIZE)
        self.qkv, self.head = nn.Linear(SIZE, 3 * SIZE), nn.Linear(SIZE, VOCABULARY)

    def logits(self, ids: Tensor, places: Tensor, mask: Tensor) -> Tensor:
        x = self.words(ids) + self.places(places)
        q, k, v = (one.unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.head(x + y.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


DOCUMENTS = [torch.arange(1, length + 1).mul(7).remainder(VOCABULARY) for length in LENGTHS]


def padded() -> None:
    ids = nn.utils.rnn.pad_sequence(DOCUMENTS, batch_first=True)
    places = torch.arange(ids.shape[1]).expand_as(ids)
    causal = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
    logits = Reader().logits(ids, places, causal[None, None])
    labels = torch.stack([F.pad(one[1:], (0, ids.shape[1] - len(one) + 1), value=-100) for one in DOCUMENTS])
    F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100).backward()


def packed(*, sees_others: bool) -> None:
    ids, places = torch.cat(DOCUMENTS)[None], torch.cat([torch.arange(length) for length in LENGTHS])[None]
    number = torch.cat([torch.full((length,), at) for at, length in enumerate(LENGTHS)])
    causal = torch.ones(len(number), len(number), dtype=torch.bool).tril()  # who may see whom
    mask = causal if sees_others else causal & (number[:, None] == number[None])
    logits = Reader().logits(ids, places, mask[None, None])
    labels = torch.cat([F.pad(one[1:], (0, 1), value=-100) for one in DOCUMENTS])
    F.cross_entropy(logits.flatten(0, 1), labels, ignore_index=-100).backward()


def test_packed_documents_agree_with_padded_ones(tmp_path: Path) -> None:
    found = compared(tmp_path, lambda: packed(sees_others=False), padded)
    assert found.exit_code == 0, found.answer()


def test_packed_documents_that_see_one_another_are_named_at_the_mask(tmp_path: Path) -> None:
    found = compared(tmp_path, lambda: packed(sees_others=True), padded)
    assert found.exit_code == 1
    assert any("who may see whom" in line for line in lines_named(found)), found.answer()


# -- rays one by one, and all at once -----------------------------------------------------------------------------------


def encoded(x: Tensor, *, in_order: bool) -> Tensor:
    angles = x[..., None] * torch.tensor([1.5, 3.0])
    if in_order:
        return torch.stack((angles.sin(), angles.cos()), -2).flatten(-3)
    return torch.cat((angles.sin().flatten(-2), angles.cos().flatten(-2)), -1)  # in another order


def rays(*, one_by_one: bool, in_order: bool = True) -> None:
    torch.manual_seed(4)
    first, second, start = nn.Linear(12, 10), nn.Linear(10, 1), torch.randn(4, 3)
    steps, ways = torch.rand(4, 6), torch.randn(4, 3)

    def one(start: Tensor, way: Tensor, steps: Tensor, in_order: bool) -> Tensor:
        x = start[..., None, :] + steps[..., None] * way[..., None, :]
        return second(F.softplus(first(encoded(x, in_order=in_order))))[..., 0].sum(-1)  # type: ignore[no-any-return]

    if one_by_one:
        made = torch.stack([one(*of_ray, in_order) for of_ray in zip(start, ways, steps, strict=True)])
    else:
        made = one(start, ways, steps, in_order)
    made.square().mean().backward()


def test_samples_in_a_loop_agree_with_the_batch_and_their_mistake_is_named_where_it_is(tmp_path: Path) -> None:
    honest = compared(tmp_path / "honest", lambda: rays(one_by_one=True), lambda: rays(one_by_one=False))
    assert honest.exit_code == 0, honest.answer()
    found = compared(tmp_path, lambda: rays(one_by_one=True, in_order=False), lambda: rays(one_by_one=False))
    assert found.exit_code == 1
    assert any("in another order" in line or "torch.stack((" in line for line in lines_named(found)), found.answer()


# -- a region that is written otherwise, with the mistake at its end ----------------------------------------------------


def scanned(x: Tensor, decay: Tensor) -> Tensor:
    state, states = torch.zeros_like(x[:, 0]), []
    for at in range(x.shape[1]):
        state = state * decay + x[:, at]
        states.append(state)
    return torch.stack(states, 1)


def multiplied(x: Tensor, decay: Tensor, *, late: int) -> Tensor:
    apart = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])[None]
    powers = torch.where((apart >= late)[..., None], decay ** apart[..., None].clamp(min=2 * late), 0.0)  # two mistakes
    return torch.einsum("tsd,bsd->btd", powers, x)  # all steps at once


@pytest.mark.parametrize("late", [0, 1])
def test_the_answer_names_the_value_that_puts_the_ends_right(tmp_path: Path, late: int) -> None:
    def run(states: Callable[..., Tensor], **options: Any) -> Callable[[], None]:
        def step() -> None:
            torch.manual_seed(2)
            x, decay, out = torch.randn(2, 5, SIZE), torch.rand(SIZE).requires_grad_(), nn.Linear(SIZE, 3)
            out(states(x, decay, **options).tanh()).square().mean().backward()

        return step

    found = compared(tmp_path, run(multiplied, late=late), run(scanned))
    assert found.exit_code == late, found.answer()
    if late:
        answer = found.answer().splitlines()[0]
        _, _, last = answer.partition("; the ends agree if ")
        assert "in multiplied" in last and "aten::" not in last and "in scanned) of the baseline does" in last, answer


# -- what has no graph --------------------------------------------------------------------------------------------------


class Square(torch.autograd.Function):
    errs = False

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        kept = x.exp().log()
        ctx.save_for_backward(kept)
        return kept * kept

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (kept,) = ctx.saved_tensors
        return grads[0] * 2 * (kept.cos() if Square.errs else kept)  # by hand


def squared(*, by_hand: bool) -> None:
    torch.manual_seed(3)
    x, layer = torch.randn(4, SIZE), nn.Linear(SIZE, SIZE)
    made = layer(x)
    (Square.apply(made) if by_hand else (kept := made.exp().log()) * kept).mean().backward()


def test_a_wrong_backward_by_hand_cuts_no_gradient_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = compared(tmp_path / "honest", lambda: squared(by_hand=True), lambda: squared(by_hand=False))
    assert honest.exit_code == 0, honest.answer()
    monkeypatch.setattr(Square, "errs", True)
    found = compared(tmp_path, lambda: squared(by_hand=True), lambda: squared(by_hand=False))
    assert found.exit_code == 1 and "no gradient flows" not in found.answer()
    assert any("by hand" in line for line in lines_named(found)), found.answer()
