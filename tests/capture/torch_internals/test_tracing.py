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

from aten_dump.capture.torch_internals.tracing import (
    OWN_DISPATCH,
    PLAIN,
    TRACED,
    is_compiling,
    is_traced,
    kind_of_types,
    takes_stand_ins,
)
from tests.capture.autograd.links import assert_linked
from tests.capture.bits import assert_same, calls, only
from tests.capture.same_outcome import batch, note, ops, recorded, trained
from tests.devices import here
from tests.torch_features import needs_debug_mode, needs_saved_hooks_shown

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
    model.to_empty(device=here())
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


@needs_saved_hooks_shown
def test_what_a_hook_of_a_native_call_traces_is_left_out(tmp_path: Path) -> None:
    def pack(x: Tensor) -> Tensor:
        with FakeTensorMode():
            torch.ones(3)
        return x

    def step() -> Tensor:
        x = batch().requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            return torch.exp(x)

    rank = recorded(tmp_path, step)
    assert "aten::exp" in ops(rank.calls) and "aten::ones" not in ops(rank.calls)


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


@needs_debug_mode
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
    before = here()

    def program() -> Any:
        torch.set_default_device("meta")
        try:
            made = nn.Linear(2, 3)
        finally:
            torch.set_default_device(None)
            # Else torch.get_default_device, which transformers calls, raises with an older torch.
            vars(torch._GLOBAL_DEVICE_CONTEXT).pop("device_context", None)
            if before.type != "cpu":  # that of --device
                torch.set_default_device(before)
        return made.weight.is_meta, batch().exp()

    rank = recorded(tmp_path, program)
    assert_same(batch().exp(), only(calls(rank, op="aten::exp")).outputs.tensor())


class Plain(Tensor):
    pass


class Own(Tensor):
    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError


def test_kinds_of_tensors_are_told_by_who_handles_their_ops() -> None:
    from torch._subclasses.fake_tensor import FakeTensor
    from torch._subclasses.functional_tensor import FunctionalTensor

    assert kind_of_types(()) == kind_of_types((Tensor, nn.Parameter, Plain)) == PLAIN
    assert kind_of_types((Plain, Own)) == OWN_DISPATCH
    for stand_in in (FakeTensor, FunctionalTensor):
        assert kind_of_types((stand_in, Own)) == kind_of_types((Own, stand_in)) == TRACED


def test_arguments_that_stand_for_tensors_are_known_at_the_top_level() -> None:
    with FakeTensorMode():
        fake = torch.ones(2)
    assert takes_stand_ins((1, fake))
    assert not takes_stand_ins((torch.ones(2), nn.Parameter(torch.ones(1)), None, "x", [1], 2.0))
    assert not takes_stand_ins((object(), Plain(torch.ones(1))))


def test_whether_something_traces_is_asked_of_torch() -> None:
    found: dict[str, bool] = {"plain": is_traced()}

    def ask(name: str) -> Callable[[Tensor], Tensor]:
        def body(x: Tensor) -> Tensor:
            found[name] = is_traced()
            return x + 1

        return body

    torch.jit.trace(ask("jit"), torch.ones(1), check_trace=False)
    make_fx(ask("fx"))(torch.ones(1))
    with FakeTensorMode():
        ask("fake")(torch.ones(1))
    with FlopCounterMode(display=False):
        ask("flops")(torch.ones(1))
    assert found == {"plain": False, "jit": True, "fx": True, "fake": True, "flops": False}


def test_whether_a_compiler_is_at_work_is_asked_of_torch() -> None:
    found: list[bool] = []

    def backend(graph: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        found.append(is_compiling())
        return graph.forward

    torch._dynamo.reset()
    torch.compile(lambda x: x + 1, backend=backend)(torch.ones(1))
    assert found == [True] and not is_compiling()
