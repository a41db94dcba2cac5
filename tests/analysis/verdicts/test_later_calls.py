"""What comes of results later, on both sides."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from aten_dump import compare
from aten_dump.analysis.comparison import Comparison
from tests.analysis.by_distance.steps import record as record_steps
from tests.analysis.by_distance.steps import seeded

X = seeded(8, 8)


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
        labels = torch.randint(4, (3,), generator=torch.Generator().manual_seed(number))
        F.cross_entropy(model(seeded(3, 4, 6, seed=number)), labels).backward()

    return record_steps(path, step, model)


def compared(tmp_path: Path, bug: str) -> Comparison:
    target = trained(tmp_path / "target", Tagger(packed=False, bug=bug))
    return compare(target, trained(tmp_path / "baseline", Tagger(packed=True)))


@pytest.mark.parametrize(("bug", "code"), [("", 0), ("start", 1), ("length", 1), ("head", 1)])
def test_a_batch_in_another_order_meets_at_the_loss(bug: str, code: int, tmp_path: Path) -> None:
    found = compared(tmp_path, bug)
    assert found.exit_code == code, found.answer()
