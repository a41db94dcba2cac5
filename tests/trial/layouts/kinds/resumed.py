"""Steps learned in one run, against the same steps behind a checkpoint."""

from __future__ import annotations

import copy
import io

import torch
from torch import nn

from ..tasks import Run, Task


class Loop:
    """A loop with all that a checkpoint has to hold."""

    def __init__(self, task: Task) -> None:
        self.task, self.model = task, task.model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda n: 1 / (1 + n))
        self.noise, self.at = torch.Generator().manual_seed(5), 0
        self.average = copy.deepcopy(self.model)

    def step(self, on: Run) -> None:
        batch = self.task.equal[self.at % 2]
        if self.at > 1:
            batch = batch.rows(torch.tensor([1, 3, 0, 2]))
        output = self.model(**batch.inputs)  # at position in the data
        kept = torch.rand(output.shape, generator=self.noise) > 0.1
        output = output * kept / 0.9  # at RNG of the dropout
        loss = self.task.loss(output, batch.labels) / batch.counted
        loss.backward()
        on.keep(loss)
        on.keep_gradients(self.model)
        self.optimizer.step()  # at optimizer's state, step of the optimizer, schedule, a parameter's moments
        self.optimizer.zero_grad()
        self.schedule.step()
        with torch.no_grad():
            for p, q in zip(self.average.parameters(), self.model.parameters(), strict=True):
                p.lerp_(q, 0.1)  # at average of the weights
        self.at += 1


def straight(on: Run, task: Task) -> None:
    loop = Loop(task)
    for _ in range(2):
        loop.step(Run())
    record(on, loop)


def record(on: Run, loop: Loop) -> None:
    with on.steps(loop.model) as end_step:
        for _ in range(2):
            loop.step(on)
            end_step()
    on.keep_weights(loop.model)
    on.keep_weights(loop.average)


def resumed(on: Run, task: Task) -> None:
    loop, fresh = Loop(task), copy.deepcopy(task)
    for _ in range(2):
        loop.step(Run())
    file = io.BytesIO()
    torch.save(
        {
            "model": loop.model.state_dict(),
            "optimizer": loop.optimizer.state_dict(),
            "schedule": loop.schedule.state_dict(),
            "average": loop.average.state_dict(),
            "noise": loop.noise.get_state(),
            "at": loop.at,
        },
        file,
    )
    file.seek(0)
    record(on, restored(on, Loop(fresh), torch.load(file)))


def restored(on: Run, loop: Loop, saved: dict[str, object]) -> Loop:
    weights = dict(saved["model"])
    named = [name for name, one in loop.model.named_modules() if type(one) in (nn.Linear, nn.Embedding)]
    if on.bug("one weight not loaded"):
        weights.pop(f"{named[-1]}.weight")
        on.guilty.add(named[-1])
    if on.bug("a weight of the step before"):
        weights[f"{named[0]}.weight"] = loop.model.get_submodule(named[0]).weight.detach().clone()
        on.guilty.add(named[0])
    loop.model.load_state_dict(weights, strict=False)
    state = copy.deepcopy(saved["optimizer"])
    assert isinstance(state, dict)
    if on.bug("step of the optimizer"):
        for one in state["state"].values():
            one["step"].zero_()
    if on.bug("a parameter's moments"):
        last = max(state["state"])
        state["state"][last]["exp_avg"].zero_()
    if not on.bug("optimizer's state"):
        loop.optimizer.load_state_dict(state)
    if not on.bug("schedule"):
        loop.schedule.load_state_dict(saved["schedule"])
    else:
        loop.optimizer.param_groups[0]["lr"] = 1e-2
    if not on.bug("average of the weights"):
        loop.average.load_state_dict(saved["average"])
    if not on.bug("RNG of the dropout"):
        loop.noise.set_state(saved["noise"])
    loop.at = int(saved["at"]) - int(on.bug("position in the data"))
    return loop


KINDS = {"resumed": (resumed, straight, "")}
