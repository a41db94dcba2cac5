"""Which leaf a gradient is of: as Python-level calls say, and where there are none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from aten_dump.analysis.flow.data_flow import DataFlow
from aten_dump.analysis.flow.leaves import leaf_gradients, named_leaves
from tests.analysis.by_distance.steps import seeded


def test_which_leaf_a_gradient_is_for(record: Callable[..., Any]) -> None:
    a, b = (seeded(3, 3, seed=seed).requires_grad_() for seed in range(2))

    def run() -> None:
        b.register_hook(lambda gradient: gradient * 2)
        ((a @ b).sin() + a).sum().backward()
        a.mul(2).sum().backward()

    rank = record(run)
    product, doubled = rank["Tensor.matmul.0.forward"], rank["Tensor.mul.0.forward"]
    of_a, of_b = (value.id for _, value in product.input_values())
    assert doubled.inputs[0][0].id == of_a
    found = sorted((item.leaf.id, item.turn) for item in leaf_gradients(DataFlow(rank, "aten")).values())
    assert found == sorted([(of_a, 0), (of_a, 1), (of_b, 0)])


class Norm(nn.Module):
    """A norm that is no Python-level call, as fused ops of devices are called."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3, bias=False)
        self.weight, self.bias = nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(3, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inner(x) + self.bias
        return torch.ops.aten.native_layer_norm(x, [3], self.weight, None, 1e-5)[0]  # type: ignore[no-any-return]


def test_parameters_go_by_their_names_also_where_no_python_call_reads_them(record: Callable[..., Any]) -> None:
    model = Norm()
    rank = record(lambda: model(seeded(3, 3, seed=1)).square().sum().backward(), model)
    read = dict(rank["Aten.native_layer_norm.0.forward"].input_values())
    flow = DataFlow(rank, "aten")
    found = named_leaves(flow, leaf_gradients(flow))
    assert found.keys() == {"weight", "bias", "inner.weight"}
    assert found["weight"] == read["input.2"]
    assert [list(found[name].shape) for name in ("inner.weight", "bias")] == [[3, 3], [3, 1]]
