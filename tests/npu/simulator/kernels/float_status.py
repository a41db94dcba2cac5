"""The overflow register, and what loss scaling asks of it."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from .registering import kernel

_FIRST_WITH_INFINITIES = 220  # version of Ascend910B1: from it on the register is read into integers of their own


def _stream_of(x: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(torch.npu.current_stream(x.device).npu_stream)


def _library() -> ctypes.CDLL:
    from ..device import launcher

    return launcher()


@kernel("npu::npu_alloc_float_status")
def alloc_float_status(x: Tensor) -> Tensor:
    return torch.zeros(8, device=x.device)


@kernel("npu::npu_get_float_status")
def get_float_status(x: Tensor, mode: int = 0) -> Tensor:
    is_new = torch.npu.get_soc_version() >= _FIRST_WITH_INFINITIES
    to = torch.empty(8, dtype=torch.int32, device=x.device) if is_new else x
    _library().sim_read_overflow_register(
        _stream_of(x), x.device.index, ctypes.c_void_p(to.data_ptr()), int(not is_new)
    )
    return to


@kernel("npu::npu_clear_float_status")
def clear_float_status(x: Tensor, mode: int = 0) -> Tensor:
    _library().sim_clear_overflow_register(_stream_of(x), x.device.index)
    return torch.zeros_like(x)


@kernel("npu::_amp_foreach_non_finite_check")
def non_finite_check(grads: list[Tensor]) -> bool:
    """Where the device saturates, ask the register, and clear it if it was set, as the package does."""
    if not _library().sim_is_saturating(grads[0].device.index):
        return any(not torch.isfinite(grad).all().item() for grad in grads)
    status = torch.zeros(8, device=grads[0].device)
    is_set = bool(get_float_status(status)[0].item())
    if is_set:
        clear_float_status(status)
    return is_set


@kernel("aten::_amp_foreach_non_finite_check_and_unscale_")
def non_finite_check_and_unscale(grads: list[Tensor], found_inf: Tensor, inv_scale: Tensor) -> None:
    if _library().sim_is_saturating(found_inf.device.index):
        found_inf.add_(int(non_finite_check(grads)))
    for grad in grads:
        found_inf.copy_(torch.maximum(found_inf, (~torch.isfinite(grad)).any().float()))
        grad.mul_(inv_scale)
