"""Each autograd node belongs to the op that it is the derivative of, also where autograd clones before an op writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

Record = Callable[..., Any]
Tensor = torch.Tensor


def _weight() -> Tensor:
    return torch.full((4,), 0.5, requires_grad=True)


IN_PLACE: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "HardswishBackward0": ("aten::hardswish_", lambda y: F.hardswish(y, inplace=True)),
    "SiluBackward0": ("aten::silu_", lambda y: F.silu(y, inplace=True)),
    "MishBackward0": ("aten::mish_", lambda y: F.mish(y, inplace=True)),
    "HardtanhBackward0": ("aten::hardtanh_", lambda y: F.relu6(y, inplace=True)),
    "MulBackward0": ("aten::mul_.Tensor", lambda y: y.mul_(_weight())),
    "DivBackward0": ("aten::div_.Tensor", lambda y: y.div_(_weight())),
    "PowBackward0": ("aten::pow_.Scalar", lambda y: y.pow_(2)),
    "ClampBackward1": ("aten::clamp_", lambda y: y.clamp_(0, 1)),
    "AbsBackward0": ("aten::abs_", lambda y: y.abs_()),
    "ScatterReduceBackward0": (
        "aten::scatter_reduce_.two",
        lambda y: y.scatter_reduce_(0, torch.tensor([0, 1, 2, 3]), _weight(), "prod"),
    ),
}


# Without another input that has a gradient, the op makes no node where its own input has none.
CASES = [(node, True) for node in IN_PLACE] + [
    (node, False) for node in ("MulBackward0", "DivBackward0", "ScatterReduceBackward0")
]


@pytest.mark.parametrize(("node", "input_has_gradient"), CASES)
def test_an_op_that_overwrites_what_its_backward_needs_has_its_node(
    record: Record, node: str, input_has_gradient: bool
) -> None:
    op, run = IN_PLACE[node]
    base = torch.linspace(-2.0, 2.0, 4, requires_grad=input_has_gradient)

    def step() -> None:
        y = run(base + 1.0)
        (y * 3.0).sum().backward()

    rank = record(step)
    names = [call for call in rank.calls if call.kind == "node" and call.name.split(".")[1] == node]
    owners = {call.forward.op for call in names if call.forward is not None and call.forward.op != "aten::mul.Tensor"}
    assert owners == {op}
    clones = [call for call in rank.calls if call.op == "aten::clone" and call.phase == "forward"]
    assert len(clones) == 1, "autograd's own"
    forward = next(call for call in rank.calls if call.op == op)
    assert forward.sequence_nr is not None and forward.sequence_nr != clones[0].sequence_nr
    assert {call.forward.op for call in rank.calls if call.kind == "node" and "Clone" in call.name} <= {"aten::clone"}


def test_in_place_ops_on_views_one_after_the_other(record: Record) -> None:
    base, weight = torch.ones(4, requires_grad=True), torch.full((4,), 2.0, requires_grad=True)

    def step() -> None:
        y = base * 1.5
        y[:2].mul_(weight[:2])
        y[2:].mul_(weight[2:])
        (y + 1).sum().backward()

    rank = record(step)
    writes = [call.id for call in rank.calls if call.op == "aten::mul_.Tensor"]
    slices = [call for call in rank.calls if call.kind == "node" and "CopySlices" in call.name]
    assert sorted(call.forward.id for call in slices) == writes


def test_an_in_place_op_without_a_node_takes_none(record: Record) -> None:
    base, count = torch.ones(4, requires_grad=True), torch.zeros(())

    def step() -> None:
        y = base * 2.0
        count.add_(1)
        y.sum().backward()

    rank = record(step)
    node = next(call for call in rank.calls if call.kind == "node" and "MulBackward0" in call.name)
    assert node.forward.op == "aten::mul.Tensor"
    assert next(call for call in rank.calls if call.op == "aten::add_.Tensor").sequence_nr is None
