"""Products of matrices with the package's own gradients, and its convolutions."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .registering import kernel


@kernel("aten::matmul_backward")
def matmul_backward(grad: Tensor, a: Tensor, b: Tensor, mask: list[bool]) -> tuple[Tensor | None, Tensor | None]:
    """The package keeps matmul whole, for operands of any dimensions, and so its gradient."""
    rows = a.unsqueeze(0) if a.dim() == 1 else a
    columns = b.unsqueeze(-1) if b.dim() == 1 else b
    if a.dim() == 1:
        grad = grad.unsqueeze(-1 if b.dim() == 1 else -2)
    if b.dim() == 1:
        grad = grad.unsqueeze(-1)
    grad_a = (grad @ columns.mT).sum_to_size(rows.shape).view(a.shape) if mask[0] else None
    grad_b = (rows.mT @ grad).sum_to_size(columns.shape).view(b.shape) if mask[1] else None
    return grad_a, grad_b


@kernel("npu::matmul_double_backward")
def matmul_double_backward(
    grad_a: Tensor | None, grad_b: Tensor | None, grad_out: Tensor, a: Tensor, b: Tensor, mask: list[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    to_out = to_a = to_b = None
    if grad_a is not None:
        to_out = grad_a @ b
        to_b = matmul_backward(grad_out, grad_a, b, [False, True])[1]
    if grad_b is not None:
        product = a @ grad_b
        to_out = product if to_out is None else to_out + product
        to_a = matmul_backward(grad_out, a, grad_b, [True, False])[0]
    return to_out if mask[0] else None, to_a if mask[1] else None, to_b if mask[2] else None


@kernel("npu::npu_linear")
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.linear(x, weight, bias)


@kernel("npu::npu_linear_backward")
def linear_backward(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return grad @ weight, grad.flatten(0, -2).mT @ x.flatten(0, -2)


@kernel("npu::npu_bmmV2")
def bmm(x: Tensor, other: Tensor, output_sizes: list[int]) -> Tensor:
    return (x @ other).view(output_sizes) if output_sizes else x @ other


@kernel("npu::npu_conv2d", "npu::npu_convolution")
def convolution(x: Tensor, weight: Tensor, bias: Tensor | None, *geometry: Any) -> Tensor:
    stride, padding, dilation, groups = geometry
    return torch.ops.aten.convolution(x, weight, bias, stride, padding, dilation, False, [0] * len(stride), groups)


@kernel("aten::convolution_overrideable")
def convolution_overrideable(*args: Any) -> Tensor:
    return torch.ops.aten.convolution(*args)


@kernel("npu::npu_conv2d_backward", "npu::npu_convolution_backward")
def convolution_backward(x: Tensor, grad: Tensor, weight: Tensor, *geometry: Any) -> tuple[Tensor, Tensor, Tensor]:
    stride, padding, dilation, groups, mask = geometry
    shape = [weight.shape[0]] if mask[2] else None
    return torch.ops.aten.convolution_backward(
        grad, x, weight, shape, stride, padding, dilation, False, [0] * len(stride), groups, mask
    )
