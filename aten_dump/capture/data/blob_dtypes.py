"""What dtypes are called in a shard."""

from __future__ import annotations

from typing import Final

import torch

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
