"""torch.func, forward-mode AD, no_grad and inference_mode run unchanged and are recorded as far as they dispatch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, func, nn
from torch.autograd import forward_ad

from tests.capture.autograd.links import assert_linked
from tests.capture.bits import assert_same, calls, only
from tests.capture.same_outcome import note, ops, recorded
from tests.devices import drawn, op_here


def _inputs() -> tuple[Tensor, Tensor]:
    return drawn(3, 4, seed=1), drawn(5, 4, seed=2)


def _loss(weight: Tensor, x: Tensor) -> Tensor:
    return (x @ weight.T).tanh().sum()


def _vmap() -> Any:
    weight, x = _inputs()
    return func.vmap(lambda one: (weight @ one).tanh())(x)


def _per_sample() -> Any:
    _, x = _inputs()
    model = nn.Linear(4, 3)
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(parameters: dict[str, Tensor], one: Tensor) -> Tensor:
        return func.functional_call(model, parameters, (one,)).pow(2).sum()

    return func.vmap(func.grad(loss), in_dims=(None, 0))(parameters, x)


def _dual() -> Any:
    _, x = _inputs()
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(forward_ad.make_dual(x, torch.ones_like(x)).tanh())


def _vmap_in_autograd() -> Any:
    weight, x = _inputs()
    weight.requires_grad_()
    func.vmap(lambda one: (weight @ one).tanh())(x).sum().backward()
    return weight.grad


_PROGRAMS: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "grad": (lambda: func.grad(_loss)(*_inputs()), ["aten::tanh", "aten::tanh_backward"]),
    "vmap": (_vmap, ["aten::mm", "aten::tanh"]),
    "vmap random": (
        lambda: func.vmap(lambda x: x + torch.randn(4), randomness="different")(_inputs()[1]),
        ["aten::add.Tensor"],
    ),
    "jvp": (lambda: func.jvp(torch.tanh, (_inputs()[1],), (torch.ones(5, 4),)), ["aten::tanh"]),
    "vjp": (lambda: func.vjp(torch.tanh, _inputs()[1])[1](torch.ones(5, 4)), ["aten::tanh_backward"]),
    "jacrev": (lambda: func.jacrev(torch.tanh)(_inputs()[1][0]), ["aten::tanh_backward"]),
    "jacfwd": (lambda: func.jacfwd(torch.tanh)(_inputs()[1][0]), ["aten::tanh"]),
    "hessian": (lambda: func.hessian(lambda x: x.tanh().sum())(_inputs()[1][0]), ["aten::tanh_backward"]),
    "linearize": (lambda: func.linearize(torch.tanh, _inputs()[1])[1](torch.ones(5, 4)), ["aten::tanh"]),
    "functionalize": (
        lambda: func.functionalize(lambda x: x.clone().add_(1).view(-1))(_inputs()[1]),
        ["aten::add.Tensor"],
    ),
    "gradients per sample": (_per_sample, ["aten::mm", "aten::bmm"]),
    "dual numbers": (_dual, ["aten::tanh"]),
    "vmap in autograd": (_vmap_in_autograd, ["aten::mm", "aten::tanh_backward"]),
}


@pytest.mark.parametrize("data", ["structure", "full"])
@pytest.mark.parametrize("name", list(_PROGRAMS))
def test_a_transform_is_unchanged_and_its_ops_are_recorded(tmp_path: Path, name: str, data: str) -> None:
    program, expected = _PROGRAMS[name]
    rank = recorded(tmp_path, program, data=data)
    seen = set(ops(calls(rank, kind="aten")))
    assert {op_here(op) for op in expected} <= seen, sorted(seen)


def test_what_the_ops_of_vmap_computed_is_recorded(tmp_path: Path) -> None:
    """At dispatch the batch is a plain tensor, whose elements are kept; the wrapper at API level is named as one."""
    weight, x = _inputs()
    rank = recorded(tmp_path, _vmap)
    op = only(calls(rank, op="aten::tanh"))
    assert_same((weight @ x.T).tanh(), op.outputs.tensor())
    assert op.parent.op == "torch.Tensor.tanh"
    assert note(rank, "wrapped_tensors").count >= 2
    assert not rank.missing


def test_backward_of_a_transform_belongs_to_its_forward(tmp_path: Path) -> None:
    rank = recorded(tmp_path, _vmap_in_autograd)
    assert_linked(rank)
    op = only(calls(rank, op="aten::tanh_backward"))
    assert op.forward.op == "aten::tanh"


@pytest.mark.parametrize("context", [torch.inference_mode, torch.no_grad, torch.set_grad_enabled])
def test_no_grad_and_inference_mode(tmp_path: Path, context: Any) -> None:
    _, x = _inputs()

    def program() -> Any:
        model = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3))
        with context(False) if context is torch.set_grad_enabled else context():
            y = model(x).relu_()
        return y.is_inference(), y.requires_grad, y.clone()

    rank = recorded(tmp_path, program)
    written = only(calls(rank, op="aten::relu_"))
    assert written.mutated == ("self",)
    assert not [call for call in rank.calls if call.sequence_nr is not None]


NORMS: dict[str, Callable[[], nn.Module]] = {
    "batch": lambda: nn.BatchNorm1d(3),
    "instance": lambda: nn.InstanceNorm1d(3, track_running_stats=True),
}


@pytest.mark.parametrize("kind", NORMS)
def test_running_statistics_are_seen_written_in_inference_mode(tmp_path: Path, kind: str) -> None:
    """There the mode is handed the composite op, whose schema does not say what it writes."""
    x = drawn(2, 3, 7, seed=1)

    def program() -> Any:
        norm = NORMS[kind]()
        with torch.inference_mode():
            norm(x)
            return norm.get_buffer("running_mean") * 2, norm.get_buffer("running_var") * 2

    rank = recorded(tmp_path, program)
    written = only(calls(rank, op=f"aten::{kind}_norm"))
    assert written.mutated == ("running_mean", "running_var")
    mean, var = calls(rank, op="aten::mul.Tensor")[-2:]
    torch.testing.assert_close(mean.inputs[0][0].tensor(), x.cpu().mean((0, 2)) * 0.1)
    assert var.inputs[0][0].tensor().tolist() != [1, 1, 1]
    assert written.mutated_values["running_mean"].id == mean.inputs[0][0].id
