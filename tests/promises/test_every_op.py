"""The recorded aten sequence and all its tensors are those that an independent mode sees."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from aten_dump import DumpConfig, DumpMode, open_dump
from tests.capture.bits import calls
from tests.capture.compared_with_oracle import compare_call
from tests.capture.oracle import Oracle, Step
from tests.models import build, train_step
from tests.sampling import diagonal

PROGRAMS = [
    ("gpt2", "adamw_foreach"), ("llama", "adamw_fused"), ("bert", "sgd_momentum"),
    ("resnet", "sgd_momentum"), ("resnet_channels_last", "adamw_foreach"),
]  # fmt: skip
MICRO_BATCHES = 2


def observed(path: Path, model: str, optimizer: str, place: str, **config: str) -> tuple[list[Step], Any]:
    """Train two steps under both modes; the oracle sees the second one (`place` is where it stands)."""
    program = build(model, optimizer)
    oracle = Oracle()
    with ExitStack() as outer:
        cfg = DumpConfig(path=str(path), **config)
        if place == "outside":
            train_step(program, MICRO_BATCHES)
            outer.enter_context(oracle)
            dump = outer.enter_context(DumpMode(cfg, model=program.model))
            train_step(program, MICRO_BATCHES)
            dump.step()
            return oracle.steps, lambda: open_dump(str(path)).step(0).rank(0)
        dump = outer.enter_context(DumpMode(cfg, model=program.model))
        train_step(program, MICRO_BATCHES)
        dump.step()
        with oracle:
            train_step(program, MICRO_BATCHES)
        dump.step()
    return oracle.steps, lambda: open_dump(str(path)).step(1).rank(0)


@pytest.mark.parametrize(("model", "optimizer", "place"), diagonal(PROGRAMS, ["inside", "outside"]))
def test_every_op_and_every_tensor(tmp_path: Path, model: str, optimizer: str, place: str) -> None:
    steps, rank = observed(tmp_path / "dump", model, optimizer, place, data="tensor")
    recorded = calls(rank(), kind="aten")
    assert [call.op for call in recorded] == [step.op for step in steps]
    problems = [problem for step, call in zip(steps, recorded, strict=True) for problem in compare_call(step, call)]
    assert not problems, f"{len(problems)} differences:\n" + "\n".join(problems[:20])


@pytest.mark.parametrize(
    ("model", "optimizer", "data", "level"),
    diagonal([PROGRAMS[0], PROGRAMS[3]], ["statistic", "tensor"], ["aten", "api", "module", "mix"]),
)
def test_other_modes_see_the_ops_of_the_bare_program(
    tmp_path: Path, model: str, optimizer: str, level: str, data: str
) -> None:
    """Our hooks add no op, remove none and change none (add_ to add, a detach, a clone)."""
    program = build(model, optimizer)
    train_step(program, MICRO_BATCHES)
    with Oracle() as bare:
        train_step(program, MICRO_BATCHES)
    for place in ("inside", "outside"):
        steps, _ = observed(tmp_path / place, model, optimizer, place, level=level, data=data)
        assert [step.op for step in steps] == bare.ops, f"oracle {place} of DumpMode"


@pytest.mark.parametrize("level", ["aten", "mix"])
def test_recorded_ops_are_those_of_the_bare_program(tmp_path: Path, level: str) -> None:
    """No second mode is near: the recorded sequence is that of a bare run under the oracle alone."""
    program = build("llama", "adamw_foreach")
    with Oracle() as bare:
        train_step(program, MICRO_BATCHES)
    program = build("llama", "adamw_foreach")
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"), level=level), model=program.model) as dump:
        train_step(program, MICRO_BATCHES)
        dump.step()
    rank = open_dump(str(tmp_path / "dump")).step(0).rank(0)
    assert [call.op for call in calls(rank, kind="aten")] == bare.ops


def test_a_flop_counter_outside_counts_the_same(tmp_path: Path) -> None:
    with FlopCounterMode(display=False) as bare:
        train_step(build("gpt2"))
    with FlopCounterMode(display=False) as counter:
        program = build("gpt2")
        with DumpMode(DumpConfig(path=str(tmp_path / "dump"), data="full"), model=program.model) as dump:
            train_step(program)
            dump.step()
    assert counter.get_total_flops() == bare.get_total_flops() > 0


def test_the_oracle_itself_is_true() -> None:
    """The oracle keeps inputs from before an in-place op and written arguments from after it."""
    x = torch.ones(3)
    with Oracle() as oracle:
        x.add_(1)
    step = oracle.steps[0]
    assert step.op == "aten::add_.Tensor"
    assert step.inputs[0].copy.tolist() == [1, 1, 1]
    assert step.written["self"][0].copy.tolist() == step.outputs[0].copy.tolist() == [2, 2, 2]
