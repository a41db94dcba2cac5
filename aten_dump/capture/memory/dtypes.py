"""The names of dtypes, as records have them."""

from __future__ import annotations

import torch


def dtype_name(dtype: torch.dtype) -> str:
    """Return "float32" for torch.float32."""
    return str(dtype)[len("torch.") :]
