"""Devices: the one place that may name a device package.

Importing this module imports neither torch nor a device package.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch

_AUTOLOAD: Final = "TORCH_DEVICE_BACKEND_AUTOLOAD"
# Packages that torch loads by itself when they are installed, and the driver library without which that fails.
_DRIVERS: Final = {"torch_npu": "libascendcl.so"}
# What decides on which devices a program runs and how they compute, as far as variables say it.
_VARIABLES: Final = (
    "ASCEND_RT_VISIBLE_DEVICES",
    "CUDA_VISIBLE_DEVICES",
    "CUBLAS_WORKSPACE_CONFIG",
    "HCCL_DETERMINISTIC",
    "INF_NAN_MODE_ENABLE",
    "INF_NAN_MODE_FORCE_DISABLE",
    "NVIDIA_TF32_OVERRIDE",
)
_NPU_OPTIONS: Final = MappingProxyType(
    {
        "allow_internal_format": "ALLOW_INTERNAL_FORMAT",
        "cube_math_type": "CUBE_MATH_TYPE",
        "precision_mode": "ACL_PRECISION_MODE",
        "op_select_impl_mode": "ACL_OP_SELECT_IMPL_MODE",
        "jit_compile": "jitCompile",
    }
)


_GRAPH_ROOMS: Final = ("accelerator", "cuda", "npu", "xpu")  # modules of torch's
_GRAPH_METHODS: Final = ("capture_begin", "capture_end", "replay")

# The orders in which an NPU may keep the elements of a tensor in memory, padded; the others are plain.
_PRIVATE_FORMATS: Final = MappingProxyType(
    {
        3: "NC1HWC0",
        4: "FRACTAL_Z",
        12: "NC1HWC0_C04",
        29: "FRACTAL_NZ",
        32: "NDC1HWC0",
        33: "FRACTAL_Z_3D",
        50: "FRACTAL_NZ_C0_16",
        51: "FRACTAL_NZ_C0_32",
        52: "FRACTAL_NZ_C0_2",
        53: "FRACTAL_NZ_C0_4",
        54: "FRACTAL_NZ_C0_8",
    }
)
HAVE_PRIVATE_FORMATS: Final = frozenset(("npu",))  # types of devices
_ND: Final = 2


def keep_torch_importable() -> None:
    """Let ``import torch`` succeed where a device package is installed but its driver is not.

    torch loads installed device packages on import, and fails with them: a dump could then not be read on a log-in node
    or a laptop. Nothing is changed where torch is loaded already, the driver is there, or the user has decided.
    """
    if "torch" in sys.modules or _AUTOLOAD in os.environ:
        return
    for package, library in _DRIVERS.items():
        if importlib.util.find_spec(package) is not None and not _loads(library):
            os.environ[_AUTOLOAD] = "0"


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def accelerator() -> torch.device | None:
    """Return the accelerator that torch computes on; None where there is none, whatever torch was built for."""
    import torch

    found = getattr(torch, "accelerator", None)
    # Builds for a device raise when asked for it on a machine without one, or name it (2.6, and newer).
    return found.current_accelerator() if found is not None and found.is_available() else None


def device_in_use() -> torch.device | None:
    """Return the accelerator that this thread computes on; None where the program has not begun to use one."""
    import torch

    device = accelerator()
    if device is None or not getattr(torch.get_device_module(device), "is_initialized", bool)():
        return None
    return torch.device(device.type, torch.accelerator.current_device_index())


def graph_classes() -> list[type]:
    """Return the classes of torch whose objects capture what a device is asked to do, and replay it."""
    import torch

    rooms = [vars(room) for name in _GRAPH_ROOMS if (room := getattr(torch, name, None)) is not None]
    found = {id(kind): kind for room in rooms for kind in room.values() if isinstance(kind, type)}
    return [kind for kind in found.values() if all(hasattr(kind, name) for name in _GRAPH_METHODS)]


def is_capturing() -> bool:
    """Return True if the current stream of a device in use is being captured into a graph."""
    import torch

    device = device_in_use()
    ask = None if device is None else getattr(torch.get_device_module(device), "is_current_stream_capturing", None)
    return bool(ask is not None and ask())


def made_current(device: torch.device) -> AbstractContextManager[None]:
    """Make a device the thread's current one meanwhile; does nothing to one that is, or that has no index."""
    import torch

    if device.index is None or device.index == (before := torch.accelerator.current_device_index()):
        return nullcontext()
    return _switched(before, device.index)


