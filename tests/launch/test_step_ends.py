"""Where steps end, asked of real optimizers, scalers and modules."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer

from aten_dump.launch.step_ends import StepEnds


class Ends:
    """What was told: a count, and where modules are called a list of what came in which order."""

    def __init__(self) -> None:
        self.alone = True
        self.told: list[str] = []
        self.ends = StepEnds(lambda optimizer: self.alone, lambda: self.told.append("end"))


@pytest.fixture
def ends() -> Iterator[Ends]:
    found = Ends()
    yield found
    found.ends.stop()


def own_optimizer(*parameters: torch.Tensor, base: type[Optimizer] = SGD) -> Optimizer:
    """Return one of a class of its own: torch wraps the step of a class once."""
    return type("Own", (base,), {"step": lambda self, closure=None: base.step(self, closure)})(parameters, lr=1.0)


def leaf() -> torch.Tensor:
    found = torch.ones(1, requires_grad=True)
    found.grad = torch.ones(1)
    return found


def test_a_step_has_returned_when_it_ends(ends: Ends) -> None:
    optimizer = own_optimizer(leaf())
    optimizer.register_step_post_hook(lambda *given: ends.told.append("hook"))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer.step()
    schedule.step()
    optimizer.step()
    told = [name for name, _ in itertools.groupby(ends.told)]  # hooks of the base class run too
    assert told == ["hook", "end", "hook", "end"]


def test_a_class_that_calls_its_base_ends_one_step(ends: Ends) -> None:
    inner = type("Inner", (SGD,), {"step": lambda self, closure=None: SGD.step(self, closure)})
    inner([leaf()], lr=1.0)  # torch has wrapped its step now
    own_optimizer(leaf(), base=inner).step()
    assert ends.told == ["end"]


def test_an_optimizer_that_fails_ends_nothing(ends: Ends) -> None:
    optimizer = own_optimizer(leaf())
    with pytest.raises(ZeroDivisionError):
        optimizer.step(lambda: 1 / 0)  # type: ignore[arg-type]
    assert ends.told == []
    optimizer.step()
    assert ends.told == ["end"]


def test_a_step_that_a_scaler_skips_ends_too(ends: Ends) -> None:
    parameter = leaf()
    optimizer, scaler = own_optimizer(parameter), torch.amp.GradScaler("cpu")
    for number in (1.0, float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale(parameter * number).sum().backward()
        scaler.step(optimizer)
        scaler.update()
    assert ends.told == ["end"] * 3


def test_with_several_optimizers_the_end_waits_for_a_module(ends: Ends) -> None:
    ends.alone = False
    module, before = nn.Identity(), nn.Module.__call__
    module.register_forward_hook(lambda *given: ends.told.append("module"))
    first, second = own_optimizer(leaf()), own_optimizer(leaf())
    for _ in range(2):
        first.step()
        second.step()
        module(torch.ones(1))
        module(torch.ones(1))
    assert ends.told == ["end", "module", "module"] * 2
    assert nn.Module.__call__ is before


@pytest.mark.parametrize("compiled", ["step", "a function around it"])
def test_a_compiled_step_ends_at_the_next_module(ends: Ends, compiled: str) -> None:
    parameter = leaf()
    optimizer, module = own_optimizer(parameter), nn.Identity()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    step = optimizer.step if compiled == "step" else lambda: optimizer.step()
    step = torch.compile(step, backend="eager")
    for number in range(1, 4):
        step()
        assert ends.told == ["end"] * (number - 1)
        module(torch.ones(1))
        assert ends.told == ["end"] * number
    assert parameter.item() == -2
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1, "it was not compiled, or each time anew"


def test_optimizers_that_step_in_backward_do_not_end_it(ends: Ends) -> None:
    parameter = torch.ones(1, requires_grad=True)
    optimizer = own_optimizer(parameter)
    parameter.register_post_accumulate_grad_hook(lambda _: optimizer.step())
    parameter.sum().backward()
    assert ends.told == []
    nn.Identity()(parameter)
    assert ends.told == ["end"]


def test_nothing_is_told_after_stop_and_torch_is_as_it_was() -> None:
    before = Optimizer.profile_hook_step, torch.amp.GradScaler.step
    found = Ends()
    optimizer = own_optimizer(leaf())
    found.ends.stop()
    optimizer.step()
    assert found.told == []
    assert (Optimizer.profile_hook_step, torch.amp.GradScaler.step) == before
