"""The caller's line where one line is called from several places, and the line within a backward pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from aten_dump import DumpConfig, DumpMode, RankDump, open_dump


def helper(x: Tensor) -> Tensor:
    return x.exp()


def outer(x: Tensor) -> Tensor:
    return helper(x)


class Doubling(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return torch.nn.functional.relu(gradient * 2)


def recorded(path: Path) -> RankDump:
    x = torch.ones(2, requires_grad=True)
    with DumpMode(DumpConfig(path=path)):
        first = outer(x)
        second = outer(x).sin()
        third = x.cos()
        Doubling.apply(first + second + third).sum().backward()
    return open_dump(path).rank(0, 0)


def lines(rank: RankDump, op: str, phase: str = "forward") -> list[tuple[str, str]]:
    found = rank.calls.filter(op=op, kind="aten", phase=phase)
    return [(call.where.rpartition(" in ")[2], call.called_from.rpartition(" in ")[2]) for call in found]


def test_calls_of_a_helper_are_told_apart_by_the_place_where_their_callers_part(tmp_path: Path) -> None:
    rank = recorded(tmp_path / "d")
    assert lines(rank, "aten::exp") == [("helper", "recorded"), ("helper", "recorded")]
    one, two = (call.called_from for call in rank.calls.filter(op="aten::exp", kind="aten", phase="forward"))
    assert one != two
    assert lines(rank, "aten::cos") == [("recorded", "")], "one place: nothing to tell apart"


def test_a_backward_call_is_where_its_code_is_or_else_its_forward_s(tmp_path: Path) -> None:
    rank = recorded(tmp_path / "d")
    backward = rank.calls.filter(kind="aten", phase="backward")
    where = {call.op: call.where.rpartition(" in ")[2] for call in backward}
    assert where["aten::relu"] == "Doubling.backward"
    assert where["aten::sin"] == "recorded", "of cos"