@contextmanager
def _switched(before: int, index: int) -> Iterator[None]:
    import torch

    torch.accelerator.set_device_index(index)
    try:
        yield
    finally:
        torch.accelerator.set_device_index(before)


def private_format(tensor: torch.Tensor) -> str | None:
    """Return the format in which a tensor's elements lie in memory where that is a device's own; None for strides.

    Call inside `quiet()`.
    """
    import torch

    from ..torch_names import without_bits

    ask = getattr(torch.ops.npu, "get_npu_format", None)
    # To apply a bit, for an op that does not know them, takes a copy of all elements.
    return None if ask is None else _PRIVATE_FORMATS.get(ask(without_bits(tensor)))


def in_plain_format(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy, on the device, of a tensor in a private format, whose elements lie as its strides say.

    Call inside `quiet()`.
    """
    import torch

    plain: torch.Tensor = torch.ops.npu.npu_format_cast(tensor, _ND)
    return plain


@functools.cache
def saturates(device_type: str) -> bool:
    """Return True if a device in use gives the largest finite number where others give Inf, and sets a register."""
    import torch

    if device_type != "npu":
        return False
    return _reported(getattr(torch.get_device_module("npu").utils, "is_support_inf_nan", None)) is False


def overflow_status(device: torch.device) -> torch.Tensor:
    """Let a kernel read the overflow register of a device that saturates, and leave it as it is.

    Call inside `quiet()`.

    Returns:
        Eight numbers on the device; the first is 0 where no overflow has happened since the register was cleared.
    """
    import torch

    status: torch.Tensor = torch.ops.npu.npu_get_float_status(torch.zeros(8, device=device))
    return status


def private_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy, on the device, of the memory of a tensor in a private format, in one dimension as it lies.

    Call inside `quiet()`.
    """
    import torch

    count = torch.ops.npu.get_storage_size(tensor)
    whole = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    whole.set_(tensor.untyped_storage(), 0, (count,), (1,))
    copied: torch.Tensor = torch.empty(count, dtype=tensor.dtype, device=tensor.device)
    torch.ops.npu.copy_memory_(copied, whole, True)
    return copied


def private_shape(tensor: torch.Tensor) -> list[int]:
    """Return the shape in which the memory of a tensor in a private format is laid out, padding included.

    Of a view, and in formats whose shape is not known here, that is its number of elements. Call inside `quiet()`.
    """
    import torch

    count: int = torch.ops.npu.get_storage_size(tensor)
    known = _PRIVATE_SHAPES.get(private_format(tensor) or "")
    shape = known(list(tensor.shape)) if known is not None and tensor.is_contiguous() else []
    return shape if shape and math.prod(shape) == count else [count]


def _blocks(length: int) -> int:
    return -(-length // _BLOCK)


def _of_nz(shape: list[int]) -> list[int]:
    return [*shape[:-2], _blocks(shape[-1]), _blocks(shape[-2]), _BLOCK, _BLOCK] if len(shape) > 1 else []


def _of_5hd(shape: list[int]) -> list[int]:
    return [shape[0], _blocks(shape[1]), *shape[2:], _BLOCK] if len(shape) == 4 else []


def _of_z(shape: list[int]) -> list[int]:
    return [_blocks(shape[1]) * shape[2] * shape[3], _blocks(shape[0]), _BLOCK, _BLOCK] if len(shape) == 4 else []


_BLOCK: Final = 16  # elements of a fractal's side, and of the channels that lie together
_PRIVATE_SHAPES: Final = MappingProxyType({"FRACTAL_NZ": _of_nz, "NC1HWC0": _of_5hd, "FRACTAL_Z": _of_z})


def has_float64(device_type: str) -> bool:
    """Return True if a device sums up float64 at a speed that does not matter."""
    return device_type in ("cpu", "cuda")


@functools.cache
def has_triton(device_type: str) -> bool:
    """Return True if kernels in Triton can be had for a device."""
    return device_type == "cuda" and importlib.util.find_spec("triton") is not None


def has_spare_core() -> bool:
    """Return True if the program leaves a core of this machine to another thread.

    Torch's own threads on the CPU take one each, and wait for the next op with their core busy. Ranks on the same
    machine are counted by torchrun's LOCAL_WORLD_SIZE. A program with an accelerator is taken to compute there.
    """
    import torch

    if accelerator() is not None:
        return True
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    return torch.get_num_threads() * (int(ranks) if ranks.isdecimal() else 1) < cores


def how_devices_compute() -> dict[str, Any]:
    """Return the versions and switches that decide what an op gives on the devices of this process.

    What the installed torch or device package does not say is left out; an option of a device that nobody set is "".
    """
    import torch

    facts: dict[str, Any] = {
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "deterministic_warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "mkldnn": torch.backends.mkldnn.enabled,
        **{name: os.environ[name] for name in _VARIABLES if name in os.environ},
    }
    device = accelerator()
    if device is not None and device.type in _FACTS:
        facts.update({name: fact for name, fact in _FACTS[device.type]().items() if fact is not None})
    return facts


def _npu_facts() -> dict[str, Any]:
    import torch

    package = sys.modules.get("torch_npu")
    c, npu = getattr(package, "_C", None), torch.get_device_module("npu")
    facts = {name: _reported(getattr(c, "_npu_getOption", None), option) for name, option in _NPU_OPTIONS.items()}
    versions = getattr(c, "_get_cann_version", None)
    return {
        "soc": _reported(getattr(npu, "get_device_name", None), 0),
        "cann": _reported(versions, "CANN"),
        "driver": _reported(versions, "DRIVER"),
        "keeps_nonfinite": _reported(getattr(getattr(npu, "utils", None), "is_support_inf_nan", None)),
        "matmul_hf32": _reported(lambda: npu.matmul.allow_hf32),
        "conv_hf32": _reported(lambda: npu.conv.allow_hf32),
        **facts,
    }


def _cuda_facts() -> dict[str, Any]:
    import torch

    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    capabilities = [torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())]
    return {
        "compute_capability": [f"{major}.{minor}" for major, minor in capabilities],
        "cuda": torch.version.cuda,
        "driver": _reported(getattr(torch._C, "_cuda_getDriverVersion", None)),
        "cudnn": _reported(cudnn.version),
        "cudnn_enabled": cudnn.enabled,
        "cudnn_benchmark": cudnn.benchmark,
        "cudnn_deterministic": cudnn.deterministic,
        "matmul_tf32": _reported(lambda: matmul.allow_tf32),
        "conv_tf32": _reported(lambda: cudnn.allow_tf32),
        "fp16_reduced_precision_reduction": _reported(lambda: matmul.allow_fp16_reduced_precision_reduction),
        "bf16_reduced_precision_reduction": _reported(lambda: matmul.allow_bf16_reduced_precision_reduction),
    }


_FACTS: Final[dict[str, Callable[[], dict[str, Any]]]] = {"npu": _npu_facts, "cuda": _cuda_facts}


def _reported(question: Callable[..., Any] | None, *args: Any) -> Any:
    """Return what a device package answers; None where it has no such question, or cannot say."""
    try:
        answer = question(*args) if question is not None else None
    except (RuntimeError, AttributeError):  # such as switches of TF32 set in the old way and in the new one
        return None
    return answer.decode() if isinstance(answer, bytes) else answer
