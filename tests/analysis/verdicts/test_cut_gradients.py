"""A gradient that one side lacks is told at the forward call that cuts it off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from aten_dump import DumpConfig, DumpMode, compare


def _record(path: Path, join: Callable[[Tensor, Tensor], Tensor]) -> Path:
    torch.manual_seed(0)
    one, two, head = nn.Linear(4, 5), nn.Linear(4, 5), nn.Linear(5, 1)
    x = torch.randn(3, 4)
    model = nn.ModuleDict({"one": one, "two": two, "head": head})
    with DumpMode(DumpConfig(path=str(path), data="tensor"), model=model):
        y = join(one(x).exp(), two(x))
        head(y.tanh()).square().mean().backward()
    return path


def _without_gradient(a: Tensor, b: Tensor) -> Tensor:
    with torch.no_grad():
        c = a * b
    return c.sin() + b


CASES = {  # exp detaches what it made too, on both sides: that is number 0
    "detached": (lambda a, b: (a * b).detach().sin() + b, "Aten.detach.1.forward"),
    "in the midst": (lambda a, b: (a.detach() * b).sin() + b, "Aten.detach.1.forward"),
    "without gradient": (_without_gradient, "Aten.mul.0.forward"),
}


def join(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sin() + b


@pytest.mark.parametrize("name", CASES)
def test_the_call_that_cuts_a_gradient_off_is_named(name: str, tmp_path: Path) -> None:
    changed, guilty = CASES[name]
    paths = _record(tmp_path / "changed", changed), _record(tmp_path / "plain", join)
    found = compare(*paths)
    assert found.cause is not None and found.cause.row.place.call == guilty, found.answer()
    assert "no gradient flows back through it in the target" in found.cause.text
    turned = compare(*reversed(paths)).cause
    assert turned is not None and turned.row.target is None and turned.row.place.call == guilty, turned
    assert "no gradient flows back through it in the baseline" in turned.text


OPERANDS: dict[str, Callable[[Tensor, nn.ModuleDict, Callable[[Tensor], Tensor]], Tensor]] = {
    "weight of a product": lambda y, model, cut: nn.functional.linear(y, cut(model["table"].weight)),
    "bias": lambda y, model, cut: nn.functional.linear(y, model["table"].weight, cut(model["head"].bias)),
    "factor": lambda y, model, cut: (y * cut(model["head"].weight)) @ model["table"].weight.t() + model["head"].bias,
}


@pytest.mark.parametrize("name", OPERANDS)
def test_a_detached_weight_is_named_though_its_call_has_a_backward(name: str, tmp_path: Path) -> None:
    """The gradient of the other operand flows through the call, and the weight's is made of its other use as well."""

    def record(path: Path, cut: Callable[[Tensor], Tensor]) -> Path:
        torch.manual_seed(0)
        model = nn.ModuleDict({"table": nn.Embedding(7, 5), "head": nn.Linear(5, 7)})
        model["head"].weight = nn.Parameter(torch.rand(5))
        x = torch.randint(0, 7, (6,))
        with DumpMode(DumpConfig(path=str(path), data="tensor"), model=model):
            y = model["table"](x).sin() * model["head"].weight
            (OPERANDS[name](y, model, cut) * model["head"].bias).square().mean().backward()
        return path

    paths = record(tmp_path / "changed", torch.Tensor.detach), record(tmp_path / "plain", lambda tensor: tensor)
    found = compare(*paths)
    assert found.cause is not None and found.cause.row.place.call.startswith("Aten.detach."), found.answer()
    assert found.cause.row.place.phase == "forward"
    assert "no gradient flows back through it in the target" in found.cause.text


def _trained(path: Path, change: Callable[[nn.ModuleDict], object]) -> Path:
    torch.manual_seed(0)
    model = nn.ModuleDict({"one": nn.Linear(4, 5), "two": nn.Linear(4, 5)})
    change(model)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], foreach=True)
    x = torch.randn(3, 4)
    with DumpMode(DumpConfig(path=str(path), data="tensor"), model=model):
        (model["one"](x).exp() + model["two"](x)).square().mean().backward()
        optimizer.step()
    return path


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_a_frozen_parameter_is_told_before_what_the_optimizer_makes_of_it(name: str, tmp_path: Path) -> None:
    def freeze(model: nn.ModuleDict) -> None:
        model["two"].get_parameter(name).requires_grad_(False)

    found = compare(_trained(tmp_path / "frozen", freeze), _trained(tmp_path / "plain", lambda model: None))
    assert found.cause is not None and found.cause.kind == "gradient", found.answer()
    assert (
        found.cause.row.place.module == "two" and f"two.{name} has a gradient in the baseline only" in found.cause.text
    )


def test_another_gradient_is_told_where_it_is_made(tmp_path: Path) -> None:
    def turned(a: Tensor, b: Tensor) -> Tensor:
        c = a * b
        c.register_hook(torch.neg)
        return c.sin() + b

    found = compare(_record(tmp_path / "changed", turned), _record(tmp_path / "plain", join))
    assert found.cause is not None and found.cause.row.place.call == "Aten.neg.0.backward", found.answer()
