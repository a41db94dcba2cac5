"""The recorded aten sequence and all its tensors are those that an independent mode sees."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from aten_dump import DumpConfig, DumpMode, open_dump
from tests.models import build, train_step

from .bits import calls, difference, values
from .oracle import Oracle, Seen, Step

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


def compare(seen: list[Seen], recorded: list[Any], where: str, allow_undefined: bool) -> list[str]:
    if len(seen) != len(recorded):
        return [f"{where}: {len(recorded)} values, expected {len(seen)}"]
    problems = []
    for i, (expected, value) in enumerate(zip(seen, recorded)):
        if (
            tuple(value.shape) != tuple(expected.copy.shape)
            or tuple(value.stride) != expected.stride
            or value.dtype != expected.copy.dtype
        ):
            problems.append(
                f"{where}.{i}: {value.dtype} {value.shape} {value.stride}, expected {expected.copy.dtype} {expected.copy.shape} {expected.stride}"
            )
        elif value.undefined:
            if not allow_undefined:
                problems.append(f"{where}.{i}: marked undefined")
        elif problem := difference(expected.copy, value.tensor(), stride=False):
            problems.append(f"{where}.{i}: {problem}")
        elif value.tensor().stride() != expected.stride:
            problems.append(f"{where}.{i}: tensor() has stride {value.tensor().stride()}, expected {expected.stride}")
    return problems


def compare_call(step: Step, call: Any) -> list[str]:
    # Only memory that was just allocated, and what zeroes or fills it, may be undefined before it is written.
    fresh = "empty" in step.op or step.op == "aten::resize_"  # what a resize adds is not written yet
    written = step.op.split("::")[1].split(".")[0].endswith("_")
    problems = compare(step.inputs, values(call.inputs), f"{call.name}.input", allow_undefined=written)
    problems += compare(step.outputs, values(call.outputs), f"{call.name}.output", allow_undefined=fresh)
    if set(call.mutated) != set(step.written) and "batch_norm" not in step.op:
        problems.append(f"{call.name}: mutated {call.mutated}, expected {tuple(step.written)}")
    for name, expected in step.written.items():
        if name in call.mutated:
            problems += compare(
                expected, values([call.mutated_values[name]]), f"{call.name}.mutated.{name}", allow_undefined=fresh
            )
    return problems


@pytest.mark.parametrize("place", ["inside", "outside"])
@pytest.mark.parametrize(("model", "optimizer"), PROGRAMS)
def test_every_op_and_every_tensor(tmp_path: Path, model: str, optimizer: str, place: str) -> None:
    steps, rank = observed(tmp_path / "dump", model, optimizer, place, data="tensor")
    recorded = calls(rank(), kind="aten")
    assert [call.op for call in recorded] == [step.op for step in steps]
    problems = [problem for step, call in zip(steps, recorded) for problem in compare_call(step, call)]
    assert not problems, f"{len(problems)} differences:\n" + "\n".join(problems[:20])


@pytest.mark.parametrize("level", ["aten", "api", "module", "mix"])
@pytest.mark.parametrize("data", ["statistic", "tensor"])
@pytest.mark.parametrize(("model", "optimizer"), PROGRAMS[:1] + PROGRAMS[2:4])
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
