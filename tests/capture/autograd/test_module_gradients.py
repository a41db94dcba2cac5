"""Module calls, their backward, and the gradients of parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.capture.bits import assert_same, calls, values
from tests.models import Program, build, seed_all, train_step

Record = Callable[..., Any]


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.act = nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.act(self.up(self.norm(x))))


def _net() -> tuple[nn.Module, Tensor]:
    seed_all(1)
    net = nn.Sequential(nn.Embedding(9, 8), Residual(8), Residual(8), nn.Dropout(0.25), nn.Linear(8, 3))
    return net, torch.randint(0, 9, (2, 5))


def _gradients_by_hooks(net: nn.Module, run: Callable[[], object]) -> dict[str, tuple[list[Any], list[Any]]]:
    """(gradients of the outputs, gradients of the inputs) per module, by torch's own full backward hooks."""
    found: dict[str, tuple[list[Any], list[Any]]] = {}

    def keep(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, grad_input: Any, grad_output: Any) -> None:
            found[name] = (
                [g if g is None else g.clone() for g in grad_output],
                [g if g is None else g.clone() for g in grad_input],
            )

        return hook

    handles = [m.register_full_backward_hook(keep(n)) for n, m in net.named_modules()]
    run()
    for handle in handles:
        handle.remove()
    return found


@pytest.mark.parametrize("level", ["module", "mix"])
def test_module_backward_equals_full_backward_hooks(record: Record, level: str) -> None:
    net, tokens = _net()
    seed_all(5)
    expected = _gradients_by_hooks(net, lambda: net(tokens).sigmoid().sum().backward())
    net, tokens = _net()
    seed_all(5)
    rank = record(lambda: net(tokens).sigmoid().sum().backward(), net, level=level, data="tensor")
    compared = 0
    for name, (grad_outputs, grad_inputs) in expected.items():
        stem = f"Module.{name or type(net).__name__}.0"
        backward = rank[f"{stem}.backward"]
        assert backward.forward.name == f"{stem}.forward"
        assert_same(grad_outputs[0], rank.tensor(f"{stem}.backward.input.0"), f"{stem}: gradient of the output")
        if grad_inputs[0] is not None:
            assert_same(grad_inputs[0], rank.tensor(f"{stem}.backward.output.0"), f"{stem}: gradient of the input")
            compared += 1
        else:
            assert not values(backward.outputs)
    assert compared == len(expected) - 2  # the root and the embedding take tokens


@pytest.mark.parametrize("model", ["gpt2", "llama", "bert", "resnet"])
@pytest.mark.parametrize("level", ["aten", "module", "mix"])
def test_parameter_gradients(record: Record, model: str, level: str) -> None:
    program = build(model)
    kept: dict[str, Tensor] = {}
    program.optimizer.register_step_pre_hook(
        lambda *_: kept.update({n: p.grad.clone() for n, p in program.model.named_parameters() if p.grad is not None})
    )
    rank = record(lambda: train_step(program, 2), program.model, level=level, data="tensor")
    assert set(rank.gradients) == set(kept) and len(kept) > 10
    for name, gradient in kept.items():
        assert_same(gradient, rank.gradients[name].tensor(), name)


def test_module_tree_and_names(record: Record) -> None:
    program = build("gpt2")
    rank = record(lambda: train_step(program), program.model, data="structure")
    root = rank["Module.GPT2LMHeadModel.0.forward"]
    assert (root.module, root.kind, root.phase, root.parent) == ("", "module", "forward", None)
    attention = rank["Module.transformer.h.0.attn.0.forward"]
    assert attention.module == "transformer.h.0.attn"
    path = []
    call = attention
    while call is not None:
        path.append(call.module)
        call = call.parent
    assert path == ["transformer.h.0.attn", "transformer.h.0", "transformer", ""]
    assert attention.id in [c.id for c in attention.parent.children]
    fqns = {c.module for c in calls(rank, kind="module", phase="forward")}
    used: set[str] = set()
    for name, module in program.model.named_modules():
        module.register_forward_hook(lambda *_, name=name: used.add(name))
    program.loss(program.model)
    assert fqns == used and len(used) > 20


def test_calls_inside_a_module_carry_its_path(record: Record) -> None:
    net, tokens = _net()
    rank = record(lambda: net(tokens).sum().backward(), net)
    addmm = [c for c in calls(rank, kind="aten", phase="forward") if c.op == "aten::addmm"]
    assert [c.module for c in addmm] == ["1.up", "1.down", "2.up", "2.down", "4"]
    for call in addmm:
        assert call.parent.kind == "api" and call.parent.parent.kind == "module"
    backward = [c for c in calls(rank, kind="node") if "AddmmBackward0" in c.name]
    assert [c.module for c in backward] == ["4", "2.down", "2.up", "1.down", "1.up"]


def test_a_module_called_twice(record: Record) -> None:
    layer = nn.Linear(3, 3)
    x = torch.randn(2, 3, requires_grad=True)
    rank = record(lambda: layer(layer(x)).sum().backward(), layer, data="tensor")
    assert_same(rank.tensor("Module.Linear.0.forward.output.0"), rank.tensor("Module.Linear.1.forward.input.0"))
    assert_same(rank.tensor("Module.Linear.1.backward.output.0"), rank.tensor("Module.Linear.0.backward.input.0"))
    assert_same(torch.ones(2, 3), rank.tensor("Module.Linear.1.backward.input.0"))
    assert_same(x.grad, rank.tensor("Module.Linear.0.backward.output.0"))  # type: ignore[arg-type]


def test_module_keywords_and_nested_outputs(record: Record) -> None:
    class Pair(nn.Module):
        def forward(self, x: Tensor, *, scale: Tensor, flag: bool = True) -> dict[str, Any]:
            return {"a": x * scale, "b": (x + 1, None), "flag": flag}

    x, scale = torch.randn(2, requires_grad=True), torch.randn(2, requires_grad=True)
    rank = record(lambda: Pair()(x, scale=scale)["a"].sum().backward(), data="tensor")
    call = calls(rank, kind="module", phase="forward")[0]
    args, kwargs = call.inputs
    assert_same(x.detach(), args[0].tensor())
    assert_same(scale.detach(), kwargs["scale"].tensor())
    assert_same(x.detach() * scale.detach(), call.outputs["a"].tensor())
    assert call.outputs["b"][1] is None and call.outputs["flag"] is True


def test_optimizer_phase(record: Record) -> None:
    for optimizer in ("sgd_momentum", "adamw_foreach", "adamw_fused"):
        program: Program = build("gpt2", optimizer)
        rank = record(lambda program=program: train_step(program), program.model)
        phases = [c.phase for c in calls(rank, kind="aten") if not c.op.startswith("profiler::")]
        first = phases.index("optimizer")
        assert set(phases[first:]) == {"optimizer"}
        assert "optimizer" not in phases[:first] and first > 300
        names = {c.op for c in calls(rank, kind="aten", phase="optimizer")}
        assert any(
            name
            in (
                "aten::add_.Tensor",
                "aten::_fused_adamw_",
                "aten::_foreach_addcdiv_.ScalarList",
                "aten::_foreach_mul_.Scalar",
            )
            for name in names
        )
