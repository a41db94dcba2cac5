"""Gradients of leaves without names are compared leaf by leaf, in whatever order backward reaches them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from aten_dump import compare
from tests.analysis.by_distance.steps import seeded
from tests.sampling import every_second

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


@pytest.mark.parametrize("times", every_second([2, 1]))
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


WEIGHT, SCALE = seeded(8, 8, seed=1), seeded(8, seed=2) + 2
Use = Callable[[torch.Tensor], torch.Tensor]


def scaled(use: Use, made: str = "before", *, frozen: bool = False) -> Callable[[], object]:
    """Return a step whose loss is the same however a leaf is used, but not the leaf's gradient."""
    weight = WEIGHT.clone().requires_grad_()
    before = SCALE.clone().requires_grad_(not frozen)

    def run() -> None:
        weight.grad = before.grad = None
        scale = SCALE.clone().requires_grad_() if made == "within" else before
        ((DATA[0].view(-1, 8) @ weight) * use(scale)).square().mean().backward()

    return run


def without_gradient(scale: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return scale * 1


WAYS: dict[str, tuple[Use, Use, str, bool]] = {  # how it loses its gradient and how not, where it is made, and frozen
    "detached": (lambda s: s.detach(), lambda s: s, "before", False),
    "detached, made within": (lambda s: s.detach(), lambda s: s, "within", False),
    "in no_grad": (without_gradient, lambda s: s * 1, "before", False),
    "frozen": (lambda s: s, lambda s: s, "before", True),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_leaf_that_one_side_alone_gives_a_gradient_is_found(way: str, record: Callable[..., Any]) -> None:
    loses, uses, made, frozen = WAYS[way]
    one, other = record(scaled(loses, made, frozen=frozen)), record(scaled(uses, made))
    for having, (target, baseline) in (("baseline", (one, other)), ("target", (other, one))):
        found = compare(target, baseline)
        assert found.cause is not None and found.cause.kind == "gradient", found.answer()
        assert f"has a gradient in the {having} only" in found.answer()
        assert (found.cause.row.place.call == "Aten.detach.0.forward") == way.startswith("detached")
        lacking = "target" if having == "baseline" else "baseline"
        assert (f"no gradient flows back through it in the {lacking}" in found.answer()) == (way != "frozen")


def test_a_parameter_that_only_one_dump_names_is_a_leaf_like_any_other(record: Callable[..., Any]) -> None:
    model = torch.nn.ParameterDict({"weight": WEIGHT.clone(), "scale": SCALE.clone()})

    def run(use: Use = lambda scale: scale) -> None:
        model.zero_grad()
        ((DATA[0].view(-1, 8) @ model["weight"]) * use(model["scale"])).square().mean().backward()

    named, nameless = record(run, model=model), record(lambda: run(torch.Tensor.detach))
    assert sorted(named.gradients) == ["scale", "weight"] and nameless.gradients == {}
    assert compare(named, nameless).exit_code == 1
    assert compare(named, record(run)).exit_code == 0


def test_a_leaf_that_neither_side_gives_a_gradient_is_no_finding(record: Callable[..., Any]) -> None:
    frozen, detached = record(scaled(lambda s: s, frozen=True)), record(scaled(lambda s: s.detach()))
    for found in (compare(frozen, detached), compare(detached, frozen)):
        assert found.exit_code == 0, found.answer()


def test_leaves_of_checkpointed_blocks_are_no_leaves_elsewhere(record: Callable[..., Any]) -> None:
    """The inputs of a block become leaves of its recomputation; frozen rows get a gradient so that blocks have one."""
    rows, first, second = seeded(10, 8, seed=3), WEIGHT.clone().requires_grad_(), seeded(8, 8, seed=4).requires_grad_()

    def blocks(x: torch.Tensor) -> torch.Tensor:
        return ((x @ first).tanh() @ second).tanh()

    def step(checkpointed: bool) -> Callable[[], object]:
        def run() -> None:
            first.grad = second.grad = None
            x = torch.nn.functional.embedding(torch.arange(10), rows)
            if checkpointed:
                x = checkpoint(lambda x: blocks(x), x.requires_grad_(), use_reentrant=True)
            else:
                x = blocks(x)
            x.square().mean().backward()

        return run

    one, other = record(step(True)), record(step(False))
    for found in (compare(one, other), compare(other, one)):
        assert found.exit_code == 0, found.answer()
