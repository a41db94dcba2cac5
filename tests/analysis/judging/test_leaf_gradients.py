"""Gradients of leaves without names are compared leaf by leaf, in whatever order backward reaches them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from aten_dump import compare
from aten_dump.analysis.flow.data_flow import DataFlow
from aten_dump.analysis.judging.leaf_gradients import leaf_gradients
from tests.analysis.judging.steps import seeded

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
DATA = [seeded(2, 4, 8, 16, seed=seed) for seed in range(3)]


def eager(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (q @ k.transpose(-1, -2) / 4).softmax(-1) @ v


def wrong(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The gradient of the key is a little wrong."""
    k.register_hook(lambda gradient: gradient * 1.01)
    return eager(q, k, v)


fused: Attention = torch.nn.functional.scaled_dot_product_attention


def step(attention: Attention, made: str, times: int = 1) -> Callable[[], object]:
    """Return a step on leaves that are made within it, before it, or before it of the same data."""

    def leaves() -> list[torch.Tensor]:
        return [(DATA[0] if made == "equal" else data).clone().requires_grad_() for data in DATA]

    before = leaves()

    def run() -> None:
        q, k, v = leaves() if made == "within" else before
        for leaf in before:
            leaf.grad = None
        for _ in range(times):
            attention(q, k, v).square().sum().backward()

    return run


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("made", ["within", "before", "equal"])
def test_eager_attention_against_fused_on_leaves_of_one_shape(
    made: str, times: int, record: Callable[..., Any]
) -> None:
    one, other = record(step(eager, made, times)), record(step(fused, made, times))
    for found in (compare(one, other), compare(other, one)):
        assert found.exit_code == 0, found.answer()


@pytest.mark.parametrize("made", ["within", "before", "equal"])
def test_a_wrong_gradient_is_found(made: str, record: Callable[..., Any]) -> None:
    one, other = record(step(wrong, made)), record(step(fused, made))
    for found in (compare(one, other), compare(other, one)):
        assert found.exit_code == 1 and found.cause is not None, found.answer()
        assert found.cause.row.place.phase == "backward", found.answer()


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
