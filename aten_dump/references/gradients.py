"""Gradients of losses and of copies that are ops of their own on NPUs, and a step of AdamW."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

_MEAN: Final = 1  # reduction of a loss: 0 none, 1 mean, 2 sum
_STEP: Final = (
    "beta1_power", "beta2_power", "lr", "weight_decay", "beta1", "beta2", "epsilon", "grad", "max_grad_norm", "amsgrad",
    "maximize",
)  # fmt: skip


def gather_backward(grad: Tensor, size: list[int], dim: int, index: Tensor, sparse_grad: bool) -> Tensor:
    """Send gradients back to where `gather` read."""
    return grad.new_zeros(size).scatter_add(dim, index, grad)


def repeat_interleave_backward_int(grad: Tensor, x: Tensor, repeats: int, dim: int | None = None) -> Tensor:
    """Add up the gradients of copies."""
    if dim is None:
        return grad.reshape(-1, repeats).sum(-1).view(x.shape)
    found: Tensor = grad.unflatten(dim, (x.shape[dim], repeats)).sum(dim % x.dim() + 1)
    return found


def repeat_interleave_backward_tensor(grad: Tensor, x: Tensor, repeats: Tensor, dim: int | None = None) -> Tensor:
    """Add up the gradients of copies, each element having its own number of them."""
    along, shape = (0, [x.numel()]) if dim is None else (dim % x.dim(), list(x.shape))
    index = torch.repeat_interleave(repeats.expand(shape[along]).long())
    return grad.new_zeros(shape).index_add(along, index, grad).view(x.shape)


def binary_cross_entropy_backward(grad: Tensor, x: Tensor, target: Tensor, *how: Any) -> Tensor:
    """The gradient to the logits."""
    weight, pos_weight, reduction = how
    of_ones = target if pos_weight is None else pos_weight * target
    found = ((of_ones + 1 - target) * x.sigmoid() - of_ones) * grad
    return _mean(found if weight is None else found * weight, x.numel(), reduction)


def l1_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int) -> Tensor:
    """The gradient to the input."""
    return _mean(torch.sign(x - target) * grad, x.numel(), reduction)


def kl_div_backward(
    grad: Tensor, x: Tensor, target: Tensor, reduction: int = _MEAN, *, log_target: bool = False
) -> Tensor:
    """The gradient to the input."""
    found = -(target.exp() if log_target else target.clamp_min(0)) * grad
    return _mean(found.expand(torch.broadcast_shapes(x.shape, target.shape)), x.numel(), reduction).sum_to_size(x.shape)


def _mean(grad: Tensor, count: int, reduction: int) -> Tensor:
    return grad / count if reduction == _MEAN else grad


def apply_adam_w(*args: Any, out: list[Tensor], **options: Any) -> tuple[Tensor, ...]:
    """Write parameter and moments in place; the powers are those of the steps before this one."""
    given = dict(zip(_STEP, args, strict=False)) | options
    if given.get("amsgrad") or given.get("maximize"):
        raise NotImplementedError("amsgrad or maximize")
    parameter, first, second = out
    grad = given["grad"].to(first.dtype)
    first.lerp_(grad, 1 - given["beta1"])
    second.mul_(given["beta2"]).addcmul_(grad, grad, value=1 - given["beta2"])
    corrected = (second / (1 - given["beta2_power"] * given["beta2"])).sqrt() + given["epsilon"]
    step = first / (1 - given["beta1_power"] * given["beta1"]) / corrected
    parameter.mul_(1 - given["lr"] * given["weight_decay"]).sub_((step * given["lr"]).to(parameter.dtype))
    return parameter, first, second


def unscale_(gradients: list[Tensor], found_inf: Tensor, inverse: Tensor) -> None:
    """Multiply each gradient by the inverse of the scale; torch's own kernel takes none in float64."""
    for gradient in gradients:
        if not gradient.isfinite().all():
            found_inf.fill_(1)
        gradient.mul_(inverse)


def update_scale_(scale: Tensor, tracker: Tensor, found_inf: Tensor, *settings: float) -> Tensor:
    """Lower the scale after an overflow, raise it after so many steps without one."""
    growth, backoff, interval = settings
    if found_inf.item():
        scale.mul_(backoff)
        tracker.zero_()
    elif tracker.item() + 1 < interval:
        tracker.add_(1)
    else:
        scale.mul_(growth)
        tracker.zero_()
    return scale
