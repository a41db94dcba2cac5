"""Modes of the user's own, inside and outside of ours, see the bare program and stay where they are."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode, resolve_name

from aten_dump import DumpConfig, DumpMode, open_dump
from tests.capture.bits import assert_same, calls
from tests.capture.oracle import Oracle
from tests.devices import here, modes_on_the_stacks
from tests.models import build, train_step


class FunctionOracle(TorchFunctionMode):
    """Notes the Python-level torch calls."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(resolve_name(func) or str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("level", ["aten", "api", "module", "mix"])
@pytest.mark.parametrize("place", ["inside", "outside"])
@pytest.mark.parametrize("data", ["structure", "full"])
def test_a_function_mode_sees_the_calls_of_the_bare_program(tmp_path: Path, place: str, level: str, data: str) -> None:
    with FunctionOracle() as bare:
        train_step(build("resnet"))
    oracle = FunctionOracle()
    with ExitStack() as stack:
        mode = DumpMode(DumpConfig(path=str(tmp_path / "dump"), level=level, data=data))
        for context in (mode, oracle) if place == "inside" else (oracle, mode):
            stack.enter_context(context)
        train_step(build("resnet"))
        seen = list(oracle.seen)
    extra = [name for name in seen if name not in bare.seen]
    assert len(seen) == len(bare.seen), (
        f"{len(seen)} calls seen, {len(bare.seen)} bare; of the recorder's own: {sorted(set(extra))}"
    )
    assert seen == bare.seen


@pytest.mark.parametrize("data", ["structure", "hash", "statistic", "full"])
@pytest.mark.parametrize("outside", [True, False])
def test_default_device(tmp_path: Path, outside: bool, data: str) -> None:
    """`with torch.device(...)` is a function mode that moves what is made: not what the recorder makes for itself."""
    path = str(tmp_path / "dump")
    mode = DumpMode(DumpConfig(path=path, data=data))
    x, made = torch.arange(6.0), []
    with ExitStack() as stack:
        for context in (torch.device("meta"), mode) if outside else (mode, torch.device("meta")):
            stack.enter_context(context)
        made += [nn.Linear(2, 3), x.exp()]
    assert made[0].weight.is_meta
    assert_same(x.exp(), made[1])
    call = calls(open_dump(path).step(0).rank(0), kind="aten", op="aten::exp")[0]
    if data == "full":
        assert_same(x, call.inputs[0][0].tensor())
        assert call.outputs.stats.count == 6
    if data in ("hash", "full"):
        assert call.inputs[0][0].hash is not None


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_default_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    path = str(tmp_path / "dump")
    torch.set_default_dtype(dtype)
    try:
        with DumpMode(DumpConfig(path=path, data="full")):
            y = torch.ones(1000).mul(3)
    finally:
        torch.set_default_dtype(torch.float32)
    assert y.dtype == dtype
    stats = calls(open_dump(path).step(0).rank(0), op="aten::mul.Tensor")[0].outputs.stats
    assert (stats.mean, stats.count) == (3, 1000)


def test_a_users_modes_stay_on_the_stack_across_steps(tmp_path: Path) -> None:
    path = str(tmp_path / "dump")
    idle = []
    with DumpMode(DumpConfig(path=path, steps="0|2")) as dump:
        with Oracle() as op_mode, FunctionOracle() as function_mode:
            for step in range(4):
                torch.ones(2).exp()
                if step in (1, 3):
                    idle.append(modes_on_the_stacks())
                dump.step()
        assert modes_on_the_stacks() == (0, 0)
    assert idle == [(1, 1), (1, 1)]
    assert op_mode.ops == ["aten::ones", "aten::exp"] * 4
    assert function_mode.seen == ["torch.ones", "torch.Tensor.exp"] * 4
    for step in (0, 2):
        assert [c.op for c in calls(open_dump(path).step(step).rank(0), kind="aten")] == ["aten::ones", "aten::exp"]


@pytest.mark.parametrize("data", ["statistic", "full"])
def test_autocast_and_deterministic_mode_do_not_reach_the_recorder(tmp_path: Path, data: str) -> None:
    """Statistics under autocast are not computed in bfloat16; deterministic mode does not refuse our kernels."""
    path = str(tmp_path / "dump")
    x = torch.full((1000,), 1.001)
    torch.use_deterministic_algorithms(True)
    try:
        with DumpMode(DumpConfig(path=path, data=data)), torch.autocast(here().type, dtype=torch.bfloat16):
            x.neg()
    finally:
        torch.use_deterministic_algorithms(False)
    stats = calls(open_dump(path).step(0).rank(0), op="aten::neg")[0].inputs[0][0].stats
    assert stats.mean == pytest.approx(x.double().mean().item(), rel=1e-6)
    assert stats.l2norm == pytest.approx(x.double().norm().item(), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_a_gradient_that_any_mode_has_computed_otherwise(tmp_path: Path, dtype: torch.dtype) -> None:
    """Of complex numbers with a zero among them `cumprod` rounds otherwise, and of others where it is no CPU that computes.

    The ops inside are recorded where it does not.
    """
    x, weights = torch.randn(2, 5, 5, 5).to(dtype) * (1 + 2j if dtype.is_complex else 1)
    x[0, 0, 1] = x[2, 3, 4] = 0

    def gradient() -> torch.Tensor:
        leaf = x.clone().requires_grad_()
        leaf.cumprod(-1).backward(weights)
        assert leaf.grad is not None
        return leaf.grad

    bare = gradient()
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"), data="structure")):
        found = gradient()
    assert_same(bare, found)
    rank = open_dump(str(tmp_path / "dump")).step(0).rank(0)
    (node,) = [call for call in rank.calls if call.op == "CumprodBackward0"]
    assert bool(node.children) == (not dtype.is_complex and x.is_cpu)
    assert ("own_formula" in [note.code for note in rank.notes]) != bool(node.children)


def test_anomaly_mode_and_profiler(tmp_path: Path) -> None:
    """The profiler sees our ops no more than any other mode does, and both work together."""
    x = torch.randn(4, requires_grad=True)
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"), data="full")), torch.profiler.profile() as profile:
        x.exp().sum().backward()
    names = [event.name for event in profile.events()]
    assert names.count("aten::exp") >= 1
    assert_same(x.detach().exp(), x.grad)  # type: ignore[arg-type]
