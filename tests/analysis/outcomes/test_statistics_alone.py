"""What statistics alone tell of two results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from aten_dump.analysis.outcomes.statistics_alone import Statistics, shows_equality
from aten_dump.dump import Value
from tests.analysis.by_hand import knowledge
from tests.analysis.judging.steps import seeded

X = seeded(8, 8)


@pytest.mark.parametrize(
    ("other", "equal"),
    [(X.clone(), True), (X * 1.001, False), (X[0, :4].clone(), False), (torch.zeros(8, 8), False)],
    ids=["same", "scaled", "few", "nothing"],
)
def test_equal_statistics_of_some_numbers_show_equality(
    record_anything: Callable[..., Any], other: torch.Tensor, equal: bool
) -> None:
    given = (X[0, :4].clone() if other.numel() == 4 else torch.zeros(8, 8) if not other.any() else X), other
    dumps = [record_anything(lambda x=x: x.sin(), data="statistic") for x in given]
    knows = knowledge(*dumps)
    [(target, baseline)] = knows.results(*(dump["Aten.sin.0.forward"] for dump in dumps)).values()
    assert shows_equality((target, baseline, knows.known.close(target, baseline))) is equal


@pytest.mark.parametrize(("scale", "end", "agree"), [(1.0, 1.0, True), (1.001, 1.0, False), (1.0, 1.001, False)])
def test_ways_meet_where_all_ends_agree_too(
    record_anything: Callable[..., Any], scale: float, end: float, agree: bool
) -> None:
    bodies = [lambda: ((X * (1 + 1e-7)).sin(), X.cos()), lambda: ((X * scale).sin(), (X * end).cos())]
    dumps = [record_anything(body, data="statistic") for body in bodies]
    knows = knowledge(*dumps)

    def made(op: str) -> tuple[Value, Value]:
        [both] = knows.results(*(dump[f"Aten.{op}.0.forward"] for dump in dumps)).values()
        return both

    statistics = Statistics(knows.flows, knows.known, [made("cos")])
    target, baseline = made("sin")
    assert statistics.agree([target], [baseline], exact=False) is agree
