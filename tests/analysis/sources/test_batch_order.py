"""A batch whose rows stand in another order is the same work, and the answer says so."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from aten_dump import DumpConfig, DumpMode, compare

ORDER = torch.tensor([3, 1, 0, 2, 7, 6, 5, 4])


class Tagger(nn.Module):
    def __init__(self, *, causal: bool = True) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(20, 16), nn.Linear(16, 5)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.causal = causal

    def forward(self, tokens: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1]) if self.causal else None
        return self.out(self.layer(self.words(tokens) + kinds[:, None, None], src_mask=mask, is_causal=self.causal))


def run(
    path: Path,
    order: torch.Tensor | None = None,
    *,
    labels: torch.Tensor | None = None,
    train: bool = False,
    causal: bool = True,
) -> Path:
    torch.manual_seed(0)
    model = Tagger(causal=causal).train(train)
    tokens, kinds, wanted = torch.randint(0, 20, (8, 6)), torch.arange(8.0) % 3, torch.randint(0, 5, (8, 6))
    if order is not None:
        tokens, kinds = tokens[order], kinds[order]
        wanted = wanted[order if labels is None else labels]
    with DumpMode(DumpConfig(path=str(path), data="tensor"), model=model) as dump, torch.set_grad_enabled(train):
        made = model(tokens, kinds)
        if train:
            nn.functional.cross_entropy(made.flatten(0, 1), wanted.flatten()).backward()
        dump.step()
    return path


@pytest.mark.parametrize("train", [False, True])
def test_the_rows_of_a_batch_in_another_order_agree(train: bool, tmp_path: Path) -> None:
    found = compare(run(tmp_path / "target", ORDER, train=train), run(tmp_path / "baseline", train=train))
    assert found.exit_code == 0, found.answer()
    assert "the target's batch of 8 rows is in another order: row 0 is the baseline's row 3" in found.answer()


def test_a_bug_beside_another_order_is_found(tmp_path: Path) -> None:
    found = compare(run(tmp_path / "target", ORDER, causal=False), run(tmp_path / "baseline"))
    assert found.exit_code == 1
    assert found.cause is not None and "mask is not given" in found.cause.text, found.answer()


def test_labels_in_another_order_than_their_inputs_are_a_bug(tmp_path: Path) -> None:
    target = run(tmp_path / "target", ORDER, labels=torch.arange(8), train=True)
    found = compare(target, run(tmp_path / "baseline", train=True))
    assert found.exit_code == 1 and "in another order" not in found.answer()


def test_other_rows_are_another_batch(tmp_path: Path) -> None:
    target = run(tmp_path / "target", torch.tensor([0, 1, 2, 3, 4, 5, 6, 6]))
    assert compare(target, run(tmp_path / "baseline")).exit_code == 1
