"""What comes of results later, on both sides."""

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
from aten_dump.analysis.outcomes.later_calls import LaterCalls, could_tell
from tests.analysis.by_hand import knowledge
from tests.analysis.judging.steps import record as record_steps
from tests.analysis.judging.steps import seeded

X = seeded(8, 8)


def test_what_pairs_of_later_calls_make_of_a_result_comes_in_order(record: Callable[..., Any]) -> None:
    dumps = [record(lambda scale=scale: (X.mul(scale).sin().cos(), X.exp())) for scale in (2.0, 3.0)]
    knows = knowledge(*dumps)
    pair = Pair(dumps[0]["Aten.mul.0.forward"], dumps[1]["Aten.mul.0.forward"], "module")
    later = LaterCalls(knows.flows, knows.wiring, knows.regions, [])
    results = [value for _, value in pair.target.result_values()]
    made = [targets[0].producer[0].name for targets, _ in later.of(pair, results, 8, given=False)]
    assert made == ["Aten.sin.0.forward", "Aten.cos.0.forward"]


def test_an_index_or_another_shape_cannot_show_that_ways_met(record: Callable[..., Any]) -> None:
    rank = record(lambda: torch.arange(6.0).view(2, 3).exp().max(1))
    most, where = (value for _, value in rank["Aten.max.0.forward"].result_values())
    whole = rank["Aten.exp.0.forward"].outputs
    assert could_tell([most], [most]) and could_tell([most, where], [most, where])
    assert not could_tell([where], [where]) and not could_tell([most], [whole])


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
