"""Batch norm as cuDNN has it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


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
    x: Tensor,
    grad: Tensor,
    weight: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    *kept: Any,
) -> tuple[Tensor, ...]:
    """Return the gradients of input, weight and bias. cuDNN runs in training alone."""
    mean, inverse_deviation, epsilon = kept[:3]
    given = (grad, x, weight, running_mean, running_var, mean, inverse_deviation, True, epsilon, [True, True, True])
    found: tuple[Tensor, ...] = torch.ops.aten.native_batch_norm_backward(*given)
    return found
