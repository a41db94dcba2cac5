"""Hooks and functions of the program's that change what flows: recorded is what the program used."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from tests.capture.autograd.links import Cube, assert_linked
from tests.capture.bits import assert_same, calls, only, values
from tests.capture.process_state import changes, module_hooks, picture
from tests.capture.twice import twice
from tests.devices import op_here
from tests.torch_features import APPLY_TAKES_KEYWORDS, needs_saved_tensors

Record = Callable[..., Any]


class DoubleInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        return g * 2


class TwoOutputs(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        return x * scale, x + 1

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.scale = inputs[1]
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return g * ctx.scale, None


taken_before = Cube.apply


SCALE = {"scale": 3.0}


def test_a_custom_function_is_a_call(record: Record) -> None:
    """With its arguments, its inner ops as children, and a backward with the gradients it got and gave."""
    before = picture()

    def program() -> list[Tensor]:
        x = torch.randn(4, requires_grad=True)
        y = Cube.apply(x * 1)
        z = DoubleInPlace.apply(y * 1)
        a, b = TwoOutputs.apply(z, **SCALE) if APPLY_TAKES_KEYWORDS else TwoOutputs.apply(z, *SCALE.values())
        a.sum().backward()
        return [y, z, a, b, x.grad]  # type: ignore[list-item]

    rank = twice(record, program)
    call = rank["Torch.Cube.0.forward"]
    assert call.op.endswith("links.Cube") and call.kind == "api"
    assert [c.op for c in call.children] == ["torch.Tensor.mul", "torch.Tensor.mul"]
    node = only([c for c in calls(rank, kind="node") if "CubeBackward" in c.name])
    assert node.forward == call
    under = [c for c in calls(rank, kind="aten", phase="backward") if node in _ancestors(c)]
    assert [c.op for c in under] == ["aten::mul.Tensor"] * 3
    assert all(c.forward == call for c in under)
    backward = rank["Torch.Cube.0.backward"]
    assert_same(values(node.inputs)[0].tensor(), values(backward.inputs)[0].tensor())
    assert_same(values(node.outputs)[0].tensor(), values(backward.outputs)[0].tensor())
    dirty = rank["Torch.DoubleInPlace.0.forward"]
    assert dirty.mutated == ("0",)
    assert_same(values(dirty.outputs)[0].tensor(), values(dirty.mutated_values)[0].tensor())
    two = rank["Torch.TwoOutputs.0.forward"]
    assert two.inputs[1] == (SCALE if APPLY_TAKES_KEYWORDS else {})
    assert_same(values(rank["Torch.TwoOutputs.0.backward"].outputs)[0].tensor(), torch.full((4,), 3.0))
    assert_linked(rank)
    left = [change for change in changes(before, picture()) if "autograd.Function" in change or "mode" in change]
    assert left == []


def _ancestors(call: Any) -> list[Any]:
    found = []
    while call.parent is not None:
        call = call.parent
        found.append(call)
    return found


def test_a_method_taken_before_the_block_still_links(record: Record) -> None:
    def program() -> list[Tensor]:
        x = torch.randn(4, requires_grad=True)
        taken_before(x * 1).backward(torch.ones(4))
        return [x.grad]  # type: ignore[list-item]

    rank = twice(record, program)
    node = only([c for c in calls(rank, kind="node") if "CubeBackward" in c.name])
    assert node.forward.op == "aten::mul.Tensor"
    assert_linked(rank)


def test_errors_of_custom_functions_pass(record: Record) -> None:
    """once_differentiable refuses a second derivative in the same words."""
    x = torch.randn(4, requires_grad=True)

    def body() -> str:
        (g,) = torch.autograd.grad(DoubleInPlace.apply(x * 1).pow(2).sum(), x, create_graph=True)
        with pytest.raises(RuntimeError) as caught:
            g.sum().backward()
        return str(caught.value)

    bare, said = body(), []
    record(lambda: said.append(body()))
    assert said == [bare]


def test_tensor_hooks_that_change_gradients(record: Record) -> None:
    def program() -> list[Tensor]:
        x = torch.randn(4, requires_grad=True)
        x.register_hook(lambda g: g.clamp(max=0.5))
        y = x.exp()
        y.register_hook(lambda g: g * 10)
        z = y.sin()
        z.retain_grad()
        z.sum().backward()
        return [x.grad, z.grad, y, z]  # type: ignore[list-item]

    rank = twice(record, program)
    exp = only([c for c in calls(rank, kind="node") if "ExpBackward0" in c.name])
    sine = only([c for c in calls(rank, kind="node") if "SinBackward0" in c.name])
    assert_same(values(sine.outputs)[0].tensor() * 10, values(exp.inputs)[0].tensor(), "after the hook")
    assert_same(values(exp.inputs)[0].tensor(), values(rank["Tensor.exp.0.backward"].inputs)[0].tensor())
    leaf = only([c for c in calls(rank, kind="node") if "AccumulateGrad" in c.name])
    assert_same(values(exp.outputs)[0].tensor().clamp(max=0.5), values(leaf.inputs)[0].tensor())
    assert_linked(rank)


def test_node_hooks_registered_after_ours(record: Record) -> None:
    """The program's hooks on a node replace gradients after the recorder's own hooks were put there."""

    def program() -> list[Tensor]:
        x = torch.randn(4, requires_grad=True)
        y = x.exp()
        assert y.grad_fn is not None
        y.grad_fn.register_prehook(lambda grads: (grads[0] * 3,))
        y.grad_fn.register_hook(lambda sent, got: (sent[0] * 5,))
        z = y.sin()
        z.sum().backward()
        return [x.grad]  # type: ignore[list-item]

    rank = twice(record, program)
    exp = only([c for c in calls(rank, kind="node") if "ExpBackward0" in c.name])
    sine = only([c for c in calls(rank, kind="node") if "SinBackward0" in c.name])
    leaf = only([c for c in calls(rank, kind="node") if "AccumulateGrad" in c.name])
    assert_same(values(sine.outputs)[0].tensor() * 3, values(exp.inputs)[0].tensor(), "after the pre-hook")
    assert_same(values(leaf.inputs)[0].tensor(), values(exp.outputs)[0].tensor(), "after the hook")
    assert_same(values(leaf.inputs)[0].tensor(), values(rank["Tensor.exp.0.backward"].outputs)[0].tensor())


def test_an_optimizer_in_the_backward(record: Record) -> None:
    """register_post_accumulate_grad_hook: step and free each gradient as soon as it is there."""

    def program() -> list[Tensor]:
        torch.manual_seed(2)
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        optimizers = {p: torch.optim.SGD([p], lr=0.1, foreach=False) for p in model.parameters()}

        def update(parameter: Tensor) -> None:
            optimizers[parameter].step()  # type: ignore[index]
            optimizers[parameter].zero_grad()  # type: ignore[index]

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(update)
        model(torch.randn(3, 4)).sum().backward()
        assert all(p.grad is None for p in model.parameters())
        return list(model.parameters())

    rank = twice(record, program)
    steps = [c for c in calls(rank, kind="aten", phase="optimizer") if c.op == "aten::add_.Tensor"]
    assert len(steps) == 4
    assert all(any("AccumulateGrad" in a.name for a in _ancestors(c)) for c in steps)
    assert not calls(rank, kind="aten", phase="backward", op="aten::add_.Tensor")
    assert_linked(rank)


def test_an_optimizer_that_runs_the_backward(record: Record) -> None:
    """LBFGS's closure: what runs in it is forward and backward, not optimizer."""

    def program() -> list[Tensor]:
        w = torch.randn(4, requires_grad=True)
        optimizer = torch.optim.LBFGS([w], max_iter=2)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = (w.exp() - 2).square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)  # type: ignore[arg-type]
        return [w]

    rank = twice(record, program)
    assert {c.phase for c in calls(rank, op="aten::exp")} == {"forward"}
    assert calls(rank, kind="aten", phase="backward") and calls(rank, kind="aten", phase="optimizer")
    assert_linked(rank)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor, *, scale: Tensor) -> tuple[Tensor, Tensor]:
        return self.linear(x) * scale, x.mul_(2) if not x.requires_grad else x + 1


