"""Nodes of a graph are run from given inputs; what cannot be run, or may give anything, is not known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from aten_dump.analysis.layers.graph_values import distance, result_of, values_of
from aten_dump.dump import GraphNode, NodeRef

X = torch.linspace(-2, 2, 9, dtype=torch.float64)


def node(name: str, op: str, *args: Any, **kwargs: Any) -> GraphNode:
    return GraphNode(name, op, args, kwargs, None, None, "", "", ())


def test_nodes_are_run_in_order_and_what_depends_on_chance_is_not_known() -> None:
    x, sine = NodeRef("x"), NodeRef("sine")
    nodes = [
        node("x", "placeholder"),
        node("sine", "aten::sin", x),
        node("more", "aten::mul.Tensor", sine, 2),
        node("drawn", "aten::rand_like", x),
        node("after", "aten::add.Tensor", NodeRef("drawn"), sine),
        node("odd", "library::unknown", x),
    ]
    found = values_of(nodes, {"x": X, "sine": X}, is_wide=True)
    assert found.keys() == {"x", "sine", "more"}
    assert torch.equal(found["more"], X.sin() * 2), "a source takes the place of a placeholder alone"


def test_a_node_that_writes_leaves_what_others_read() -> None:
    nodes = [
        node("x", "placeholder"),
        node("more", "aten::add_.Tensor", NodeRef("x"), 1),
        node("same", "aten::neg", NodeRef("x")),
    ]
    assert torch.equal(values_of(nodes, {"x": X}, is_wide=True)["same"], -X)


@pytest.mark.parametrize(
    ("op", "args", "shape", "is_unfit"),
    [
        ("aten::mul.Tensor", (NodeRef("x"), NodeRef("x")), (9,), False),
        ("aten::mul.Tensor", (NodeRef("x"), NodeRef("x")), (9, 9), True),
        ("aten::mul.Tensor", (NodeRef("x"), NodeRef("x")), ("s0",), False),
        ("aten::view", (NodeRef("x"), [2, 4]), None, True),
        ("aten::mm", (NodeRef("x"), NodeRef("x")), None, True),
        ("aten::mm", (NodeRef("nobody"), NodeRef("x")), None, False),
        ("library::unknown", (NodeRef("x"),), (9,), False),
        ("aten::as_strided", (NodeRef("sine"), [3, 3], [3, 1]), None, False),
        ("aten::as_strided", (NodeRef("sine"), [9, 9], [9, 1]), None, True),
        ("aten::as_strided", (NodeRef("x"), [9, 9], [9, 1]), None, False),  # it may lie in more memory
    ],
)
def test_a_node_that_does_not_fit_its_inputs(op: str, args: tuple[Any, ...], shape: Any, is_unfit: bool) -> None:
    made = replace(node("made", op, *args), shape=shape)
    unfit: list[GraphNode] = []
    nodes = [node("x", "placeholder"), node("sine", "aten::sin", NodeRef("x")), made, replace(made, name="again")]
    values_of(nodes, {"x": X}, is_wide=True, unfit=unfit)
    assert unfit == ([made] if is_unfit else [])


def test_an_op_beside_what_stands_for_it() -> None:
    args = (NodeRef("x"),)
    assert distance(result_of("aten::gelu", args, {}, {"x": X}), torch.nn.functional.gelu(X)) == 0
    assert distance(result_of("aten::gelu", args, {}, {"x": X}), torch.relu(X)) > 0.05
    assert result_of("aten::gelu", args, {}, {}) is None
    assert result_of("aten::rand_like", args, {}, {"x": X}) is None


@pytest.mark.parametrize(
    ("one", "other", "far"),
    [
        (X, X * (1 + 1e-9), False),
        (X, X.index_fill(0, torch.tensor([3]), 0.0), True),
        (X, X[:-1], True),
        (X, X.index_fill(0, torch.tensor([3]), torch.nan), True),
        (X / 0.0, X / 0.0, False),
        (X > 0, X > 1, True),
        (X, None, False),
    ],
)
def test_distance(one: Any, other: Any, far: bool) -> None:
    assert (distance(one, other) > 0) is far
