"""Bytes of tensors, on any device, copied to where the sink wants them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from time import perf_counter
from typing import Final

import torch

from ...store.sink import Fill
from ...store.writing.host_bytes import HostBytes
from ..torch_internals.quiet import quiet
from .device_copies import copier_of

# What a dtype is called in a safetensors header, and the bytes of one such element. Complex numbers are two
# elements; dtypes that are missing here are bytes, U8. The true dtype is in the index.
_BLOB_DTYPES: Final[dict[torch.dtype, tuple[str, int]]] = {
    getattr(torch, name): (code, size)
    for name, code, size in (
        ("float64", "F64", 8),
        ("float32", "F32", 4),
        ("float16", "F16", 2),
        ("bfloat16", "BF16", 2),
        ("int64", "I64", 8),
        ("int32", "I32", 4),
        ("int16", "I16", 2),
        ("int8", "I8", 1),
        ("uint64", "U64", 8),
        ("uint32", "U32", 4),
        ("uint16", "U16", 2),
        ("uint8", "U8", 1),
        ("bool", "BOOL", 1),
        ("complex64", "C64", 8),
        ("complex128", "F64", 8),
        ("complex32", "F16", 2),
        ("float8_e4m3fn", "F8_E4M3", 1),
        ("float8_e5m2", "F8_E5M2", 1),
        ("float8_e8m0fnu", "F8_E8M0", 1),
        ("float8_e4m3fnuz", "F8_E4M3FNUZ", 1),
        ("float8_e5m2fnuz", "F8_E5M2FNUZ", 1),
        ("qint8", "I8", 1),
        ("quint8", "U8", 1),
        ("qint32", "I32", 4),
    )
    if hasattr(torch, name)
}


def blob_dtype(dtype: torch.dtype, nbytes: int) -> tuple[str, int]:
    """Return safetensors' name for the elements of `nbytes` bytes of `dtype`, and bytes per element."""
    name, size = _BLOB_DTYPES.get(dtype, ("U8", 1))
    return (name, size) if nbytes % size == 0 else ("U8", 1)


def row_major(tensor: torch.Tensor, first: int | None) -> torch.Tensor:
    """Return the raw elements of `tensor`, conj and neg bits not applied, in row-major order. Call inside `quiet()`.

    Args:
        tensor: any strided tensor.
        first: only so many elements; None for all.
    """
    if tensor.dtype.is_complex and tensor.is_conj():
        tensor = torch._conj(tensor)
    if tensor.is_neg():
        tensor = torch._neg_view(tensor)
    if first is not None and first < tensor.numel():
        if not tensor.is_contiguous():
            tensor = _leading(tensor, first)
        return tensor.reshape(-1)[:first].contiguous()
    if tensor.dtype.itemsize == 1 and not tensor.is_quantized:
        return tensor.view(torch.uint8).reshape(-1).contiguous().view(tensor.dtype)
    return tensor.contiguous().reshape(-1)


def _leading(tensor: torch.Tensor, first: int) -> torch.Tensor:
    """Cut leading dimensions so that at least the `first` elements in row-major order stay, without a copy."""
    per_row = max(1, tensor.numel() // tensor.shape[0])
    return tensor[: -(-first // per_row)]


def copy_bytes(tensor: torch.Tensor, first: int, seconds: dict[str, float]) -> Fill:
    """Return a `fill` for the sink that copies the bytes of the storage of `tensor` from byte `first` on."""
    storage = tensor.untyped_storage()
    if tensor.device.type == "cpu":
        return HostBytes(storage.data_ptr() + first, storage, seconds)

    copier = copier_of(tensor.device)

    def fill_from_device(offset: int, address: int, nbytes: int) -> Callable[[], None] | None:
        start = perf_counter()
        ready = None
        with quiet():
            raw = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage, first + offset, (nbytes,), (1,))
            host = torch.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), dtype=torch.uint8)
            if copier is None:
                host.copy_(raw)
            else:
                ready = copier.copy(raw, host)
        seconds["copy"] += perf_counter() - start
        return ready

    return fill_from_device


def host_bytes(tensor: torch.Tensor) -> tuple[torch.Tensor, memoryview]:
    """Return the elements of `tensor` in row-major order as bytes, with the tensor that owns them. Call inside
    `quiet()`.
    """
    flat = row_major(tensor.resolve_conj().resolve_neg(), None)
    if flat.device.type != "cpu":
        flat = flat.cpu()
    nbytes = flat.numel() * flat.element_size()
    if nbytes == 0:
        return flat, memoryview(b"")
    return flat, memoryview((ctypes.c_char * nbytes).from_address(flat.data_ptr())).cast("B")
