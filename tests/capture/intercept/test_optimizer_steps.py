"""What runs in an optimizer's step is of the phase `optimizer`; the closure it is given is the program's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from aten_dump.capture.intercept.optimizer_steps import OptimizerSteps, _outside_of_step
from tests.capture.intercept.watched import Watched


@pytest.mark.parametrize("as_keyword", [True, False])
@pytest.mark.parametrize("kind", ["SGD", "LBFGS"])
def test_ops_without_gradients_in_a_closure_are_forward(
    record: Callable[..., Any], kind: str, as_keyword: bool
) -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1)
    losses = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 3)).square().mean()
        with torch.no_grad():
            losses.append(torch.exp(loss.detach()))  # a metric
        loss.backward()
        return loss

    rank = record(lambda: optimizer.step(closure=closure) if as_keyword else optimizer.step(closure))
    phases = Counter((call.op, call.phase) for call in rank.calls if call.kind == "aten")
    assert phases["aten::exp", "forward"] == len(losses) > 0
    assert ("aten::exp", "optimizer") not in phases
    written = {call.op for call in rank.calls if call.kind == "aten" and call.phase == "optimizer"}
    assert written & {"aten::add_.Tensor", "aten::_foreach_add_.List"}, "the update itself"
    assert any(phase == "backward" for _, phase in phases)


class Watching:
    """An optimizer of one parameter, whose steps are watched."""

    def __init__(self, kind: str = "SGD") -> None:
        self.watched = Watched()
        self.steps = OptimizerSteps(self.watched.watch)
        self.weight = torch.nn.Parameter(torch.ones(2))
        self.optimizer = getattr(torch.optim, kind)([self.weight], lr=0.1)

    @property
    def depth(self) -> int:
        return self.watched.recorder.step.here.state.optimizer_depth


@pytest.fixture
def watching() -> Iterator[Watching]:
    one = Watching()
    one.steps.install()
    yield one
    one.steps.remove()
    one.watched.recorder.close()


def test_inside_a_step_the_thread_knows_it_and_its_closure_is_outside(watching: Watching) -> None:
    depths: list[int] = []

    def closure() -> torch.Tensor:
        depths.append(watching.depth)
        loss = watching.weight.square().sum()
        watching.optimizer.zero_grad()
        loss.backward()
        return loss.detach()

    hook = watching.optimizer.register_step_pre_hook(lambda *args: depths.append(watching.depth))
    watching.optimizer.step(closure)
    watching.optimizer.step(closure=closure)
    hook.remove()
    assert depths.count(0) == 2 and watching.depth == 0
    assert watching.weight.tolist() == pytest.approx([0.64, 0.64]), "and the optimizer has stepped as it would"


def test_an_error_in_a_closure_leaves_the_depth_that_was(watching: Watching) -> None:
    def closure() -> torch.Tensor:
        raise ValueError("bad batch")

    outside = _outside_of_step(closure, watching.watched.recorder.step.here.state)
    watching.watched.recorder.step.here.state.optimizer_depth = 2
    with pytest.raises(ValueError, match="bad batch"):
        outside()
    assert watching.depth == 2
    watching.watched.recorder.step.here.state.optimizer_depth = 0


def test_a_step_in_a_backward_knows_the_pass(watching: Watching) -> None:
    found: list[bool] = []
    threads = []

    def after_step(*args: Any) -> None:
        threads.append(watching.watched.recorder.step.here.state)  # an accelerator's backward has a thread of its own
        found.append(threads[0].optimizer_runs_in_backward())

    def in_backward(weight: torch.Tensor) -> None:
        watching.optimizer.step()

    watching.optimizer.register_step_post_hook(after_step)
    watching.weight.register_post_accumulate_grad_hook(in_backward)
    watching.weight.sum().backward()
    assert found == [True] and not threads[0].optimizer_runs_in_backward()


def test_nothing_is_noted_while_nothing_is_recorded_or_watched(watching: Watching) -> None:
    watching.watched.watch.turn_off()
    assert watching.steps._begins(watching.optimizer, (watching.optimizer,), {}) is None and watching.depth == 0
    watching.watched.watch.turn_on(watching.watched.recorder)
    watching.steps.remove()
    depths: list[int] = []
    watching.optimizer.register_step_pre_hook(lambda *args: depths.append(watching.depth))
    watching.optimizer.step()
    assert depths == [0]


def test_a_step_that_began_before_recording_does_not_end_below_nothing(watching: Watching) -> None:
    watching.steps._has_ended(watching.optimizer, (), {})
    assert watching.depth == 0