@pytest.mark.parametrize("scope", ["module", "global"])
def test_module_hooks_that_replace_values(record: Record, scope: str) -> None:
    def program() -> list[Tensor]:
        torch.manual_seed(3)
        model = Pair()
        pre = lambda m, args, kwargs: ((args[0] * 2,), {"scale": kwargs["scale"] + 1})  # noqa: E731
        post = lambda m, args, out: (out[0].sin(), out[1])  # noqa: E731
        handles = []
        if scope == "module":
            handles += [model.register_forward_pre_hook(pre, with_kwargs=True), model.register_forward_hook(post)]
        else:
            only_pair = lambda m, args: (args[0] * 2,) if isinstance(m, Pair) else None  # noqa: E731
            handles.append(nn.modules.module.register_module_forward_pre_hook(only_pair))
            handles.append(model.register_forward_hook(post))
        before = module_hooks(model)
        x, scale = torch.randn(3, 4, requires_grad=True), torch.ones(1, requires_grad=True)
        a, b = model(x, scale=scale)
        assert module_hooks(model) == before
        copy.deepcopy(model)
        (a.sum() + b.sum()).backward()
        for handle in handles:
            handle.remove()
        return [x, a, b, x.grad, scale.grad, model.linear.weight.grad]  # type: ignore[list-item]

    rank = twice(record, program)
    call = rank["Module.Pair.0.forward"]
    doubled = next(c for c in call.children if c.op in ("torch.Tensor.mul", "torch.Tensor.__mul__", "aten::mul.Tensor"))
    assert_same(values(doubled.outputs)[0].tensor(), call.inputs[0][0].tensor(), "the input after the pre-hook")
    assert_same(values(calls(rank, kind="module")[1].inputs)[0].tensor(), call.inputs[0][0].tensor(), "what linear got")
    assert call.inputs[1]["scale"].tensor().item() == (2.0 if scope == "module" else 1.0)
    sine = only(calls(rank, kind="aten", op="aten::sin"))
    assert_same(sine.outputs.tensor(), values(call.outputs)[0].tensor(), "the output after the hook")
    backward = rank["Module.Pair.0.backward"]
    mul = next(
        c for c in calls(rank, kind="node") if "MulBackward0" in c.name and c.forward.id == _first_aten(doubled).id
    )
    assert_same(values(mul.inputs)[0].tensor(), values(backward.outputs)[0].tensor(), "gradient of the replaced input")
    assert_linked(rank)


