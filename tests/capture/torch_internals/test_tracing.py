"""Fake and meta tensors, TorchScript, fx and export inside the block: not harmed, and what is only traced is left out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

from tests.capture.autograd.links import assert_linked
from tests.capture.bits import assert_same, calls, only
from tests.capture.same_outcome import batch, note, ops, recorded, trained

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x))


def _meta() -> Any:
    with torch.device("meta"):
        model = Model()
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.5)
    return model(batch())


def test_initialisation_on_the_meta_device(tmp_path: Path) -> None:
    rank = recorded(tmp_path, _meta)
    weight = only(calls(rank, op="aten::t")).inputs[0][0]
    assert_same(torch.full((3, 4), 0.5), weight.tensor())
    drawn = [c for c in rank.calls if c.op == "aten::uniform_"]
    assert drawn and all(str(c.inputs[0][0].device) == "meta" for c in drawn)
    assert not rank.missing


def _fake() -> Any:
    with FakeTensorMode() as mode:
        y = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3))(torch.randn(2, 4)).softmax(-1)
    z = mode.from_tensor(batch()).exp()
    return type(y).__name__, y.shape, type(z).__name__, Model()(batch())


def test_fake_tensors_are_not_recorded(tmp_path: Path) -> None:
    rank = recorded(tmp_path, _fake)
    assert ops(calls(rank, kind="module")) == [f"{Model.__module__}.Model", "torch.nn.modules.linear.Linear"]
    assert not [c.op for c in rank.calls if "softmax" in c.op or "layer_norm" in c.op or c.op.startswith("prim::")]
    assert note(rank, "traced").count > 5


_TRACERS: dict[str, Callable[[], Any]] = {
    "torch.jit.trace": lambda: (lambda f: (f.code, f(batch())))(torch.jit.trace(Model(), batch())),
    "torch.jit.script": lambda: (lambda f: (f.code, f(batch())))(torch.jit.script(Model())),
    "symbolic_trace": lambda: (lambda f: (f.code, f(batch())))(fx.symbolic_trace(Model())),
    "make_fx real": lambda: make_fx(lambda x: x.sin() + 1)(batch()).code,
    "make_fx fake": lambda: make_fx(lambda x: x.sin() + 1, tracing_mode="fake")(batch()).code,
    "make_fx symbolic": lambda: make_fx(lambda x: x.sin() + x.shape[0], tracing_mode="symbolic")(batch()).code,
    "export": lambda: (lambda p: (str(p.graph), p.module()(batch())))(torch.export.export(Model(), (batch(),))),
    "export strict": lambda: (lambda p: (str(p.graph), p.module()(batch())))(
        torch.export.export(Model(), (batch(),), strict=True)
    ),
    "export dynamic": lambda: str(
        torch.export.export(Model(), (batch(),), dynamic_shapes={"x": {0: torch.export.Dim("n")}}).graph
    ),
}


@pytest.mark.parametrize("name", list(_TRACERS))
@pytest.mark.parametrize("data", ["structure", "full"])
def test_tracing_inside_the_block(tmp_path: Path, name: str, data: str) -> None:
    rank = recorded(tmp_path, _TRACERS[name], data=data)
    assert not [n for n in rank.notes if n.code in ("unwritable_record", "failed")]
    if name in ("torch.jit.trace", "make_fx symbolic", "export strict"):
        assert note(rank, "traced").count
    if name in ("torch.jit.trace", "export", "symbolic_trace"):  # what runs after it is recorded
        assert "aten::relu" in ops(rank.calls)


@pytest.mark.parametrize("kind", ["script", "trace"])
def test_ops_of_torchscript_are_recorded_and_linked(tmp_path: Path, kind: str) -> None:
    model = Model()
    scripted = torch.jit.script(model) if kind == "script" else torch.jit.trace(model, batch())
    program = trained(model, scripted)
    for _ in range(3):  # its executor profiles two runs and then optimizes
        program()
    rank = recorded(tmp_path, program)
    forward = calls(rank, kind="aten", phase="forward")
    assert_same(program()[0], next(c for c in forward if c.op == "aten::relu").outputs.tensor())
    assert_linked(rank)
    assert calls(rank, kind="module")[0].outputs.shape == (5, 3)


@torch.jit.script
def _loop(x: Tensor, n: int) -> Tensor:
    for _ in range(n):
        x = x.sin() * 2
    return x


def test_a_scripted_function(tmp_path: Path) -> None:
    rank = recorded(tmp_path, lambda: _loop(batch(), 3))
    assert ops(calls(rank, op="aten::sin")) == ["aten::sin"] * 3


def test_modes_of_torchs_own_see_what_they_see_without_us(tmp_path: Path) -> None:
    from torch.utils._debug_mode import DebugMode

    model, x = Model(), batch()

    def program() -> Any:
        with FlopCounterMode(display=False) as flops:
            model(x).sum().backward()
        model.zero_grad()
        with DebugMode() as debug:
            model(x)
        return str(flops.get_flop_counts()), debug.debug_string()

    recorded(tmp_path, program)


def test_set_default_device(tmp_path: Path) -> None:
    def program() -> Any:
        torch.set_default_device("meta")
        try:
            made = nn.Linear(2, 3)
        finally:
            torch.set_default_device(None)
        return made.weight.is_meta, batch().exp()

    rank = recorded(tmp_path, program)
    assert_same(batch().exp(), only(calls(rank, op="aten::exp")).outputs.tensor())
