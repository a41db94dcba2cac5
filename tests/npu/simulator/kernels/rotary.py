"""Rotary position embedding."""

from __future__ import annotations

import torch
from torch import Tensor

from .registering import kernel


def _rotated(x: Tensor, mode: str) -> Tensor:
    if mode == "half":
        first, second = x.chunk(2, -1)
        return torch.cat((-second, first), -1)
    return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)


def _rotated_back(x: Tensor, mode: str) -> Tensor:
    return -_rotated(x, mode)  # a quarter turn's transpose is the turn the other way


@kernel("npu::npu_rotary_mul")
def rotary_mul(x: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half", rotate: Tensor | None = None) -> Tensor:
    """x * r1 + rotated(x) * r2; r1 and r2 are cosines and sines."""
    wide = x.float()
    turned = _rotated(wide, rotary_mode) if rotate is None else wide @ rotate.float()
    return (wide * r1.float() + turned * r2.float()).to(x.dtype)


@kernel("npu::npu_rotary_mul_backward")
def rotary_mul_backward(
    grad: Tensor, x: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half"
) -> tuple[Tensor, Tensor, Tensor]:
    wide, given = grad.float(), x.float()
    dx = wide * r1.float() + _rotated_back(wide * r2.float(), rotary_mode)
    dr1 = (wide * given).sum_to_size(r1.shape)
    dr2 = (wide * _rotated(given, rotary_mode)).sum_to_size(r2.shape)
    return dx.to(x.dtype), dr1.to(r1.dtype), dr2.to(r2.dtype)


@kernel("npu::npu_apply_rotary_pos_emb")
def apply_rotary_pos_emb(
    query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, layout: str = "BSND", rotary_mode: str = "half"
) -> tuple[Tensor, Tensor]:
    return rotary_mul(query, cos, sin, rotary_mode), rotary_mul(key, cos, sin, rotary_mode)
