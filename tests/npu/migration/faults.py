"""Faults as devices have them, each planted in one kernel of the simulated device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tests.npu.migration.models import FRACTAL_NZ
from tests.npu.simulator.device import held
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
    program: str = "llama"


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


def _no_record_stream(right: Kernel) -> Kernel:
    """A kernel with a stream of its own, which is late: its workspace is given out again before it was read."""
    side: list[Any] = []

    def wrong(x: Tensor, dim: int = -1) -> Tensor:
        npu: Any = torch.get_device_module("npu")
        side.append(side[0] if side else npu.Stream())
        program = npu.current_stream()
        workspace = x.clone()
        side[0].wait_stream(program)
        with held(side[0]):
            with npu.stream(side[0]):
                found: Tensor = right(workspace, dim)
            place = workspace.data_ptr()
            del workspace  # without workspace.record_stream(side[0])
            others: list[Tensor] = []  # until one gets its memory: others of that size may be free too
            while len(others) < 64 and place not in {other.data_ptr() for other in others}:
                others.append(torch.zeros_like(x))
            program.synchronize()
        program.wait_stream(side[0])
        found.record_stream(program)
        return found

    return wrong


def _padding_dropped(right: Kernel) -> Kernel:
    """Rows and columns of fractals follow each other as if the tensor's were multiples of 16."""

    def wrong(x: Tensor, acl_format: int, *args: Any, **options: Any) -> Any:
        if acl_format != FRACTAL_NZ:
            return right(x, acl_format, *args, **options)
        (rows, columns), fractals = x.shape[-2:], -(-x.shape[-1] // 16)
        padded = -(-rows // 16) * 16
        packed = torch.cat([part.flatten(-2) for part in x.split(16, -1)], -1)
        memory = torch.nn.functional.pad(packed, (0, fractals * padded * 16 - packed.shape[-1]))
        memory = memory.unflatten(-1, (fractals, padded, 16))
        return right(memory[..., :rows, :].transpose(-3, -2).flatten(-2)[..., :columns], acl_format, *args, **options)

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
    "missing record_stream": Fault(
        "npu::npu_swiglu", _no_record_stream, "npu::npu_swiglu", "forward", "layers.0.mlp", "npu_swiglu(",
    ),
    "an NZ cast drops the padding": Fault(
        "npu::npu_format_cast", _padding_dropped,
        "npu::npu_format_cast", "forward", "layers.0.attention", "npu_format_cast(", program="llama in FRACTAL_NZ",
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
