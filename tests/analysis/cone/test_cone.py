"""The cone holds what leads to a difference, and nothing that meets again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from aten_dump.analysis.cone.cone import cone_of
from aten_dump.analysis.explanation.both_sides import evaluate

X = torch.linspace(-2, 2, 48).view(4, 12)


def test_rewritings_that_meet_again_never_enter_it(record: Callable[..., Any]) -> None:
    def baseline() -> Tensor:
        h = torch.nn.functional.silu(X)
        return (h.softmax(-1) @ X.t()).tanh()

    def target() -> Tensor:
        h = X * torch.sigmoid(X)  # the same
        return (h.softmax(-1) @ X.t()).sigmoid()  # another function

    found = evaluate((record(target), record(baseline)), None, by_role=False)
    cones = [
        cone_of(found.sides[side], found.sides[1 - side].holders, [end.value for end in found.odd[side]])
        for side in (0, 1)
    ]
    assert [[call.op for call in cone.calls.values()] for cone in cones] == [["aten::sigmoid"], ["aten::tanh"]]
    assert [
        [found.sides[side].flow.rank.value_by_id(number).shape for number in cones[side].cut] for side in (0, 1)
    ] == [[torch.Size([4, 4])]] * 2


def test_a_wrong_view_is_a_call_of_it(record: Callable[..., Any]) -> None:
    found = evaluate((record(lambda: X[1:].exp().sum()), record(lambda: X[:-1].exp().sum())), None, by_role=False)
    cone = cone_of(found.sides[0], found.sides[1].holders, [end.value for end in found.odd[0]])
    assert cone.first is not None and cone.first.op == "aten::slice.Tensor"
    assert not cone.sources