def _first_aten(call: Any) -> Any:
    return call if call.kind == "aten" else _first_aten(call.children[0])


def test_an_in_place_pre_hook(record: Record) -> None:
    """The same tensor with other contents is another input."""
    model = nn.Linear(4, 4)
    model.register_forward_pre_hook(lambda m, args: (args[0].mul_(2), None)[1])
    x = torch.ones(3, 4)
    rank = record(lambda: model(x), model, data="tensor")
    call = rank.calls[0]
    assert_same(torch.full((3, 4), 2.0), values(call.inputs)[0].tensor())


def test_pre_hooks_that_fail_or_remove_themselves(record: Record) -> None:
    model = nn.LazyLinear(4)  # removes its own pre-hook in its first call
    rank = record(lambda: model(torch.randn(3, 5)), model)
    assert calls(rank, kind="module")[0].error is None
    assert not model._forward_pre_hooks and not model._forward_pre_hooks_with_kwargs

    def fail(module: nn.Module, args: Any) -> None:
        raise ValueError("from the hook")

    handle = model.register_forward_pre_hook(fail)

    def body() -> None:
        with pytest.raises(ValueError, match="from the hook"):
            model(torch.randn(3, 5))

    rank = record(body, model)
    assert only(calls(rank, kind="module")).error == "ValueError: from the hook"
    assert list(model._forward_pre_hooks) == [handle.id]


