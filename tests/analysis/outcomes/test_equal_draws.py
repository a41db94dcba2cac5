"""Random numbers that both sides drew alike, behind what meets at a loss alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from aten_dump import compare
from aten_dump.analysis.comparison import Comparison
from aten_dump.analysis.evidence.evidence_rows import Pair
from aten_dump.analysis.outcomes.equal_draws import tie_draws
from tests.analysis.by_hand import knowledge
from tests.analysis.judging.steps import record, seeded

LENGTHS = torch.tensor([3, 4, 2])


class Tagger(nn.Module):
    """Reads sequences of several lengths: packed, which sorts them by length, or step by step with a mask."""

    def __init__(self, *, packed: bool, bug: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.reader, self.head = nn.GRU(6, 5, batch_first=True), nn.Linear(5, 4)
        self.packed, self.bug = packed, bug

    def forward(self, x: Tensor) -> Tensor:
        if self.packed:
            rows = nn.utils.rnn.pack_padded_sequence(x, LENGTHS, batch_first=True, enforce_sorted=False)
            return self.head(self.reader(rows)[1][0])
        gru = self.reader
        state = x.new_full((3, 5), 0.1 if self.bug == "start" else 0.0)
        lengths = torch.tensor([3, 3, 2]) if self.bug == "length" else LENGTHS
        for step in range(4):
            new = torch.gru_cell(x[:, step], state, gru.weight_ih_l0, gru.weight_hh_l0, gru.bias_ih_l0, gru.bias_hh_l0)
            state = torch.where((step < lengths)[:, None], new, state)
        return self.head(state.tanh() if self.bug == "head" else state)


def trained(path: Path, model: Tagger) -> Path:
    def step(number: int) -> None:
        scores = model(seeded(3, 4, 6, seed=number))
        labels = torch.randint(4, (3,), generator=torch.Generator().manual_seed(number))  # drawn behind the model
        F.cross_entropy(scores, labels).backward()

    return record(path, step, model)


def compared(tmp_path: Path, bug: str) -> Comparison:
    target = trained(tmp_path / "target", Tagger(packed=False, bug=bug))
    return compare(target, trained(tmp_path / "baseline", Tagger(packed=True)))


@pytest.mark.parametrize(("bug", "code"), [("", 0), ("start", 1), ("length", 1), ("head", 1)])
def test_a_batch_in_another_order_meets_at_the_loss(bug: str, code: int, tmp_path: Path) -> None:
    found = compared(tmp_path, bug)
    assert found.exit_code == code, found.answer()


def test_what_both_drew_alike_is_known(record: Callable[..., Any]) -> None:
    def draw() -> tuple[Tensor, Tensor]:
        return torch.rand(4, generator=torch.Generator().manual_seed(0)), torch.ones(4).bernoulli_(0.5)

    dumps = [record(draw, data="full") for _ in range(2)]
    knows = knowledge(*dumps)
    pairs = [Pair(dumps[0][name], dumps[1][name], "order") for name in ("Aten.rand.0.forward", "Aten.ones.0.forward")]
    tie_draws(knows.known, knows.flows[0], pairs)
    drawn, made = (knows.known.is_known(0, pair.target.outputs) for pair in pairs)
    assert drawn and not made
