"""`repeat_step`: the same state for each run, bit by bit, and a program that is as if the step had run once."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import _global_optimizer_pre_hooks

from aten_dump import ConfigError, DumpConfig, DumpMode, compare
from aten_dump.capture.step_state import StepState
from tests.models import seed_all

LIBRARY = "aten_dump_step_state"
OPTIMIZERS: dict[str, Any] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01), foreach=False),
    "fused": lambda p: torch.optim.AdamW(p, fused=True),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
}


class Program:
    def __init__(self, optimizer: str, steps_before: int) -> None:
        seed_all(3)
        self.model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.runs = 0
        for _ in range(steps_before):
            self.step()

    def step(self) -> None:
        self.runs += 1
        x = torch.randn(5, 6) * (1 + random.random() + numpy.random.rand())
        self.model(x).square().mean().backward()  # onto the gradient of the step before
        self.optimizer.step()
        for group in self.optimizer.param_groups:
            group["weight_decay"] = group["weight_decay"] + 0.125

    def state(self) -> list[Any]:
        tensors: list[Tensor] = [*self.model.parameters(), *self.model.buffers()]
        tensors += [p.grad for p in self.model.parameters() if p.grad is not None]
        entries = self.optimizer.state_dict()
        tensors += [t for entry in entries["state"].values() for t in entry.values() if isinstance(t, Tensor)]
        numbers = [group["weight_decay"] for group in entries["param_groups"]]
        return [
            *(t.detach().clone() for t in (*tensors, torch.get_rng_state())),
            *numbers,
            random.random(),
            numpy.random.rand(),
        ]


def same(one: list[Any], other: list[Any]) -> bool:
    pairs = zip(one, other, strict=True)
    return all(torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in pairs)


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_program_is_as_if_the_step_had_run_once(optimizer: str, before: int, tmp_path: Path) -> None:
    bare = Program(optimizer, before)
    bare.step()
    expected = bare.state()
    repeated = Program(optimizer, before)
    with DumpMode(DumpConfig(path=str(tmp_path / "d"), data="hash"), model=repeated.model) as dump:
        assert dump.repeat_step(repeated.step, 3) == [0, 1, 2]
    assert repeated.runs == before + 3
    assert same(expected, repeated.state())
    for pair in ("1:0", "2:0"):
        assert compare(tmp_path / "d", tmp_path / "d", step=pair).verdict == "same"


@pytest.fixture
def unsteady() -> Iterator[Any]:
    """An op that gives other bits in its second call."""
    library = torch.library.Library(LIBRARY, "DEF")
    library.define("noisy(Tensor x) -> Tensor")
    calls = iter(range(100))
    library.impl("noisy", lambda x: x + 0.5 if next(calls) else x + 0.25, "CPU")
    yield getattr(torch.ops, LIBRARY).noisy
    library._destroy()


def test_the_first_op_that_gives_other_bits_is_named(unsteady: Any, tmp_path: Path) -> None:
    model = nn.Linear(4, 4)

    def step() -> None:
        with torch.no_grad():
            unsteady(model(torch.ones(2, 4)).relu()).exp().sum()

    with DumpMode(DumpConfig(path=str(tmp_path / "d"), data="hash"), model=model) as dump:
        dump.repeat_step(step)
    found = compare(tmp_path / "d", tmp_path / "d", step="1:0")
    assert found.verdict == "different" and found.cause is not None
    assert f"{LIBRARY}::noisy" in found.answer().splitlines()[0] + str(found.cause)


def test_what_else_the_step_changes_is_put_back_by_the_program(tmp_path: Path) -> None:
    batches = [torch.randn(3, 4), torch.randn(3, 4)]
    at = [0]
    model = nn.Linear(4, 1)

    def step() -> None:
        model(batches[at[0]]).sum().backward()
        at[0] += 1

    with DumpMode(DumpConfig(path=str(tmp_path / "d"), data="hash"), model=model) as dump:
        dump.repeat_step(step, restore=lambda: at.__setitem__(0, 0))
    assert compare(tmp_path / "d", tmp_path / "d", step="1:0").verdict == "same"


def test_times_below_two_are_an_error(tmp_path: Path) -> None:
    with DumpMode(DumpConfig(path=str(tmp_path / "d"))) as dump, pytest.raises(ConfigError, match="from 2 on"):
        dump.repeat_step(lambda: None, 1)


def test_an_error_of_the_step_is_its_own(tmp_path: Path) -> None:
    def step() -> None:
        raise KeyError("the program's own")

    with DumpMode(DumpConfig(path=str(tmp_path / "d"))) as dump, pytest.raises(KeyError, match="the program's own"):
        dump.repeat_step(step)
    assert not _global_optimizer_pre_hooks


def test_keeping_and_putting_back_is_seen_by_no_mode() -> None:
    class Counting(torch.utils._python_dispatch.TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen += 1
            return func(*args, **(kwargs or {}))

    model = nn.BatchNorm1d(4)
    with Counting() as counting:
        StepState([model]).put_back()
    assert counting.seen == 0