def test_module_backward_hooks_that_replace_gradients(record: Record) -> None:
    def program() -> list[Tensor]:
        torch.manual_seed(4)
        model = nn.Linear(4, 4)
        model.register_full_backward_pre_hook(lambda m, grads: (grads[0] * 2,))
        model.register_full_backward_hook(lambda m, sent, got: (sent[0] * 7,))
        x = torch.randn(3, 4, requires_grad=True)
        y = x.exp()
        model(y).sum().backward()
        return [x.grad, model.weight.grad]  # type: ignore[list-item]

    rank = twice(record, program)
    module = rank["Module.Linear.0.backward"]
    exp = only([c for c in calls(rank, kind="node") if "ExpBackward0" in c.name])
    assert_same(values(exp.inputs)[0].tensor(), values(module.outputs)[0].tensor(), "sent on after the hook")
    linear = rank["Functional.linear.0.backward"]
    assert_same(torch.full((3, 4), 2.0), values(linear.inputs)[0].tensor(), "arrived after the pre-hook")
    assert_linked(rank)


def test_anomaly_mode(record: Record) -> None:
    def program() -> list[Tensor]:
        with torch.autograd.detect_anomaly(check_nan=True):
            x = torch.rand(4, requires_grad=True)
            Cube.apply(x.exp()).log().sum().backward()
        return [x.grad]  # type: ignore[list-item]

    with pytest.warns(UserWarning, match="Anomaly Detection"):
        rank = twice(record, program)
    assert_linked(rank)


def test_anomaly_mode_finds_the_same_nan(record: Record) -> None:
    def body() -> str:
        x = torch.zeros(4, requires_grad=True)
        with torch.autograd.detect_anomaly(), pytest.raises(RuntimeError) as caught:
            (x.sqrt() * 0).sum().backward()
        return str(caught.value)

    said: list[str] = []
    with pytest.warns(UserWarning, match="Anomaly Detection"):
        rank = record(lambda: said.extend((body(),)))
    with pytest.warns(UserWarning, match="Anomaly Detection"):
        bare = body()
    assert said == [bare] and "SqrtBackward0" in bare
    assert_linked(rank)


def _pack(t: Tensor) -> Tensor:
    return t.detach().double()


@pytest.mark.parametrize("hooks", ["save_on_cpu", "pack", "outside"])
def test_saved_tensor_hooks(record: Record, hooks: str) -> None:
    def forward_backward() -> list[Tensor]:
        x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
        if hooks == "save_on_cpu":
            with torch.autograd.graph.save_on_cpu():
                y = torch.tanh(x @ w).exp()
        elif hooks == "pack":
            with torch.autograd.graph.saved_tensors_hooks(_pack, lambda t: t.float() + 1):
                y = torch.tanh(x @ w).exp()  # a wrong gradient, on purpose: it must be the program's wrong gradient
        else:
            y = torch.tanh(x @ w).exp()
        y.sum().backward()
        return [x.grad, w.grad]  # type: ignore[list-item]

    def program() -> list[Tensor]:
        if hooks != "outside":
            return forward_backward()
        with torch.autograd.graph.saved_tensors_hooks(_pack, lambda t: t.float() + 1):
            return forward_backward()

    rank = twice(record, program)
    assert_linked(rank)
    product = op_here("MmBackward0"), op_here("aten::mm")
    for name, op in (product, ("TanhBackward0", "aten::tanh"), ("ExpBackward0", "aten::exp")):
        node = only([c for c in calls(rank, kind="node") if name in c.name])
        assert node.forward.op == op, f"{name} belongs to an op of the pack hook: {node.forward.op}"
    if hooks == "pack":
        added = [c for c in calls(rank, kind="aten", phase="backward") if c.op == "aten::add.Tensor"]
        assert added and all(c.forward is not None for c in added), (
            "what unpack hooks run belongs to the node that unpacks"
        )


