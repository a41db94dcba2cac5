"""Where in its storage a tensor lies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

Geometry = tuple[Any, ...]  # (storage offset, shape, stride, dtype, conj bit, neg bit)
Layout = tuple[tuple[int, ...], tuple[int, ...]]  # shape, strides
Row = tuple[torch.dtype, int, int]  # of elements that lie in a row: dtype, first byte in their storage, their bytes
# Elements in memory: dtype, first byte in their storage, their bytes; the address of the first, None where that is no
# host memory; None where they lie in a row, else their `Layout`. (Compiled, a tuple of which each type is said is taken
# apart whenever one is asked for.)
Elements = tuple[Any, ...]


def byte_extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the first and one past the last byte of its storage that `tensor` touches."""
    if tensor.numel() == 0:
        return 0, 0  # its offset may lie beyond the end of the storage
    size = tensor.element_size()
    first = int(tensor.storage_offset()) * size
    return first, first + _elements_spanned(tensor.shape, tensor.stride()) * size


def covers(tensor: torch.Tensor) -> bool:
    """Return True if a tensor has each element of its extent in memory once, in whatever order."""
    return tensor.is_contiguous() or has_no_gaps(tensor.shape, tensor.stride())


def is_a_row(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return True if elements lie in memory one after the other, in row-major order; True of none."""
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return 0 in shape
        expected *= size
    return True


def has_no_gaps(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return True if elements that lie so are each of their extent in memory once, in whatever order."""
    expected = 1
    for stride, size in sorted([(s, n) for n, s in zip(shape, strides, strict=True) if n != 1]):
        if stride != expected:
            return False
        expected *= size
    return True


def bytes_spanned(elements: Elements) -> int:
    """Return how many bytes of memory lie from the first byte of some elements to the last."""
    dtype, _, nbytes, _, layout = elements
    spanned: int = nbytes if layout is None else _elements_spanned(*layout) * dtype.itemsize
    return spanned


def _elements_spanned(shape: Sequence[int], strides: Sequence[int]) -> int:
    return 1 + sum([(int(n) - 1) * int(s) for n, s in zip(shape, strides, strict=True)])
