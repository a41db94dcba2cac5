"""Normalisations that the package fuses."""

from __future__ import annotations

import torch
from torch import Tensor

from .registering import kernel


def _leading(x: Tensor, gamma: Tensor) -> list[int]:
    return list(range(x.dim() - gamma.dim()))


@kernel("npu::npu_rms_norm")
def rms_norm(x: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    """x * rstd * gamma over the trailing dimensions of gamma; also rstd, in float32."""
    wide = x.float()
    over = list(range(x.dim() - gamma.dim(), x.dim()))
    rstd = torch.rsqrt(wide.square().mean(over, keepdim=True) + epsilon)
    return (wide * rstd * gamma.float()).to(x.dtype), rstd


@kernel("npu::npu_rms_norm_backward")
def rms_norm_backward(dy: Tensor, x: Tensor, gamma: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:
    wide = x.float()
    over = list(range(x.dim() - gamma.dim(), x.dim()))
    normed, scaled = wide * rstd, dy.float() * gamma.float()
    dx = (scaled - normed * (scaled * normed).mean(over, keepdim=True)) * rstd
    leading = _leading(x, gamma)
    dgamma = dy.float() * normed
    return dx.to(x.dtype), dgamma.sum(leading) if leading else dgamma


@kernel("npu::npu_add_rms_norm")
def add_rms_norm(x: Tensor, residual: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor, Tensor]:
    added = x + residual
    return (*rms_norm(added, gamma, epsilon), added)


@kernel("npu::npu_layer_norm_eval")
def layer_norm_eval(
    x: Tensor, shape: list[int], weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    return torch.ops.aten.native_layer_norm(x, shape, weight, bias, eps)[0]


@kernel("npu::npu_layernorm_grad")
def layer_norm_grad(
    grad: Tensor, x: Tensor, shape: list[int], mean: Tensor, rstd: Tensor, weight: Tensor | None, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.ops.aten.native_layer_norm_backward(grad, x, shape, mean, rstd, weight, bias, [True] * 3)


@kernel("npu::npu_renorm_backward")
def renorm_backward(grad: Tensor, x: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """Slices of a norm above `maxnorm` are scaled to it."""
    over = [i for i in range(x.dim()) if i != dim % x.dim()]
    norm = torch.linalg.vector_norm(x, p, over, keepdim=True)
    toward_norm = (x * grad).sum(over, keepdim=True) * (x / norm).abs().pow(p - 1) * x.sgn() if p != 1 else None
    if toward_norm is None:
        toward_norm = (x * grad).sum(over, keepdim=True) * x.sgn()
    inverse = 1 / (norm + 1e-7)
    return torch.where(norm > maxnorm, maxnorm * (grad - toward_norm * inverse) * inverse, grad)
