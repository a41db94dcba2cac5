"""Checkpointing: recomputed calls are labelled and tied to the calls that they run again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from tests.capture.autograd.links import assert_linked
from tests.capture.bits import assert_same, calls, only, values
from tests.capture.twice import twice
from tests.devices import op_here

Record = Callable[..., Any]
BOTH = pytest.mark.parametrize("reentrant", [False, True])


def assert_recomputed(rank: Any, equal: bool = True) -> list[Any]:
    """Check that every recomputed call has the original that it is a repetition of; return the aten ones."""
    again = calls(rank, phase="recompute")
    for call in again:
        if call.op in ("aten::detach", "torch.Tensor.detach") and call.forward is None:
            continue  # the checkpoint's own, of its inputs: there is no original
        original = call.forward
        assert original is not None, f"{call.name} ({call.op}) has no original"
        assert (original.phase, original.op, original.kind) == ("forward", call.op, call.kind)
        assert call in original.recomputed
        if call.error is not None:
            assert call.error.startswith("early stop, no failure")
        elif equal:
            for new, old in zip(values(call.outputs), values(original.outputs), strict=True):
                if new.has_data and old.has_data:
                    assert_same(old.tensor(), new.tensor(), call.name)
    return [call for call in again if call.kind == "aten"]


class Layer(nn.Module):
    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(width, width), nn.Linear(width, width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        # The thread that runs an accelerator's backward, and so what a reentrant checkpoint runs again, has no default device.
        noise = torch.rand(x.shape, device=x.device) * torch.rand(x.shape, device=x.device)
        h = F.dropout(self.up(self.norm(x)), 0.3) * noise
        return x + F.dropout(self.down(F.gelu(h)), 0.3)


class Stack(nn.Module):
    """Equal layers with dropout and random tensors: only order and data flow tell their calls apart."""

    def __init__(self, run: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(4))
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.run(layer, x)
        return x


def _train(model: nn.Module) -> list[Tensor]:
    x = torch.randn(3, 6, requires_grad=True)
    model.zero_grad()
    loss = model(x).square().sum()
    loss.backward()
    return [loss, x.grad, *(p.grad for p in model.parameters())]  # type: ignore[list-item]


@pytest.mark.parametrize("level", ["mix", "aten", "api", "module"])
@BOTH
def test_equal_layers_are_told_apart(record: Record, reentrant: bool, level: str) -> None:
    model = Stack(partial(checkpoint, use_reentrant=reentrant))
    rank = twice(record, lambda: _train(model), model, level=level)
    again = calls(rank, phase="recompute")
    assert len(again) >= (4 if level == "module" else 40)
    for call in again:
        if call.op == "aten::detach":
            continue
        assert call.forward is not None, call.name
        assert call.forward.op == call.op
        assert call.forward.module == call.module  # layers.2 repeats layers.2, never its twin
        if call.error is None:
            for new, old in zip(values(call.outputs), values(call.forward.outputs), strict=True):
                assert new.undefined or torch.equal(new.tensor(), old.tensor())
    originals = [call.forward.id for call in again if call.forward is not None]
    assert len(set(originals)) == len(originals)
    if level in ("mix", "aten"):
        assert_recomputed(rank)
        assert_linked(rank)


@BOTH
def test_nested(record: Record, reentrant: bool) -> None:
    w = torch.randn(4, 4, requires_grad=True)

    def inner(y: Tensor) -> Tensor:
        return torch.tanh(y @ w).exp()

    def outer(y: Tensor) -> Tensor:
        return checkpoint(inner, checkpoint(inner, y.sin(), use_reentrant=reentrant).cos(), use_reentrant=reentrant)

    def program() -> list[Tensor]:
        x = torch.randn(4, 4, requires_grad=True)
        w.grad = None
        checkpoint(outer, x, use_reentrant=reentrant).sum().backward()
        return [x.grad, w.grad]  # type: ignore[list-item]

    rank = twice(record, program)
    again = assert_recomputed(rank)
    first, second = calls(rank, phase="forward", op=op_here("aten::mm"))
    assert len(first.recomputed) == 2, "once for the outer, once for the inner checkpoint"
    assert len(second.recomputed) == 1 + reentrant, "the outer one stops early before it"
    assert len(again) > 8
    assert_linked(rank)


def test_selective(record: Record) -> None:
    """What the policy saves is not run again; what it does not is."""
    w = torch.randn(4, 4, requires_grad=True)

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE if op is torch.ops.aten.mm.default else CheckpointPolicy.PREFER_RECOMPUTE

    def inner(y: Tensor) -> Tensor:
        return torch.tanh(torch.sin(y) @ w).exp()

    def program() -> list[Tensor]:
        x = torch.randn(4, 4, requires_grad=True)
        w.grad = None
        contexts = partial(create_selective_checkpoint_contexts, policy)
        checkpoint(inner, x, use_reentrant=False, context_fn=contexts).sum().backward()
        return [x.grad, w.grad]  # type: ignore[list-item]

    rank = twice(record, program)
    ops = {call.op for call in assert_recomputed(rank)}
    assert {"aten::sin", "aten::tanh"} <= ops
    assert_linked(rank)


def test_batch_norm_statistics_are_written_twice(record: Record) -> None:
    """The recomputation reads what the forward wrote: another value of the same storage."""
    torch.manual_seed(1)

    def program() -> list[Tensor]:
        norm = nn.BatchNorm1d(6)
        x = torch.randn(3, 6, requires_grad=True)
        checkpoint(lambda y: norm(y * 2).relu(), x, use_reentrant=False, preserve_rng_state=False).sum().backward()
        return [x.grad, norm.running_mean, norm.running_var]  # type: ignore[list-item]

    rank = twice(record, program)
    call = only([c for c in assert_recomputed(rank, equal=False) if c.op == "aten::native_batch_norm"])
    assert call.forward.op == call.op


@BOTH
def test_a_function_that_is_not_deterministic(record: Record, reentrant: bool) -> None:
    """The difference between a call and its recomputation can be found: both have their values."""
    factors = iter([2.0, 3.0])
    x = torch.randn(4, requires_grad=True)

    def inner(y: Tensor) -> Tensor:
        return (y.sin() * next(factors)).tanh().exp()

    rank = record(lambda: checkpoint(inner, x, use_reentrant=reentrant).sum().backward(), data="tensor")
    again = assert_recomputed(rank, equal=False)
    differ = [
        c.op
        for c in again
        if c.forward
        and any(
            not torch.equal(a.tensor(), b.tensor())
            for a, b in zip(values(c.outputs), values(c.forward.outputs), strict=True)
        )
    ]
    assert differ[0] == "aten::mul.Tensor"
    assert only([c for c in again if c.op == "aten::sin"]).forward.op == "aten::sin"


def test_random_state_not_preserved(record: Record) -> None:
    x = torch.ones(64, requires_grad=True)

    def body() -> None:
        y = checkpoint(lambda y: F.dropout(y.exp(), 0.5).exp(), x, use_reentrant=False, preserve_rng_state=False)
        y.sum().backward()

    rank = record(body, data="tensor")
    again = assert_recomputed(rank, equal=False)
    call = next(c for c in again if "dropout" in c.op or "bernoulli" in c.op)
    assert not torch.equal(values(call.outputs)[0].tensor(), values(call.forward.outputs)[0].tensor())


def test_early_stop_loses_nothing_and_is_no_failure(record: Record) -> None:
    """What the program runs after the early stop is recorded, and calls it cut say why."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, y: Tensor) -> Tensor:
            return torch.relu(self.linear(y)).sum()  # sum saves nothing: its recomputation is never reached

    model = Block()

    def program() -> list[Tensor]:
        x = torch.randn(4, 4, requires_grad=True)
        model.zero_grad()
        checkpoint(model, x, use_reentrant=False).backward()
        after = model(x.detach() + 1)
        return [x.grad, model.linear.weight.grad, after]  # type: ignore[list-item]

    rank = twice(record, program, model)
    again = calls(rank, phase="recompute")
    cut = [call for call in again if call.error is not None]
    assert [call.name for call in cut] == ["Module.Block.1.recompute", "Torch.relu.1.recompute"]
    assert all(call.error.startswith("early stop, no failure") for call in cut)
    assert not [c for c in again if c.op == "aten::sum"]
    assert all(call.error is None for call in rank.calls if call.phase != "recompute")
    after = rank["Module.Block.2.forward"]
    assert after.parent is None, "what runs after the early stop lies under it"
    assert [child.name for child in after.children] == [
        "Module.linear.2.forward",
        "Torch.relu.2.forward",
        "Tensor.sum.1.forward",
    ]
    assert_recomputed(rank)
    assert_linked(rank)


