"""Backward passes that are differentiated, repeated, partial, or begun with gradients of the program's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.capture.autograd.links import assert_linked
from tests.capture.bits import assert_same, calls, only, values
from tests.capture.twice import twice
from tests.devices import op_here
from tests.torch_features import needs_backward_seen

Record = Callable[..., Any]


def _node(call: Any) -> Any:
    """The autograd node that a call runs under."""
    while call is not None and call.kind != "node":
        call = call.parent
    return call


def test_the_second_backward_links_to_the_calls_of_the_first(record: Record) -> None:
    """Each node of the second pass belongs to the very op of the first pass (or of the forward) that made it."""

    def program() -> list[Tensor]:
        x = torch.randn(5, requires_grad=True)
        y = x.exp().sin()
        (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        g.tanh().sum().backward()
        return [g, x.grad]  # type: ignore[list-item]

    rank = twice(record, program)
    first = next(c for c in calls(rank, kind="api") if c.op == "torch.autograd.grad")
    second = next(c for c in calls(rank, kind="api") if c.op == "torch.Tensor.backward")
    multiplications = [c for c in calls(rank, kind="aten", op="aten::mul.Tensor") if first.id < c.id < second.id]
    assert len(multiplications) == 2  # grad * cos(exp(x)), then that * exp(x)
    nodes = [c for c in calls(rank, kind="node") if c.id > second.id and "AccumulateGrad" not in c.name]
    assert {n.name.split(".")[1] for n in nodes} >= {"TanhBackward0", "MulBackward0", "CosBackward0", "ExpBackward0"}
    assert [n.forward.id for n in nodes if "MulBackward0" in n.name] == [c.id for c in reversed(multiplications)]
    cosine = only(calls(rank, kind="aten", op="aten::cos"))
    assert only([n for n in nodes if "CosBackward0" in n.name]).forward == cosine
    assert cosine.phase == "backward" and cosine.forward.op == "aten::sin"
    for call in calls(rank, kind="aten", phase="backward"):
        node = _node(call)
        if node is not None and "AccumulateGrad" not in node.name:
            assert call.forward is not None, f"{call.name} has no forward call"
            assert call.forward == node.forward and call.forward.id < call.id


def test_gradient_penalty_of_a_module(record: Record) -> None:
    """The module path survives: ops of the second backward name the module whose backward they differentiate."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))

    def program() -> list[Tensor]:
        model.zero_grad()
        x = torch.randn(3, 4, requires_grad=True)
        (g,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        (g.norm() - 1).square().backward()
        return [g, x.grad, *(p.grad for p in model.parameters() if p.grad is not None)]  # type: ignore[list-item]

    rank = twice(record, program, model)
    backward = only(calls(rank, op="torch.Tensor.backward"))
    again = [
        c
        for c in calls(rank, kind="node")
        if c.id > backward.id and c.forward is not None and c.forward.phase == "backward"
    ]
    assert {n.forward.module for n in again} >= {"0", "1", "2"}
    assert all(n.module == n.forward.module for n in again), [(n.name, n.module, n.forward.module) for n in again]


def test_backward_with_create_graph_and_three_derivatives(record: Record) -> None:
    def program() -> list[Tensor]:
        x = torch.randn(5, requires_grad=True)
        y = x.pow(4).sum()
        found = []
        for _ in range(3):
            (g,) = torch.autograd.grad(y, x, create_graph=True)
            found.append(g)
            y = g.sum()
        return found

    rank = twice(record, program)
    grads = calls(rank, op="torch.autograd.grad", phase="forward")
    assert len(grads) == 3
    linked = [call for call in calls(rank, kind="aten", phase="backward") if call.forward is not None]
    rest = [call for call in calls(rank, kind="aten", phase="backward") if call.forward is None]
    assert len(linked) > 10
    assert [call.op for call in rest] == [], "only the roots have no node"


def test_retain_graph_runs_are_calls_of_their_own(record: Record) -> None:
    def program() -> list[Tensor]:
        x, w = torch.randn(4, 5, requires_grad=True), torch.randn(3, 5, requires_grad=True)
        y = F.linear(x, w)
        for scale in (1.0, 2.0, 3.0):
            y.backward(torch.full((4, 3), scale), retain_graph=scale < 3)
        return [x.grad, w.grad]  # type: ignore[list-item]

    rank = twice(record, program)
    forward = rank["Functional.linear.0.forward"]
    backwards = [c for c in forward.backward if c.kind == "api"]
    assert [c.repeat for c in backwards] == [0, 1, 2]
    for scale, call in zip((1.0, 2.0, 3.0), backwards, strict=True):
        assert_same(torch.full((4, 3), scale), values(call.inputs)[0].tensor())
    aten = only(calls(rank, op="aten::addmm") or calls(rank, op=op_here("aten::mm"), phase="forward"))
    assert len([c for c in aten.backward if op_here("MmBackward0") in c.name]) == 3
    assert_linked(rank)


@pytest.mark.parametrize("way", ["grad", pytest.param("backward", marks=needs_backward_seen)])
def test_with_inputs_only_their_part_of_the_graph_runs(record: Record, way: str) -> None:
    """Called directly, not as a method; the leaf left out has no gradient, in the program or in the dump."""

    def program() -> list[Tensor]:
        x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
        h = x @ w
        y = h.tanh()
        if way == "grad":
            return list(
                torch.autograd.grad([y, h.exp()], [h, w], grad_outputs=[torch.ones(4, 4), torch.full((4, 4), 2.0)])
            )
        torch.autograd.backward([y, h.exp()], [torch.ones(4, 4), torch.full((4, 4), 2.0)], inputs=[w])
        assert x.grad is None
        return [w.grad]  # type: ignore[list-item]

    rank = twice(record, program)
    assert assert_linked(rank) > 4
    matmul = only([c for c in calls(rank, kind="api", phase="forward") if "matmul" in c.op])
    gradients = values(next(c for c in matmul.backward if c.kind == "api").outputs)
    assert len(gradients) == 1, "only w has a gradient"
    (backward,) = [c for c in rank.calls if c.op in ("torch.autograd.grad", "torch.autograd.backward")]
    if way == "grad":
        assert_same(values(backward.outputs)[1].tensor(), gradients[0].tensor())


def test_non_scalar_roots_made_by_ops_without_an_api_call(record: Record) -> None:
    """The root's node is seen although no Python-level call made it."""

    def program() -> list[Tensor]:
        x = torch.randn(4, 3, requires_grad=True)
        y = x * 2
        y[1] = 5.0  # __setitem__ returns nothing
        y.backward(torch.arange(12.0).view(4, 3))
        z = torch.ops.aten.sin(x)
        z.backward(torch.ones(4, 3))
        return [x.grad]  # type: ignore[list-item]

    rank = twice(record, program)
    names = {c.name.split(".")[1] for c in calls(rank, kind="node")}
    assert {"CopySlices", "SinBackward0", "MulBackward0"} <= names
    sine = only([c for c in calls(rank, kind="node") if "SinBackward0" in c.name])
    assert sine.forward.op == "aten::sin"
    assert_same(torch.ones(4, 3), values(sine.inputs)[0].tensor())
    assert_linked(rank)


def test_backward_inside_a_custom_backward(record: Record) -> None:
    """Reentrant: a node that runs a whole forward and backward of its own."""

    class Implicit(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.exp()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
            with torch.enable_grad():
                x = ctx.saved_tensors[0].detach().requires_grad_()
                y = x.exp().log().exp()
            y.backward(g)
            return x.grad  # type: ignore[return-value]

    def program() -> list[Tensor]:
        x = torch.randn(4, requires_grad=True)
        Implicit.apply(x.sin()).sum().backward()
        return [x.grad]  # type: ignore[list-item]

    rank = twice(record, program)
    assert assert_linked(rank) > 5
    outer = only([c for c in calls(rank, kind="node") if "ImplicitBackward" in c.name])
    inner = [c for c in calls(rank, kind="node") if "LogBackward0" in c.name]
    assert inner and all(
        c.forward.op == "aten::log" and outer.start_ns < c.start_ns < outer.start_ns + outer.duration_ns for c in inner
    )
