"""The dtypes whose tensors are read from memory, and the names of dtypes, as records have them."""

from __future__ import annotations

from typing import Final

import torch

_PLAIN: Final = (
    *("float64", "float32", "float16", "bfloat16", "complex32", "complex64", "complex128", "bool"),
    *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
)
ITEM_BYTES: Final[dict[torch.dtype, int]] = {
    getattr(torch, name): getattr(torch, name).itemsize for name in _PLAIN if hasattr(torch, name)
}


def dtype_name(dtype: torch.dtype) -> str:
    """Return "float32" for torch.float32."""
    return str(dtype)[len("torch.") :]