def test_a_failure_in_a_recomputation_is_no_early_stop(record: Record) -> None:
    class Once(nn.Module):
        runs = 0

        def forward(self, y: Tensor) -> Tensor:
            self.runs += 1
            if self.runs > 1:
                raise ValueError("not twice")
            return y.exp()

    def body() -> None:
        y = checkpoint(Once(), torch.randn(3, requires_grad=True), use_reentrant=False)
        with pytest.raises(ValueError, match="not twice"):
            y.sum().backward()

    call = only(calls(record(body, data="structure"), kind="module", phase="recompute"))
    assert call.error == "ValueError: not twice"


def test_with_create_graph(record: Record) -> None:
    """A pass that is differentiated itself runs with gradients on, like a recomputation: they are told apart."""
    w = torch.randn(4, 4, requires_grad=True)

    def inner(y: Tensor) -> Tensor:
        return torch.tanh(y @ w).exp()

    def program() -> list[Tensor]:
        x = torch.randn(4, 4, requires_grad=True)
        w.grad = None
        (g,) = torch.autograd.grad(checkpoint(inner, x, use_reentrant=False).sum(), x, create_graph=True)
        g.square().sum().backward()
        return [x.grad, w.grad, g]  # type: ignore[list-item]

    rank = twice(record, program)
    again = assert_recomputed(rank)
    assert {op_here("aten::mm"), "aten::tanh", "aten::exp"} <= {c.op for c in again}
    second = calls(rank, op="torch.Tensor.backward")[0]
    for when in ([c for c in again if c.id < second.id], [c for c in again if c.id > second.id]):
        assert op_here("aten::mm") in {c.op for c in when}, "each pass runs it again"
    assert not [c for c in again if "backward" in c.op]
    assert [c for c in calls(rank, kind="aten", phase="backward") if c.op == "aten::tanh_backward"]


