"""Norms that are one op."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def rms_norm(x: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    """Return the result and the reciprocal of the root mean square."""
    rstd = torch.rsqrt(x.square().mean(_normed(x, gamma), keepdim=True) + epsilon)
    return x * rstd * gamma, rstd


def rms_norm_backward(dy: Tensor, x: Tensor, gamma: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients to x and gamma."""
    normed, scaled = x * rstd, dy * gamma
    dx = (scaled - normed * (scaled * normed).mean(_normed(x, gamma), keepdim=True)) * rstd
    return dx, (dy * normed).sum_to_size(gamma.shape)


def add_rms_norm(x: Tensor, other: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor, Tensor]:
    """Return the norm of a sum, what it kept, and the sum."""
    added = x + other
    return *rms_norm(added, gamma, epsilon), added


def layer_norm(
    x: Tensor, shape: list[int], weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Return the result alone."""
    return torch.nn.functional.layer_norm(x, shape, weight, bias, eps)


def layer_norm_grad(grad: Tensor, x: Tensor, shape: list[int], *given: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients to x, weight and bias."""
    found: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.native_layer_norm_backward(grad, x, shape, *given, [True] * 3)
    return found


def _normed(x: Tensor, gamma: Tensor) -> list[int]:
    return list(range(x.dim() - gamma.dim(), x.dim()))


def batch_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    *numbers: Any,
) -> tuple[Tensor, ...]:
    """Return the result, mean, inverse deviation and an empty workspace; write the running statistics in training."""
    found = torch.native_batch_norm(x, weight, bias, running_mean, running_var, *numbers)
    return *found, x.new_empty(0, dtype=torch.uint8)


def batch_norm_backward(
    x: Tensor, grad: Tensor, weight: Tensor, running_mean: Tensor | None, running_var: Tensor | None, *kept: Any
) -> tuple[Tensor, ...]:
    """Return the gradients of input, weight and bias. cuDNN runs in training alone."""
    mean, inverse_deviation, epsilon = kept[:3]
    given = (grad, x, weight, running_mean, running_var, mean, inverse_deviation, True, epsilon, [True, True, True])
    found: tuple[Tensor, ...] = torch.ops.aten.native_batch_norm_backward(*given)
    return found
