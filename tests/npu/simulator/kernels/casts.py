"""Casts of dtype and of private format."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .registering import kernel

# The numbers of c10's ScalarType, which the package hands on where a schema has an int for a dtype.
_DTYPES = {
    0: torch.uint8, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.int64, 5: torch.float16, 6: torch.float32,
    7: torch.float64, 11: torch.bool, 15: torch.bfloat16,
}  # fmt: skip


def _dtype(number: Any) -> torch.dtype:
    return number if isinstance(number, torch.dtype) else _DTYPES[number]


@kernel("npu::npu_dtype_cast", "npu::_npu_dtype_cast")
def dtype_cast(x: Tensor, dtype: Any, input_dtype: int | None = None) -> Tensor:
    return torch.ops.aten._to_copy(x, dtype=_dtype(dtype))


@kernel("npu::npu_dtype_cast_backward", "npu::_npu_dtype_cast_backward")
def dtype_cast_backward(
    grad: Tensor, dtype: Any, grad_dtype: int | None = None, input_dtype: int | None = None
) -> Tensor:
    return torch.ops.aten._to_copy(grad, dtype=_dtype(dtype))


@kernel(
    "npu::npu_format_cast", "npu::_npu_format_cast", "npu::_npu_format_cast.aclnn", "npu::_npu_format_cast.input_dtype"
)
def format_cast(x: Tensor, acl_format: int, *_: Any, **__: Any) -> Tensor:
    """A copy in another private format; launcher/formats.cpp knows how each lies in memory."""
    if torch.ops.npu.get_npu_format(x) == acl_format:
        return x.detach()
    made = torch.ops.npu.empty_with_format(list(x.shape), dtype=x.dtype, device=x.device, acl_format=acl_format)
    return made.copy_(x)


@kernel("npu::npu_format_cast.Tensor")
def format_cast_like(x: Tensor, like: Tensor, **_: Any) -> Tensor:
    return format_cast(x, torch.ops.npu.get_npu_format(like))


@kernel("npu::npu_format_cast_.acl_format")
def format_cast_(x: Tensor, acl_format: int, **_: Any) -> Tensor:
    return x.set_(format_cast(x, acl_format))


@kernel("npu::npu_format_cast_")
def format_cast_like_(x: Tensor, like: Tensor, **_: Any) -> Tensor:
    return x.set_(format_cast_like(x, like))
