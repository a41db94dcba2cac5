"""Gradients of losses that the package has as ops of its own."""

from __future__ import annotations

import torch
from torch import Tensor

from .registering import kernel


def _mean(grad: Tensor, count: int, reduction: int) -> Tensor:
    return grad / count if reduction == 1 else grad


@kernel("npu::l1_loss_backward")
def l1_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int) -> Tensor:
    apart = x - target
    return _mean(torch.sgn(apart) * grad, apart.numel(), reduction)


@kernel("npu::kl_div_backward")
def kl_div_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int = 1, *, log_target: bool = False) -> Tensor:
    toward = -(target.exp() if log_target else torch.where(target > 0, target, 0.0)) * grad
    return _mean(toward.expand(torch.broadcast_shapes(x.shape, target.shape)), x.numel(), reduction).sum_to_size(
        x.shape
    )


@kernel("npu::kl_div_target_backward")
def kl_div_target_backward(
    grad: Tensor, x: Tensor, target: Tensor, reduction: int = 1, *, log_target: bool = False
) -> Tensor:
    if log_target:
        toward = grad * target.exp() * (target + 1 - x)
    else:
        toward = torch.where(target > 0, grad * (target.log() + 1 - x), 0.0)
    return _mean(toward, torch.broadcast_shapes(x.shape, target.shape).numel(), reduction).sum_to_size(target.shape)


@kernel("npu::npu_binary_cross_entropy_with_logits_backward")
def binary_cross_entropy_with_logits_backward(
    grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None, pos_weight: Tensor | None, reduction: int
) -> Tensor:
    if pos_weight is None:
        toward = (torch.sigmoid(x) - target) * grad
    else:
        scaled = pos_weight * target
        toward = ((scaled + 1 - target) * torch.sigmoid(x) - scaled) * grad
    return _mean(toward if weight is None else toward * weight, x.numel(), reduction)
