"""An optimizer that is written by hand agrees with torch's; one with a slip in it, however small a step is, does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from aten_dump import compare
from tests.analysis.by_distance.steps import record, seeded
from tests.analysis.verdicts.test_left_behind import both_ways
from tests.sampling import every_second, slow_but_for

Step = Callable[[Tensor, Tensor, dict[str, Any]], None]
LR, EPS, FIRST, SECOND = 1e-3, 1e-8, 0.9, 0.999


class ByHand(torch.optim.Optimizer):
    def __init__(self, parameters: Any, step: Step) -> None:
        super().__init__(parameters, {})
        self._step = step

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            assert parameter.grad is not None
            self._step(parameter, parameter.grad, self.state[parameter])


def adamw(update: Callable[[Tensor, Tensor, Tensor, float, float], object], lr: float = LR) -> Step:
    """Return AdamW with a step of its own: of the weight, both moments, and what their bias corrections divide by."""

    def step(weight: Tensor, gradient: Tensor, state: dict[str, Any]) -> None:
        if not state:
            state |= {"m": torch.zeros_like(weight), "v": torch.zeros_like(weight), "t": 0}
        state["t"] += 1
        m, v, t = state["m"], state["v"], state["t"]
        weight.mul_(1 - lr * 0.05)
        m.mul_(FIRST).add_(gradient, alpha=1 - FIRST)
        v.mul_(SECOND).addcmul_(gradient, gradient, value=1 - SECOND)
        update(weight, m, v, 1 - FIRST**t, 1 - SECOND**t)

    return step


ADAMW: dict[str, Callable[[Tensor, Tensor, Tensor, float, float], object]] = {
    "divided": lambda w, m, v, one, two: w.sub_(LR * (m / one) / ((v / two).sqrt() + EPS)),
    "multiplied": lambda w, m, v, one, two: w.sub_(LR * (m * (1 / one)) / (torch.sqrt(v * (1 / two)) + EPS)),
    "power": lambda w, m, v, one, two: w.add_((m / one) / ((v / two) ** 0.5 + EPS), alpha=-LR),
}
WRONG: dict[str, Callable[[Tensor, Tensor, Tensor, float, float], object]] = {
    "eps in the root": lambda w, m, v, one, two: w.sub_(LR * (m / one) / (v / two + EPS).sqrt()),
    "first not corrected": lambda w, m, v, one, two: w.sub_(LR * m / ((v / two).sqrt() + EPS)),
    "second not corrected": lambda w, m, v, one, two: w.sub_(LR * (m / one) / (v.sqrt() + EPS)),
    "corrected behind eps": lambda w, m, v, one, two: w.sub_(LR * (m / one) / ((v.sqrt() + EPS) / two**0.5)),
    "another eps": lambda w, m, v, one, two: w.sub_(LR * (m / one) / ((v / two).sqrt() + 10 * EPS)),
    "corrections swapped": lambda w, m, v, one, two: w.sub_(LR * (m / two) / ((v / one).sqrt() + EPS)),
}


def sgd(first: float = 0.0, momentum: float = 0.9, ahead: float = 0.9, decay: float = 1e-3) -> Step:
    def step(weight: Tensor, gradient: Tensor, state: dict[str, Any]) -> None:
        gradient = gradient + decay * weight
        if not state:
            state["b"] = torch.full_like(weight, first)
        state["b"].mul_(momentum).add_(gradient)
        weight.sub_(0.05 * (gradient + ahead * state["b"]))

    return step


def trained(path: Path, optimizer: Callable[[Any], torch.optim.Optimizer], steps: int = 2) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 5))
    made = optimizer(model.parameters())

    def run(number: int) -> None:
        model(seeded(8, 6, seed=number)).logsumexp(1).mean().backward()
        made.step()
        made.zero_grad()

    return record(path, run, model, steps=steps)


def torchs_adamw(lr: float = LR, **how: Any) -> Callable[[Any], torch.optim.Optimizer]:
    return lambda parameters: torch.optim.AdamW(parameters, lr=lr, weight_decay=0.05, **how)


def by_hand(step: Step) -> Callable[[Any], torch.optim.Optimizer]:
    return lambda parameters: ByHand(parameters, step)


@pytest.mark.parametrize("foreach", slow_but_for([False], [False, True]))
@pytest.mark.parametrize("form", slow_but_for(["divided", "power"], ADAMW))
def test_bias_corrections_may_be_made_before_the_root_or_behind_it(form: str, foreach: bool, tmp_path: Path) -> None:
    target = trained(tmp_path / "target", by_hand(adamw(ADAMW[form])))
    for found in both_ways(target, trained(tmp_path / "baseline", torchs_adamw(foreach=foreach))):
        assert found.exit_code == 0, found.answer()


@pytest.mark.parametrize("slip", slow_but_for(["eps in the root", "corrected behind eps", "another eps"], WRONG))
def test_a_slip_in_a_step_is_found_in_the_optimizer(slip: str, tmp_path: Path) -> None:
    target = trained(tmp_path / "target", by_hand(adamw(WRONG[slip])), steps=1)
    for found in both_ways(target, trained(tmp_path / "baseline", torchs_adamw(foreach=False), steps=1)):
        assert found.exit_code == 1 and found.cause is not None, found.answer()
        assert found.cause.row.place.phase == "optimizer", found.answer()


def test_a_slip_is_found_where_weights_hardly_move(tmp_path: Path) -> None:
    """As in the first steps of a warmup. With a rate of 0 nothing depends on the slip: that is the same function."""
    lr = 1e-9

    def update(weight: Tensor, m: Tensor, v: Tensor, one: float, two: float) -> None:
        weight.sub_(lr * (m / one) / (v.sqrt() + EPS))

    target = trained(tmp_path / "target", by_hand(adamw(update, lr)), steps=1)
    found = compare(target, trained(tmp_path / "baseline", torchs_adamw(lr, foreach=False), steps=1))
    assert found.exit_code == 1, found.answer()


def torchs_sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-3, nesterov=True, foreach=False)


def test_momentum_may_begin_at_zero_or_as_the_first_gradient(tmp_path: Path) -> None:
    target = trained(tmp_path / "target", by_hand(sgd()))
    for found in both_ways(target, trained(tmp_path / "baseline", torchs_sgd)):
        assert found.exit_code == 0, found.answer()


@pytest.mark.parametrize(
    "slip", every_second([{"first": 1e-3}, {"momentum": 0.8}, {"ahead": 0.81}, {"decay": 0.0}]), ids=str
)
def test_a_slip_in_momentum_is_found_in_the_optimizer(slip: dict[str, float], tmp_path: Path) -> None:
    target = trained(tmp_path / "target", by_hand(sgd(**slip)))
    for found in both_ways(target, trained(tmp_path / "baseline", torchs_sgd)):
        assert found.exit_code == 1 and found.cause is not None, found.answer()
        assert found.cause.row.place.phase == "optimizer", found.answer()
