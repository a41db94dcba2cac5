"""Autocast, gradient scaling, and tensors of few bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.capture.autograd.links import assert_linked
from tests.capture.bits import calls, values
from tests.capture.twice import twice
from tests.devices import here

Record = Callable[..., Any]


def _model() -> nn.Module:
    torch.manual_seed(6)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(record: Record, dtype: torch.dtype) -> None:
    """The casts are ops, weights are cast once, and backward finds its way through them."""
    model = _model()

    def program() -> list[Tensor]:
        model.zero_grad()
        x = torch.randn(3, 6)
        with torch.autocast(here().type, dtype):
            loss = model(x).square().sum()
        loss.backward()
        return [loss, *(p.grad for p in model.parameters())]  # type: ignore[list-item]

    rank = twice(record, program, model)
    linear = rank["Functional.linear.0.forward"]
    casts = [c for c in linear.children if c.op == "aten::_to_copy"]
    assert len(casts) == 3, "input, weight and bias are cast inside the call"
    assert all(values(c.outputs)[0].dtype is dtype for c in casts)
    assert values(linear.inputs)[0].dtype is torch.float32 and values(linear.outputs)[0].dtype is dtype
    gradients = values(rank["Functional.linear.0.backward"].outputs)
    assert {g.dtype for g in gradients} == {torch.float32}, "the gradient of the call's own arguments, behind the casts"
    back = [c for c in calls(rank, kind="node") if "ToCopyBackward0" in c.name]
    assert back and all(c.forward.op == "aten::_to_copy" for c in back)
    assert_linked(rank)


def test_autocast_inside_a_checkpoint(record: Record) -> None:
    model = _model()

    def program() -> list[Tensor]:
        model.zero_grad()
        with torch.autocast(here().type, torch.bfloat16):
            loss = checkpoint(model, torch.randn(3, 6), use_reentrant=False).square().sum()
        loss.backward()
        return [loss, *(p.grad for p in model.parameters())]  # type: ignore[list-item]

    rank = twice(record, program, model)
    again = [
        c
        for c in calls(rank, phase="recompute", kind="aten")
        if c.op in ("aten::_to_copy", "aten::addmm", "aten::gelu")
    ]
    assert len(again) >= 5
    assert all(c.forward is not None and c.forward.op == c.op for c in again)
    assert_linked(rank)


@pytest.mark.parametrize("data", ["full", "statistic"])
@pytest.mark.parametrize("overflow", [False, True])
def test_gradient_scaler(record: Record, overflow: bool, data: str) -> None:
    """Scale, unscale_ and the look for Inf are recorded; a skipped step has no optimizer calls."""
    model = _model()
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def program() -> list[Tensor]:
        model.load_state_dict(start)
        model.zero_grad()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler(here().type, init_scale=1024.0, growth_interval=1)
        loss = model(torch.randn(3, 6)).square().sum()
        scaler.scale(loss * (float("inf") if overflow else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        return [torch.tensor(scaler.get_scale()), *model.parameters()]

    rank = twice(record, program, model, data=data)
    assert rank.loss_scale == 1024.0
    (update,) = rank.loss_scales
    assert update.found_inf is overflow
    assert update.next_scale == (512.0 if overflow else 2048.0)
    assert update.call.op == "aten::_amp_update_scale_"
    assert bool(calls(rank, kind="aten", phase="optimizer")) is not overflow
    unscale = calls(rank, kind="aten", op="aten::_amp_foreach_non_finite_check_and_unscale_")
    assert len(unscale) == 1 and {"self", "found_inf"} <= set(unscale[0].mutated)
    assert_linked(rank)


def test_no_scaler_no_loss_scale(record: Record) -> None:
    rank = record(lambda: torch.ones(2).exp())
    assert rank.loss_scale is None and rank.loss_scales == []


def test_loss_scale_without_data(record: Record) -> None:
    """The ops are there, their numbers are not: it is said as None, not guessed."""
    scale, growth = torch.full((1,), 8.0), torch.zeros(1, dtype=torch.int32)
    rank = record(lambda: torch._amp_update_scale_(scale, growth, torch.zeros(1), 2.0, 0.5, 1), data="structure")
    (update,) = rank.loss_scales
    assert (update.scale, update.found_inf, update.next_scale, rank.loss_scale) == (None, None, None, None)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8(record: Record, dtype: torch.dtype) -> None:
    def program() -> list[Tensor]:
        x = torch.randn(4, 8, requires_grad=True)
        scaled = (x * 4).to(dtype)
        y = scaled.to(torch.bfloat16) * 0.25
        y.sum().backward()
        return [scaled.view(torch.uint8), y, x.grad]  # type: ignore[list-item]

    rank = twice(record, program)
    cast = next(c for c in calls(rank, kind="aten", op="aten::_to_copy") if values(c.outputs)[0].dtype is dtype)
    assert values(cast.outputs)[0].tensor().dtype is dtype
    assert_linked(rank)
