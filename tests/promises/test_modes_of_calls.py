"""Each call says whether grad mode was on and whether its module was in training, however that changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from aten_dump import DumpConfig, DumpMode, open_dump


class Net(nn.Module):
    """A network with a frozen part, and one that runs without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.frozen, self.last = nn.Linear(3, 3), nn.BatchNorm1d(3).eval(), nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.frozen(self.first(x))
        with torch.no_grad():
            scale = y.exp()
        return self.last(y * scale)


class Square(torch.autograd.Function):
    """Its forward runs without gradients, which C++ switches off."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return 2 * ctx.saved_tensors[0] * grads[0]


def recorded(path: Path, program: Callable[[], object], **config: Any) -> dict[str, tuple[bool | None, bool | None]]:
    """Return what the dump says of each call, by name."""
    with DumpMode(DumpConfig(path=str(path), **config)):
        program()
    return {call.name: (call.grad_enabled, call.training) for call in open_dump(path).step(0).rank(0).calls}


@pytest.mark.parametrize("level", ["mix", "aten"])
def test_ops_of_modules_in_training_evaluation_and_neither(tmp_path: Path, level: str) -> None:
    net, x = Net(), torch.ones(4, 3)

    def program() -> None:
        net(x).sum().backward()
        net.eval()
        with torch.inference_mode():
            net(x)
        x.neg()

    found = recorded(tmp_path, program, level=level)
    assert found["Aten.addmm.0.forward"] == (True, True)
    assert found["Aten.native_batch_norm.0.forward"] == (True, False), "a part in evaluation"
    assert found["Aten.exp.0.forward"] == (False, True), "after it, the module around it again"
    assert found["Aten.addmm.1.forward"] == (True, True)
    assert found["Aten.sum.0.forward"] == (True, None), "outside of modules"
    assert found["Aten.native_batch_norm_backward.0.backward"] == (False, False)
    assert found["Aten.mm.0.backward"] == (False, True)
    assert found["Aten.exp.1.forward"] == (False, False)
    assert found["Aten.neg.0.forward"] == (True, None)


def test_grad_mode_that_cpp_switches_and_that_of_double_backward(tmp_path: Path) -> None:
    def program() -> None:
        x = torch.ones(3, requires_grad=True)
        (grad,) = torch.autograd.grad(Square.apply(x).sum(), x, create_graph=True)
        grad.exp()

    found = recorded(tmp_path, program)
    assert found["Aten.pow.0.forward"] == (False, None)
    assert found["Aten.mul.0.backward"] == (True, None), "create_graph"
    assert found["Aten.exp.0.forward"] == (True, None)


def test_a_module_that_raises_leaves_nothing(tmp_path: Path) -> None:
    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("as it does")

    def program() -> None:
        with pytest.raises(ValueError, match="as it does"):
            Fails()(torch.ones(2))
        torch.ones(2).exp()

    assert recorded(tmp_path, program)["Aten.exp.0.forward"] == (True, None)


def test_with_a_trigger_too(tmp_path: Path) -> None:
    net = nn.Linear(2, 2).eval()

    def program() -> None:
        with torch.no_grad():
            net(torch.ones(1, 2)) / torch.zeros(1)

    found = recorded(tmp_path, program, trigger="nonfinite", level="aten")
    assert found["Aten.addmm.0.forward"] == (False, False)
    assert found["Aten.div.0.forward"] == (False, None)


def test_calls_can_be_filtered_by_mode(tmp_path: Path) -> None:
    net, x = nn.Linear(2, 2), torch.ones(1, 2)

    def program() -> None:
        net(x)
        with torch.no_grad():
            net.eval()(x)

    recorded(tmp_path, program, level="aten")
    calls = open_dump(tmp_path).step(0).rank(0).calls
    assert [call.name for call in calls.in_mode("training").filter(op="aten::addmm")] == ["Aten.addmm.0.forward"]
    assert [call.name for call in calls.in_mode("evaluation").filter(op="aten::addmm")] == ["Aten.addmm.1.forward"]
    assert [call.name for call in calls.in_mode("no_grad").filter(op="aten::addmm")] == ["Aten.addmm.1.forward"]
