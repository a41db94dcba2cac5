"""Two runs, one of them through a checkpoint that lacks something: what was not restored is said by name."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR

from aten_dump import DumpConfig, DumpMode, compare

State = dict[str, Any]
GENERATOR = torch.Generator().manual_seed(1)
BATCHES = [(torch.randn(4, 8, generator=GENERATOR), torch.randint(4, (4,), generator=GENERATOR)) for _ in range(8)]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2)
        self.last = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(self.drop(torch.relu(self.norm(self.first(x)))))
        return found


class Training:
    """A program that can be stopped and resumed."""

    def __init__(self, seed: int, optimizer: str) -> None:
        torch.manual_seed(seed)
        self.model = Net()
        parameters = self.model.parameters()
        self.optimizer: torch.optim.Optimizer = (
            torch.optim.SGD(parameters, lr=1e-2, momentum=0.9)
            if optimizer == "sgd"
            else torch.optim.AdamW(parameters, lr=1e-2, foreach=optimizer == "foreach")
        )
        self.scheduler = StepLR(self.optimizer, 2, 0.5)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
        self.position = 0

    def run(self, steps: int, dump: DumpMode | None = None) -> None:
        for _ in range(steps):
            x, labels = BATCHES[self.position]
            self.position += 1
            self.optimizer.zero_grad()
            self.scaler.scale(nn.functional.cross_entropy(self.model(x), labels)).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.scheduler.step()
            if dump is not None:
                dump.step()

    def state(self) -> State:
        parts = {name: getattr(self, name).state_dict() for name in ("model", "optimizer", "scheduler", "scaler")}
        file = io.BytesIO()
        torch.save(parts | {"random": torch.get_rng_state(), "position": self.position}, file)
        file.seek(0)
        found: State = torch.load(file)
        return found

    def load(self, state: State) -> None:
        self.model.load_state_dict(state["model"], strict=False)
        for name in ("optimizer", "scheduler", "scaler"):
            if name in state:
                getattr(self, name).load_state_dict(state[name])
        if "random" in state:
            torch.set_rng_state(state["random"])
        self.position = state.get("position", 0)


def recorded(path: Path, training: Training) -> Path:
    with DumpMode(DumpConfig(path=path, data="tensor"), model=training.model) as dump:
        training.run(1, dump)
    return path


def without(*names: str) -> Callable[[State], Any]:
    def take(state: State) -> None:
        for name in [name for name in state["model"] if any(part in name for part in names)]:
            del state["model"][name]

    return take


def zeroed(entry: str, which: int | None = None) -> Callable[[State], Any]:
    def take(state: State) -> None:
        for number, one in state["optimizer"]["state"].items():
            if which in (None, number):
                one[entry].zero_()

    return take


def without_moments(state: State) -> None:
    state["optimizer"]["state"] = {}


LACKS: dict[str, tuple[str, Callable[[State], Any], str]] = {
    "a parameter": ("adamw", without("last.weight"), "parameters (last.weight)"),
    "all parameters": ("adamw", without("weight", "bias"), "parameters (first.weight, "),
    "buffers": (
        "adamw",
        without("running", "tracked"),
        "buffers (norm.num_batches_tracked, norm.running_mean, norm.running_var)",
    ),
    "optimizer state": ("adamw", without_moments, "optimizer state that the target lacks (exp_avg of first.weight, "),
    "optimizer state of lists": ("foreach", without_moments, "lacks (exp_avg of first.weight, "),
    "momentum": ("sgd", without_moments, "optimizer state that the target lacks (momentum of first.weight, "),
    "second moments": ("adamw", zeroed("exp_avg_sq"), "optimizer state (exp_avg_sq of first.weight, "),
    "one moment": ("foreach", zeroed("exp_avg", 2), "optimizer state (exp_avg of norm.weight)"),
    "count of steps": ("adamw", zeroed("step"), "optimizer state (step)"),
    "random state": ("adamw", lambda state: state.pop("random"), "resumed: random state"),
    "position in the data": ("adamw", lambda state: state.pop("position"), "data (float32[4, 8]"),
}


@pytest.mark.parametrize("lacks", LACKS)
def test_what_was_not_restored(tmp_path: Path, lacks: str) -> None:
    optimizer, take, name = LACKS[lacks]
    going = Training(0, optimizer)
    going.run(3)
    state = going.state()
    take(state)
    baseline = recorded(tmp_path / "going", going)
    resumed = Training(99, optimizer)
    resumed.load(state)
    found = compare(recorded(tmp_path / "resumed", resumed), baseline)
    assert found.verdict == "different"
    (note,) = [note for note in found.all_notes if "the step does not begin as" in note]
    assert name in note


def test_a_schedule_and_a_scale_that_were_not_restored_are_noted(tmp_path: Path) -> None:
    going = Training(0, "adamw")
    going.run(3)
    state = going.state()
    baseline = recorded(tmp_path / "going", going)
    del state["scheduler"], state["scaler"]
    for group in state["optimizer"]["param_groups"]:
        group["lr"] = 1e-2
    resumed = Training(99, "adamw")
    resumed.load(state)
    notes = "\n".join(compare(recorded(tmp_path / "resumed", resumed), baseline).all_notes)
    assert "AdamW group 0: lr 0.01, in the baseline 0.005" in notes
    assert "the loss is scaled by 1024 in the target, by 2048 in the baseline" in notes


def test_a_whole_checkpoint_goes_on_as_the_run_did(tmp_path: Path) -> None:
    going = Training(0, "adamw")
    going.run(3)
    state = copy.deepcopy(going.state())
    baseline = recorded(tmp_path / "going", going)
    resumed = Training(99, "adamw")
    resumed.load(state)
    found = compare(recorded(tmp_path / "resumed", resumed), baseline)
    assert found.exit_code == 0
    assert not [note for note in found.all_notes if "does not begin" in note]
