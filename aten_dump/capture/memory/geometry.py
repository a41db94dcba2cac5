"""Where in its storage a tensor lies."""

from __future__ import annotations

from typing import Any

import torch

Geometry = tuple[Any, ...]  # (storage offset, shape, stride, dtype, conj bit, neg bit)
# Elements that lie in a row in host memory: dtype, first byte in their storage, how many bytes, address of the first.
Row = tuple[torch.dtype, int, int, int]


def byte_extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the first and one past the last byte of its storage that `tensor` touches."""
    if tensor.numel() == 0:
        return 0, 0  # its offset may lie beyond the end of the storage
    size = tensor.element_size()
    first = int(tensor.storage_offset()) * size
    last = sum((int(n) - 1) * int(s) for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return first, first + (last + 1) * size


def covers(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor has each element of its extent in memory once, in whatever order."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted((s, n) for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True
