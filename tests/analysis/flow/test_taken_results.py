"""What the program took away: what it was shown, and nobody computes with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from aten_dump.analysis.flow.data_flow import DataFlow
from aten_dump.analysis.flow.last_reads import TakenResults
from aten_dump.dump import RankDump
from tests.analysis.by_distance.steps import seeded


def taken(rank: RankDump) -> list[str]:
    return [v.producer[0].op for v in TakenResults(DataFlow(rank, "aten")).all() if v.producer is not None]


class Normed(nn.Module):
    """It returns what it also reads, and drops the places of the greatest."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = nn.LayerNorm(4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.norm(x)
        hidden.max(-1)
        return self.last(hidden).sin(), hidden


def test_what_an_outermost_module_returns_is_taken_and_what_it_drops_is_not(record: Callable[..., Any]) -> None:
    model = Normed()
    with torch.no_grad():
        rank = record(lambda: model(seeded(3, 4)), model)
        assert taken(rank) == ["aten::native_layer_norm", "aten::sin"]
        assert taken(record(lambda: model(seeded(3, 4))[0].exp(), model)) == ["aten::native_layer_norm", "aten::exp"]


def test_what_is_read_or_from_outside_or_backward_s_is_not_taken(record: Callable[..., Any]) -> None:
    x, w = seeded(4), seeded(4).requires_grad_()
    assert taken(record(lambda: (x.exp() + 1).sum())) == ["aten::sum"]
    assert taken(record(lambda: x.exp().sum().item())) == [], "walked as a pair of reads"
    assert taken(record(lambda: x.view(2, 2))) == []
    assert taken(record(lambda: x.add_(1))) == [], "that is left in memory"
    assert "aten::mul.Tensor" not in taken(record(lambda: (w * w).sum().backward()))
    assert taken(record(lambda: torch.empty(3))) == [], "it holds nothing"
