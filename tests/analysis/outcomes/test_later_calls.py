"""What comes of results later, on both sides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from aten_dump.analysis.evidence.evidence_rows import Pair
from aten_dump.analysis.outcomes.later_calls import LaterCalls, could_tell
from tests.analysis.by_hand import knowledge
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
