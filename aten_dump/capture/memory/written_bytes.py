"""Which bytes of a storage a tensor touches, and which of memory that began undefined were written.

Theory of operation
    Most writes have no gaps: they are kept as sorted byte ranges. The first write through a view with gaps (a column
    of a matrix) turns them into a mask with one bool per byte, on which tensors are laid as numpy views; it is exact
    also where writes overlap, and can be copied as memory is: ``copy_`` from memory that is half undefined defines
    half of its target. Storages too large for a mask remember such writes by geometry; they are defined when the same
    columns of all their rows add up to whole rows, or one write covers them. Until then they count as undefined: what
    is defined is then not looked at, which accuses nobody.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch

from .geometry import Geometry, byte_extent, covers

_Mask = np.ndarray[Any, np.dtype[np.bool_]]
_Range = tuple[int, int]  # first byte, and past the last
_MASK_BYTES: Final = 64 << 20


class WrittenRanges:
    """The written part of memory that began undefined."""

    __slots__ = ("_columns", "_geometries", "_mask", "_nbytes", "_ranges", "in_flight")

    def __init__(self, nbytes: int) -> None:
        self.in_flight = False  # others write to it meanwhile, a collective say
        self._nbytes = nbytes
        self._ranges: list[_Range] = []
        self._mask: _Mask | None = None  # instead of the ranges
        self._geometries: set[Geometry] = set()
        self._columns: dict[int, list[_Range]] = {}  # by bytes of a row: which of each row are written

    def write(self, tensor: torch.Tensor, geometry: Geometry) -> bool:
        """Note a write; returns True when all of the memory is defined now."""
        low, high = byte_extent(tensor)
        if low == high:
            return self._complete()
        if self._mask is None:
            if covers(tensor):
                self._ranges = _with_range(self._ranges, low, high)
                return self._complete()
            if self._nbytes > _MASK_BYTES:
                self._write_apart(tensor, geometry, low)
                return self._complete()
            self._mask = self._as_mask()
        _laid_on(self._mask, tensor, _dims_of_many(tensor))[...] = True
        return self._complete()

    def _write_apart(self, tensor: torch.Tensor, geometry: Geometry, low: int) -> None:
        """Note a write with gaps that begins at this byte, to memory that is too large for a mask."""
        self._geometries.add(geometry)
        columns = _columns_of(tensor)
        if columns is None:
            return
        rows, row_bytes, nbytes = columns
        if rows * row_bytes == self._nbytes and low + nbytes <= row_bytes:  # else not the same of each row
            self._columns[row_bytes] = _with_range(self._columns.get(row_bytes, []), low, low + nbytes)

    def copy(self, tensor: torch.Tensor, other: WrittenRanges, source: torch.Tensor, geometry: Geometry) -> bool:
        """Note a copy of `source`, on the memory of `other`, to `tensor`; returns what `write` does.

        What is defined of the source is defined of the target afterwards, and no more.
        """
        if max(self._nbytes, other._nbytes) > _MASK_BYTES:
            return self.write(tensor, geometry)
        if self._mask is None:
            self._mask = self._as_mask()
        if tensor.numel():
            dims = [dim for dim, size in enumerate(tensor.shape) if size != 1]
            more = source.dim() - tensor.dim()  # the last dimensions of both are the same
            mask = other._as_mask() if other._mask is None else other._mask
            theirs = _laid_on(mask, source, [dim + more for dim in dims if dim + more >= 0]).all(axis=-1)
            written = _laid_on(self._mask, tensor, dims)
            written[...] = np.broadcast_to(theirs, written.shape[:-1])[..., None]
        return self._complete()

    def covers(self, tensor: torch.Tensor, geometry: Geometry) -> bool:
        """Return True if all elements of `tensor` were written."""
        low, high = byte_extent(tensor)
        if low == high:
            return True
        if self._mask is not None:
            return bool(_laid_on(self._mask, tensor, _dims_of_many(tensor)).all())
        return geometry in self._geometries or any(a <= low and high <= b for a, b in self._ranges)

    def define(self, low: int, high: int) -> None:
        """Note that these bytes are defined."""
        if self._mask is not None:
            self._mask[low:high] = True
        elif low < high:
            self._ranges = _with_range(self._ranges, low, high)

    def resize(self, before: int, now: int) -> None:
        """Note that the memory has another size; what it grew by is undefined."""
        self._nbytes = now
        if self._mask is not None:
            grown = np.zeros(now, np.bool_)
            grown[: min(before, now)] = self._mask[:now]
            self._mask = grown
        self.forget(min(before, now), max(before, now))

    def forget(self, low: int, high: int) -> None:
        """Note that these bytes are undefined, whatever was written to them before."""
        if self._mask is not None:
            self._mask[low:high] = False
        kept = [part for a, b in self._ranges for part in ((a, min(b, low)), (max(a, high), b))]
        self._ranges = [(a, b) for a, b in kept if a < b]
        self._geometries.clear()
        self._columns.clear()

    def _complete(self) -> bool:
        if self._mask is not None:
            return bool(self._mask.all())
        if sum([b - a for a, b in self._ranges]) >= self._nbytes:
            return True
        return any(parts == [(0, row_bytes)] for row_bytes, parts in self._columns.items())

    def _as_mask(self) -> _Mask:
        mask = np.zeros(self._nbytes, np.bool_)
        for low, high in self._ranges:
            mask[low:high] = True
        return mask


def _with_range(ranges: list[_Range], low: int, high: int) -> list[_Range]:
    """Return ranges, in order and apart from each other, with one more."""
    merged = []
    for a, b in ranges:
        if b < low or a > high:
            merged.append((a, b))
        else:
            low, high = min(a, low), max(b, high)
    merged.append((low, high))
    return sorted(merged)


def _columns_of(tensor: torch.Tensor) -> tuple[int, int, int] | None:
    """Return how many rows a tensor has a piece of, the bytes from one to the next and those of a piece, if it has the
    same piece of each row, and rows lie one after the other: ``x[:, 2:4]``, ``cache[:, :, position]``.
    """
    dims = sorted([(int(s), int(n)) for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n != 1])
    piece, rows = 1, 1
    while dims and dims[0][0] == piece:
        piece *= dims.pop(0)[1]
    if not dims or dims[0][0] < piece:
        return None
    row = dims[0][0]
    for stride, size in dims:
        if stride != row * rows:
            return None
        rows *= size
    return rows, row * tensor.element_size(), piece * tensor.element_size()


def _dims_of_many(tensor: torch.Tensor) -> list[int]:
    """Return the dimensions along which a tensor has elements in other places: numpy has room for 63, torch for 64."""
    return [dim for dim, (n, s) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)) if n != 1 and s]


def _laid_on(mask: _Mask, tensor: torch.Tensor, dims: list[int]) -> _Mask:
    """Return the mask's bytes under each element of `tensor`, the first of dimensions that are not in `dims`:
    bool[*sizes of those, element size].
    """
    size = tensor.element_size()
    first = int(tensor.storage_offset()) * size
    shape = (*(int(tensor.size(dim)) for dim in dims), size)
    strides = (*(int(tensor.stride(dim)) * size for dim in dims), 1)
    return np.lib.stride_tricks.as_strided(mask[first:], shape, strides)
