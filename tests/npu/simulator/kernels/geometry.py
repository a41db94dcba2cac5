"""What the package does by kernels and PyTorch by views: here a copy of the view."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .registering import kernel


@kernel("npu::npu_broadcast")
def broadcast(x: Tensor, size: list[int]) -> Tensor:
    return x.expand(size).clone(memory_format=torch.contiguous_format)


@kernel("npu::npu_broadcast.out")
def broadcast_out(x: Tensor, size: list[int], *, out: Tensor) -> Tensor:
    return out.copy_(x.expand(size))


@kernel("npu::npu_transpose")
def transpose(x: Tensor, perm: list[int], require_contiguous: bool = True) -> Tensor:
    return x.permute(perm).clone(memory_format=torch.contiguous_format)


@kernel("npu::npu_transpose.out")
def transpose_out(x: Tensor, perm: list[int], require_contiguous: bool = True, *, out: Tensor) -> Tensor:
    return out.copy_(x.permute(perm))


@kernel("npu::npu_reshape")
def reshape(x: Tensor, shape: list[int], can_refresh: bool = False) -> Tensor:
    return x.reshape(shape).clone()


@kernel("npu::npu_slice")
def slice_of(x: Tensor, offsets: list[int], size: list[int]) -> Tensor:
    return x[tuple(slice(o, o + n) for o, n in zip(offsets, size, strict=True))].clone()


@kernel("npu::npu_slice.out")
def slice_out(x: Tensor, offsets: list[int], size: list[int], *, out: Tensor) -> Tensor:
    return out.copy_(x[tuple(slice(o, o + n) for o, n in zip(offsets, size, strict=True))])


@kernel("npu::npu_stride_copy")
def stride_copy(x: Tensor, shape: list[int], stride: list[int], storage_offset: int) -> Tensor:
    return x.as_strided(shape, stride, int(storage_offset)).clone()


@kernel("npu::npu_confusion_transpose")
def confusion_transpose(x: Tensor, perm: list[int], shape: list[int], transpose_first: bool) -> Tensor:
    return x.permute(perm).reshape(shape).clone() if transpose_first else x.view(shape).permute(perm).contiguous()


@kernel("npu::npu_confusion_transpose_backward")
def confusion_transpose_backward(grad: Tensor, perm: list[int], shape: list[int], transpose_first: bool) -> Tensor:
    back = [perm.index(i) for i in range(len(perm))]
    if transpose_first:
        return grad.reshape([shape[i] for i in perm]).permute(back).contiguous()
    return grad.permute(back).reshape(shape).clone()


@kernel("npu::repeat_interleave_backward_int")
def repeat_interleave_backward_int(grad: Tensor, x: Tensor, repeats: int, dim: int | None = None) -> Tensor:
    if dim is None:
        return grad.view(-1, repeats).sum(-1).view(x.shape)
    return grad.unflatten(dim, (x.shape[dim], repeats)).sum(dim % x.dim() + 1)


@kernel("npu::repeat_interleave_backward_tensor")
def repeat_interleave_backward_tensor(grad: Tensor, x: Tensor, repeats: Tensor, dim: int | None = None) -> Tensor:
    along = 0 if dim is None else dim % x.dim()
    shape = [x.numel()] if dim is None else list(x.shape)
    index = torch.repeat_interleave(repeats.expand(shape[along]).long())
    return grad.new_zeros(shape).index_add_(along, index, grad).view(x.shape)


@kernel("npu::npu_gather_backward")
def gather_backward(grad: Tensor, size: list[int], dim: int, index: Tensor, sparse_grad: bool) -> Tensor:
    return grad.new_zeros(size).scatter_add_(dim, index, grad) if math.prod(size) else grad.new_zeros(size)


@kernel("aten::_copy_from_and_resize")
def copy_from_and_resize(x: Tensor, to: Tensor) -> Tensor:
    """Bring results back that the package had the CPU compute, for want of a kernel of the device's."""
    return to.resize_(x.shape).copy_(x)
