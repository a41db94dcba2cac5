"""The overflow register, and what loss scaling asks of it."""

from __future__ import annotations

import torch
from torch import Tensor

from .registering import kernel


def _library() -> object:
    from ..device import launcher

    return launcher()


@kernel("npu::npu_alloc_float_status")
def alloc_float_status(x: Tensor) -> Tensor:
    return torch.zeros(8, device=x.device)


@kernel("npu::npu_get_float_status")
def get_float_status(x: Tensor, mode: int = 0) -> Tensor:
    """Write the register into the first element; what is in the stream before comes first."""
    torch.npu.current_stream(x.device).synchronize()
    x[0] = float(_library().sim_overflow_register(x.device.index))
    return x


@kernel("npu::npu_clear_float_status")
def clear_float_status(x: Tensor, mode: int = 0) -> Tensor:
    torch.npu.current_stream(x.device).synchronize()
    _library().sim_clear_overflow_register(x.device.index)
    return torch.zeros_like(x)


@kernel("npu::_amp_foreach_non_finite_check")
def non_finite_check(grads: list[Tensor]) -> bool:
    return any(not torch.isfinite(grad).all().item() for grad in grads)
