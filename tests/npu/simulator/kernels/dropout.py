"""Dropout: masks are drawn by the device's generator, eight of them in a byte where the package packs them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .registering import kernel

_OFFSETS_OF_A_CALL = 12


def drawn(device: torch.device) -> tuple[int, int]:
    """Take a seed and an offset from the device's generator."""
    generator = torch.npu.default_generators[device.index or 0]
    seed, offset = generator.initial_seed(), generator.get_offset()
    generator.set_offset(offset + _OFFSETS_OF_A_CALL)
    return seed, offset


def mask_of(shape: tuple[int, ...], keep_prob: float, seed: int, offset: int, device: torch.device) -> Tensor:
    """Return what to keep, the same for the same seed and offset."""
    generator = torch.Generator(device=device)
    generator.manual_seed(seed % 2**63)
    generator.set_offset(offset // 4 * 4)
    return torch.empty(shape, dtype=torch.bool, device=device).bernoulli_(keep_prob, generator=generator)


def _packed(mask: Tensor) -> Tensor:
    """Bits of a mask in bytes, as many as the device takes: rows of 128 bits."""
    count = math.ceil(mask.numel() / 128) * 128
    bits = torch.zeros(count, dtype=torch.uint8, device=mask.device)
    bits[: mask.numel()] = mask.reshape(-1)
    weights = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8).to(mask.device, non_blocking=True)
    return (bits.view(-1, 8) * weights).sum(1, dtype=torch.uint8)


def _unpacked(packed: Tensor, like: Tensor) -> Tensor:
    bits = torch.stack([packed.view(-1).bitwise_right_shift(i).bitwise_and(1) for i in range(8)], 1)
    return bits.reshape(-1)[: like.numel()].view(like.shape).to(like.dtype)


@kernel("npu::_npu_dropout")
def npu_dropout(x: Tensor, p: float) -> tuple[Tensor, Tensor]:
    mask = mask_of(tuple(x.shape), 1 - p, *drawn(x.device), x.device)
    return (x * mask / (1 - p) if p < 1 else torch.zeros_like(x)), _packed(mask)


@kernel("npu::npu_dropout_backward", "npu::npu_dropout_do_mask_backward")
def npu_dropout_backward(grad: Tensor, mask: Tensor, p: float) -> Tensor:
    return grad * _unpacked(mask, grad) / (1 - p) if p < 1 else torch.zeros_like(grad)


@kernel("npu::_npu_dropout_gen_mask.Tensor")
def gen_mask(
    x: Tensor, size: list[int], p: float, seed: int, offset: int, *, parallel: bool = True, sync: bool = False
) -> Tensor:
    return _packed(mask_of(tuple(size), 1 - p, seed, offset, x.device))


@kernel("npu::npu_dropout_do_mask")
def do_mask(x: Tensor, mask: Tensor, p: float) -> tuple[Tensor, Tensor]:
    return npu_dropout_backward(x, mask, p), mask


@kernel("aten::native_dropout")
def native_dropout(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    mask = mask_of(tuple(x.shape), 1 - p, *drawn(x.device), x.device)
    return (x * mask / (1 - p) if p < 1 else torch.zeros_like(x)), mask


@kernel("aten::native_dropout_backward")
def native_dropout_backward(grad: Tensor, mask: Tensor, scale: float) -> Tensor:
    return grad * mask.to(grad.dtype) * scale
