"""Losses that add up, and what is made of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from aten_dump.analysis.flow.data_flow import DataFlow
from aten_dump.analysis.flow.roots import roots_of
from aten_dump.analysis.outcomes.loss_parts import LossParts, add_up_to_the_same

X = torch.arange(1.0, 9.0).view(8, 1)


def steps(sizes: tuple[float, ...], log: list[Tensor]) -> Callable[[], None]:
    """Backward on parts of a batch, each times its size; each is put into a log."""

    def run() -> None:
        w = torch.ones(1, requires_grad=True)
        for part, size in zip(X.chunk(len(sizes)), sizes, strict=True):
            loss = (part * w).mean()
            log.append(loss.detach().double())
            (loss * size).backward()

    return run


@pytest.mark.parametrize("data", ["tensor", "statistic"])
def test_what_parts_add_up_to(record: Callable[..., Any], data: str) -> None:
    whole, half, other = (
        roots_of(record(steps(sizes, []), data=data)) for sizes in ((1.0,), (0.5, 0.5), (0.5, 0.500001))
    )
    assert add_up_to_the_same(half, whole) and add_up_to_the_same(whole, half)
    assert not add_up_to_the_same(other[1:], whole) and not add_up_to_the_same([], whole)
    nothing = roots_of(record(steps((1.0,), []), data="structure"))
    assert not add_up_to_the_same(nothing, whole)


def test_numbers_of_parts_are_no_counterparts_of_those_of_the_whole(record: Callable[..., Any]) -> None:
    def read_alike(sizes: tuple[float, ...]) -> set[tuple[str, str]]:
        ranks = record(steps(sizes, []), data="tensor"), record(steps((1.0,), []), data="tensor")
        flows = DataFlow(ranks[0], "aten"), DataFlow(ranks[1], "aten")
        parts = LossParts(flows, (roots_of(ranks[0]), roots_of(ranks[1])))
        calls = ([call for call in flow.calls() if not flow.is_view(call)] for flow in flows)
        ours, theirs = calls
        return {
            (one.op.removeprefix("aten::"), one.phase)
            for one in ours
            for other in theirs
            if one.op == other.op and one.phase == other.phase and parts.are_read_by(one, other)
        }

    found = read_alike((0.5, 0.5))
    assert {("_to_copy", "forward"), ("mul.Tensor", "forward"), ("mul.Tensor", "backward")} <= found
    assert ("mean", "forward") not in found, "it reads what is no number"
    assert read_alike((0.5, 0.7)) == read_alike((1.0,)) == set(), "they do not add up, or there are as many"
