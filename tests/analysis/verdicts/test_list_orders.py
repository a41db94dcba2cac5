"""Optimizers that were handed the parameters in another order run the same ops on lists that do not belong together."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from aten_dump import DumpConfig, DumpMode, compare
from tests.sampling import diagonal

Groups = list[dict[str, Any]]
Change = Callable[[nn.Sequential, torch.optim.Optimizer, int], None]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3)
    return nn.Sequential(*layers)


def whole(parameters: list[Tensor]) -> Groups:
    return [{"params": parameters}]


def reversed_order(parameters: list[Tensor]) -> Groups:
    return whole(parameters[::-1])


def shuffled(parameters: list[Tensor]) -> Groups:
    return whole(random.Random(3).sample(parameters, len(parameters)))


def groups(parameters: list[Tensor]) -> Groups:
    decayed = {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1}
    return [decayed, {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}]


def other_groups_first(parameters: list[Tensor]) -> Groups:
    return groups(parameters)[::-1]


def other_rate(parameters: list[Tensor]) -> Groups:
    return [{**group, "lr": 2e-2} for group in shuffled(parameters)]


def nothing(model: nn.Sequential, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Leave all as it is."""


def gradients_swapped(model: nn.Sequential, optimizer: torch.optim.Optimizer, step: int) -> None:
    one, other = model[0].weight, model[2].weight
    one.grad, other.grad = other.grad, one.grad


def moments_swapped(model: nn.Sequential, optimizer: torch.optim.Optimizer, step: int) -> None:
    if step:
        one, other = (optimizer.state[layer.weight] for layer in (model[0], model[2]))
        one["exp_avg"], other["exp_avg"] = other["exp_avg"], one["exp_avg"]


def trained(
    path: Path, order: Callable[[list[Tensor]], Groups], change: Change = nothing, *, named: bool = True, **options: Any
) -> Path:
    model = network()
    optimizer = torch.optim.AdamW(order(list(model.parameters())), lr=1e-2, weight_decay=0.1, **options)
    generator = torch.Generator().manual_seed(1)
    with DumpMode(DumpConfig(path, data="full"), model=model if named else None) as dump:
        for step in range(2):
            model(torch.randn(5, 6, generator=generator)).square().mean().backward()
            change(model, optimizer, step)
            optimizer.step()
            optimizer.zero_grad()
            dump.step()
    return path


ORDERS = [
    ([reversed_order, whole], {"foreach": True}),
    ([shuffled, whole], {"foreach": True}),
    ([shuffled, whole], {"fused": True}),
    ([other_groups_first, groups], {"foreach": True}),
]


@pytest.mark.parametrize(
    ("orders", "options", "named"),
    diagonal(ORDERS, [True, False], ids=None),
    ids=[f"orders{at}-options{at}-{named}" for at in range(len(ORDERS)) for named in (True, False)],
)
def test_the_order_of_parameters_is_no_difference(
    tmp_path: Path, orders: list[Any], options: dict[str, Any], named: bool
) -> None:
    one, other = (trained(tmp_path / order.__name__, order, named=named, **options) for order in orders)
    found = compare(one, other)
    assert found.exit_code == 0, found.answer()


@pytest.mark.parametrize(
    ("order", "change", "named"),
    diagonal(
        [(shuffled, gradients_swapped), (shuffled, moments_swapped), (other_rate, nothing)],
        [True, False],
        ids=lambda item: getattr(item, "__name__", str(item)),
    ),
)
def test_a_mistake_under_another_order_is_found(tmp_path: Path, order: Any, change: Change, named: bool) -> None:
    wrong = trained(tmp_path / "wrong", order, change, named=named, foreach=True)
    found = compare(wrong, trained(tmp_path / "right", whole, named=named, foreach=True))
    assert found.exit_code == 1
    assert found.cause is not None and found.cause.row.place.phase == "optimizer", found.answer()
