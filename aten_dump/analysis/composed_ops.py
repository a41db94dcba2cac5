"""Ops that only some devices have as one op, such as NPUs or GPUs, composed of others for the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from ..store.op_names import read_op_name
from ..torch_names import has_kernel_for
from .fused_ops.schemas import FusedOp
from .fused_references import FUSED, IN_FLOAT64, ON_GPU


def composed(op: Any, device: torch.device) -> Callable[..., Any]:
    """Return the op, or what computes the same on a device that has no kernel for it."""
    if op.name() in IN_FLOAT64 and device.type == "cpu":
        return IN_FLOAT64[op.name()]
    own = _COMPOSED.get(op.name())
    if own is not None and isinstance(op, FusedOp):
        return own
    found: Callable[..., Any] = op
    return found if own is None or device.type != "cpu" or has_kernel_for(op.name(), "CPU") else own


def has_reference(op: str) -> bool:
    """Return True if there is something here that computes what an op does, and draws no random numbers."""
    parts = read_op_name(op)
    return op in _COMPOSED or parts.without_overload in _COMPOSED


def _matmul_backward(grad: Tensor, one: Tensor, other: Tensor, mask: list[bool]) -> tuple[Tensor | None, ...]:
    return _gradients(torch.matmul, grad, (one, other), mask)


def _linear_backward(x: Tensor, grad: Tensor, weight: Tensor, output_mask: list[bool]) -> tuple[Tensor | None, ...]:
    bias = weight.new_zeros(weight.shape[:1])
    return _gradients(torch.nn.functional.linear, grad, (x, weight, bias), output_mask)


def _gradients(
    forward: Callable[..., Tensor], grad: Tensor, given: tuple[Tensor, ...], mask: list[bool]
) -> tuple[Tensor | None, ...]:
    with torch.enable_grad():
        leaves = [tensor.detach().requires_grad_(wanted) for tensor, wanted in zip(given, mask, strict=True)]
        result = forward(*leaves)
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    found = iter(torch.autograd.grad(result, wanted, grad) if wanted else ())
    return tuple(next(found) if leaf.requires_grad else None for leaf in leaves)


_COMPOSED: Final[dict[str, Callable[..., Any]]] = {
    "aten::matmul_backward": _matmul_backward,
    "aten::linear_backward": _linear_backward,
    **FUSED,
    **ON_GPU,
}
