"""Faults as devices have them, each planted in one kernel of the simulated device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tests.npu.simulator.kernels.registering import Kernel, replaced


class Fault(NamedTuple):
    """What is wrong in a kernel, and what is to be named as the first cause."""

    kernel: str
    wrong: Callable[[Kernel], Kernel]
    op: str
    phase: str
    module: str
    line: str  # of the program, that called it
    steps: str = "0"


def _scaled_gradient(right: Kernel) -> Kernel:
    def wrong(*args: Any, **options: Any) -> Any:
        to_query, *others = right(*args, **options)
        return to_query * 1.02, *others

    return wrong


def _halves_swapped(right: Kernel) -> Kernel:
    return lambda x, dim=-1: right(torch.cat(x.chunk(2, dim)[::-1], dim), dim)


def _epsilon_ignored(right: Kernel) -> Kernel:
    return lambda x, gamma, epsilon=1e-6: right(x, gamma, 0.0)


def _half_precision(right: Kernel) -> Kernel:
    def wrong(x: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
        rstd = torch.rsqrt(x.half().square().mean(-1, keepdim=True).float() + epsilon)
        return x * rstd * gamma, rstd

    return wrong


def _row_of_garbage(right: Kernel) -> Kernel:
    def wrong(x: Tensor, *args: Any, **options: Any) -> Tensor:
        found: Tensor = right(x, *args, **options)
        found[..., 0, :] = 7
        return found

    return wrong


def _stale_statistics(right: Kernel) -> Kernel:
    """The forward is right; what it leaves for the backward is of its run before."""
    kept: list[Tensor] = []

    def wrong(*args: Any, **options: Any) -> tuple[Tensor, Tensor]:
        result, rstd = right(*args, **options)
        kept.append(rstd.clone())
        return result, kept.pop(0) if len(kept) > 1 else rstd

    return wrong


def _one_of_the_moments_off(right: Kernel) -> Kernel:
    def wrong(*args: Any, beta2: float, **options: Any) -> Any:
        return right(*args, beta2=beta2 * 0.99, **options)

    return wrong


FAULTS: dict[str, Fault] = {
    "wrong scale in the fused attention's backward": Fault(
        "npu::npu_fusion_attention_grad", _scaled_gradient,
        "npu::npu_fusion_attention_grad", "backward", "layers.0.attention", "npu_fusion_attention(",
    ),
    "swiglu swaps halves": Fault(
        "npu::npu_swiglu", _halves_swapped, "npu::npu_swiglu", "forward", "layers.0.mlp", "npu_swiglu(",
    ),
    "epsilon ignored": Fault(
        "npu::npu_rms_norm", _epsilon_ignored, "npu::npu_rms_norm", "forward", "layers.0.norm1", "npu_rms_norm(",
    ),
    "reduction in half precision": Fault(
        "npu::npu_rms_norm", _half_precision, "npu::npu_rms_norm", "forward", "layers.0.norm1", "npu_rms_norm(",
    ),
    "row of garbage": Fault(
        "npu::npu_rotary_mul", _row_of_garbage,
        "npu::npu_rotary_mul", "forward", "layers.0.attention", "npu_rotary_mul(",
    ),
    "stale saved statistics": Fault(
        "npu::npu_rms_norm", _stale_statistics, "npu::npu_rms_norm", "forward", "layers.0.norm2", "npu_rms_norm(",
    ),
    "beta2 off in the fused AdamW": Fault(
        "aten::_fused_adamw_", _one_of_the_moments_off,
        "aten::_fused_adamw_", "optimizer", "", "optimizer.step()", steps="0-1",
    ),
}  # fmt: skip


@contextmanager
def planted(fault: Fault) -> Iterator[None]:
    """Let the kernel be wrong meanwhile."""
    with _wrong_op(fault) if fault.kernel.startswith("aten::") else replaced(fault.kernel, fault.wrong):
        yield


@contextmanager
def _wrong_op(fault: Fault) -> Iterator[None]:
    """Put a kernel in front of the device's own of an aten op."""
    namespace, _, name = fault.kernel.partition("::")
    op = getattr(getattr(torch.ops, namespace), name).default
    library = torch.library.Library(namespace, "IMPL")
    own = torch.library.get_kernel(op, "PrivateUse1")

    def right(*args: Any, **options: Any) -> Any:
        return own.call_boxed(torch._C.DispatchKeySet(torch._C.DispatchKey.PrivateUse1), *args, **options)

    library.impl(name, fault.wrong(right), "PrivateUse1", allow_override=True)
    try:
        yield
    finally:
        library._destroy()