@needs_saved_tensors
def test_what_a_tensor_s_hook_runs_is_no_part_of_the_formula_and_linked_to_what_made_the_tensor(record: Record) -> None:
    """The engine runs it before the node, and for a node that it does not run too; on a device's thread, if it has one."""

    def program() -> list[Tensor]:
        x = torch.randn(4, requires_grad=True)
        y = x.exp()
        y.register_hook(lambda g: g.clamp(max=0.5))
        y.sin().sum().backward()
        return [x.grad]  # type: ignore[list-item]

    rank = twice(record, program)
    exp = only([c for c in calls(rank, kind="node") if "ExpBackward0" in c.name])
    assert [c.op for c in exp.children if c.op != "aten::detach"] == ["aten::mul.Tensor"]
    clamp = only(calls(rank, op="aten::clamp"))
    assert (clamp.parent.op, clamp.forward.op, clamp.phase) == ("torch.Tensor.backward", "aten::exp", "backward")
    assert_linked(rank)


def test_gradients_that_are_added_up_after_a_node_s_run_are_no_second_run(record: Record) -> None:
    def program() -> list[Tensor]:
        x = torch.randn(4, requires_grad=True)
        y = x.exp()
        (y.sin() + y.cos() + y).sum().backward()
        return [x.grad]  # type: ignore[list-item]

    rank = twice(record, program)
    nodes = [c.op for c in calls(rank, kind="node")]
    assert len(set(nodes) - {"AddBackward0"}) == len(nodes) - 2, nodes
    added = [c for c in calls(rank, op="aten::add.Tensor") if c.phase == "backward"]
    assert [c.parent.op for c in added] == ["CosBackward0", "SinBackward0"]
    assert_linked(rank)


@needs_saved_tensors
@pytest.mark.parametrize("function", [torch.exp, lambda x: x + 1.0], ids=["runs an op", "runs none"])
def test_a_node_that_has_failed_runs_again(record: Record, function: Callable[[Tensor], Tensor]) -> None:
    """What a pass left that raised is no part of the next."""
    fails = [True]

    def hook(gradient: Tensor) -> None:
        if fails[0]:
            raise ArithmeticError(gradient.abs())

    def program() -> list[Tensor]:
        fails[0] = True
        x = torch.randn(4, requires_grad=True)
        y = function(x * 2)
        y.register_hook(hook)
        with pytest.raises(ArithmeticError):
            y.sum().backward(retain_graph=True)
        fails[0] = False
        y.sum().backward()
        return [x.grad]  # type: ignore[list-item]

    rank = twice(record, program)
    runs = [c for c in calls(rank, kind="node") if c.op in ("ExpBackward0", "AddBackward0")]
    passes = [c for c in rank.calls if c.op == "torch.Tensor.backward"]
    assert len(passes) == 2
    assert only(runs).parent.parent.name == passes[1].name and len(values(only(runs).outputs)) == 1
    assert only(calls(rank, op="aten::abs")).parent.name == passes[0].name
    assert_linked(rank)


@pytest.mark.parametrize("creates_graph", [False, True])
def test_a_hook_s_own_grad_mode_is_not_that_of_the_pass(record: Record, creates_graph: bool) -> None:
    """The first thing that runs in the pass is a hook's op in the other mode."""

    def program() -> list[Tensor]:
        x = torch.randn(4, requires_grad=True)
        y = x.exp() * 2

        def hook(gradient: Tensor) -> Tensor:
            with torch.set_grad_enabled(not creates_graph):
                return gradient * torch.ones(4, requires_grad=True, device=x.device).cos().detach()

        y.register_hook(hook)
        (found,) = torch.autograd.grad(y, x, torch.ones(4), create_graph=creates_graph)
        assert found.requires_grad is creates_graph
        return [found]

    rank = twice(record, program)
    phases = {c.op: c.phase for c in calls(rank, kind="aten") if c.op in ("aten::cos", "aten::mul.Tensor")}
    assert phases == {"aten::cos": "backward" if creates_graph else "recompute", "aten::mul.Tensor": "backward"}
    (found,) = [c for c in calls(rank, kind="node") if c.op == "ExpBackward0"]
    assert {c.phase for c in found.children} == {"backward"}
    assert_linked(rank)
