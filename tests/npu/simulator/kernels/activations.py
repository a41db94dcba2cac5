"""Activations that the package fuses."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .registering import kernel

_FAST = 1.702


@kernel("npu::npu_swiglu")
def swiglu(x: Tensor, dim: int = -1) -> Tensor:
    """silu(a) * b for the halves a and b of x."""
    gate, up = x.float().chunk(2, dim)
    return (F.silu(gate) * up).to(x.dtype)


@kernel("npu::npu_swiglu_backward")
def swiglu_backward(grad: Tensor, x: Tensor, dim: int = -1) -> Tensor:
    gate, up = x.float().chunk(2, dim)
    wide = grad.float()
    to_gate = torch.ops.aten.silu_backward(wide * up, gate)
    return torch.cat((to_gate, wide * F.silu(gate)), dim).to(x.dtype)


@kernel("npu::npu_gelu")
def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    return torch.ops.aten.gelu(x, approximate=approximate)


@kernel("npu::npu_gelu_backward")
def gelu_backward(grad: Tensor, x: Tensor, *, approximate: str = "none") -> Tensor:
    return torch.ops.aten.gelu_backward(grad, x, approximate=approximate)


@kernel("npu::fast_gelu", "npu::npu_fast_gelu")
def fast_gelu(x: Tensor) -> Tensor:
    """x * sigmoid(1.702 x)."""
    wide = x.float()
    return (wide * torch.sigmoid(_FAST * wide)).to(x.dtype)


@kernel("npu::npu_fast_gelu_backward")
def fast_gelu_backward(grad: Tensor, x: Tensor) -> Tensor:
    wide = x.float()
    gate = torch.sigmoid(_FAST * wide)
    return (grad.float() * (gate + _FAST * wide * gate * (1 - gate))).to(x.dtype)


@kernel("npu::npu_silu")
def silu(x: Tensor) -> Tensor:
    return F.silu(x)


@kernel("npu::npu_silu_")
def silu_(x: Tensor) -> Tensor:
    return F.silu(x, inplace=True)


@kernel("npu::npu_silu_backward")
def silu_backward(grad: Tensor, x: Tensor, result: Tensor) -> Tensor:
    return torch.ops.aten.silu_backward(grad, x)


@kernel("npu::npu_mish")
def mish(x: Tensor) -> Tensor:
    return F.mish(x)


@kernel("npu::npu_mish_backward")
def mish_backward(grad: Tensor, x: Tensor) -> Tensor:
    return torch.ops.aten.mish_backward(grad, x)
