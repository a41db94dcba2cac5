"""What must hold of the links from backward to forward in any recording, and a function with a formula of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def assert_linked(rank: Any) -> int:
    """Check the links of all backward ops and nodes; return how many there are."""
    checked = 0
    for call in rank.calls:
        if call.phase != "backward" or call.kind not in ("aten", "node") or is_accumulation(call):
            continue
        forward = call.forward
        assert forward is not None, f"{call.name} ({call.op}) has no forward call"
        assert forward.phase in ("forward", "recompute"), (
            f"{call.name} belongs to {forward.name} of phase {forward.phase}"
        )
        assert call.id in [c.id for c in forward.backward], f"{forward.name}.backward lacks {call.name}"
        assert forward.start_ns <= call.start_ns
        checked += 1
    assert checked, "no op ran backward"
    return checked


def is_accumulation(call: Any) -> bool:
    """Whether the call is an AccumulateGrad node or under one: it belongs to a parameter, not to a call."""
    while call is not None:
        if call.kind == "node" and "AccumulateGrad" in call.name:
            return True
        call = call.parent
    return False


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return g * 3 * x * x
