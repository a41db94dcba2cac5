"""AdamW in one kernel."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .registering import kernel


@kernel("npu::npu_apply_adam_w.out")
def adam_w(
    beta1_power: float, beta2_power: float, lr: float, weight_decay: float, beta1: float, beta2: float, epsilon: float,
    grad: Tensor, max_grad_norm: Tensor | None, amsgrad: bool | None, maximize: bool | None, *, out: list[Tensor],
) -> Any:  # fmt: skip
    """Update parameter, first and second moment in place; the powers are those of the steps before this one."""
    parameter, first, second = out
    grad = (-grad if maximize else grad).to(first.dtype)
    first.mul_(beta1).add_(grad, alpha=1 - beta1)
    second.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
    unbiased = second / (1 - beta2_power * beta2)
    if amsgrad and max_grad_norm is not None:
        unbiased = max_grad_norm.copy_(max_grad_norm.maximum(unbiased))
    step = first / (1 - beta1_power * beta1) / (unbiased.sqrt() + epsilon)
    parameter.mul_(1 - lr * weight_decay).sub_((step * lr).to(parameter.dtype))
    return parameter, first, second