def test_without_checkpoint_nothing_is_recomputed(record: Record) -> None:
    x = torch.randn(4, requires_grad=True)

    def body() -> None:
        (g,) = torch.autograd.grad(x.exp().sin().sum(), x, create_graph=True)
        torch.autograd.backward(g.square().sum(), inputs=[x])

    assert not calls(record(body, data="structure"), phase="recompute")


def test_inputs_saved_elsewhere(record: Record) -> None:
    """Inputs that come back as copies have no data flow: order and shapes tie the calls."""
    w = torch.randn(4, 4, requires_grad=True)

    def inner(y: Tensor) -> Tensor:
        return torch.tanh(y @ w).exp()

    def program() -> list[Tensor]:
        x = torch.randn(4, 4, requires_grad=True)
        w.grad = None
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t.clone()):
            y = checkpoint(inner, x.sin(), use_reentrant=True)
            checkpoint(inner, y, use_reentrant=True).sum().backward()
        return [x.grad, w.grad]  # type: ignore[list-item]

    rank = twice(record, program)
    computing = (op_here("aten::mm"), "aten::tanh", "aten::exp")
    again = [c for c in calls(rank, phase="recompute", kind="aten") if c.op in computing]
    assert len(again) == 6
    for call in again:
        assert call.forward is not None and call.forward.op == call.op
        assert_same(call.forward.outputs.tensor(), call.outputs.tensor(), call.name)
