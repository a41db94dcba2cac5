"""Which memory a tensor stands on, how often it was written, and which of it is defined.

Theory of operation
    A storage is known by the address of its StorageImpl. A weak reference keeps that address from being reused while
    a step is recorded; it does not keep the data. Every write that dispatch sees makes a new version; what is known
    of a version (its values, its stored bytes) is forgotten with it. Memory from ``torch.empty`` is undefined until
    written: the byte ranges written so far are kept as sorted intervals. Writes through a view with gaps cannot be
    kept so; they are remembered by geometry, and by number of bytes, so that a buffer filled column by column counts
    as defined when as many bytes were written as it has.
"""

from __future__ import annotations

from typing import Any, cast

import torch

Geometry = tuple[Any, ...]  # (storage offset, shape, stride, dtype, conj bit, neg bit)


def byte_extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the first and one past the last byte of its storage that `tensor` touches."""
    size = tensor.element_size()
    first = int(tensor.storage_offset()) * size
    if tensor.numel() == 0:
        return first, first
    last = sum((int(n) - 1) * int(s) for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return first, first + (last + 1) * size


class WrittenRanges:
    """The written part of memory that began undefined."""

    __slots__ = ("_geometries", "_loose_bytes", "_nbytes", "_ranges")

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._ranges: list[tuple[int, int]] = []
        self._geometries: set[Geometry] = set()
        self._loose_bytes = 0

    def write(self, tensor: torch.Tensor, geometry: Geometry) -> bool:
        """Note a write; returns True when all of the memory is defined now."""
        low, high = byte_extent(tensor)
        written = tensor.numel() * tensor.element_size()
        if written >= high - low:
            self._add(low, high)
        elif geometry not in self._geometries:
            self._geometries.add(geometry)
            self._loose_bytes += written
        return sum(b - a for a, b in self._ranges) + self._loose_bytes >= self._nbytes

    def covers(self, tensor: torch.Tensor, geometry: Geometry) -> bool:
        """Tell whether all elements of `tensor` were written."""
        low, high = byte_extent(tensor)
        return low == high or geometry in self._geometries or any(a <= low and high <= b for a, b in self._ranges)

    def _add(self, low: int, high: int) -> None:
        merged = []
        for a, b in self._ranges:
            if b < low or a > high:
                merged.append((a, b))
            else:
                low, high = min(a, low), max(b, high)
        merged.append((low, high))
        self._ranges = sorted(merged)


class StorageState:
    """What is known of one storage at its present version."""

    __slots__ = ("blobs", "id", "nbytes", "values", "version", "weak", "whole_hash", "whole_statistics", "written")

    def __init__(self, number: int, nbytes: int, weak: int) -> None:
        self.id = number
        self.nbytes = nbytes
        self.weak = weak
        self.version = 0
        self.values: dict[Geometry, Any] = {}
        self.blobs: list[tuple[int, int, int]] = []  # stored extents: first byte, past the last byte, blob id
        self.whole_statistics: dict[torch.dtype, int] = {}  # value that covers the storage -> has the statistics
        self.whole_hash: dict[torch.dtype, int] = {}
        self.written: WrittenRanges | None = None  # None: all of it is defined

    def bump(self) -> None:
        """Begin a new version: the memory was written."""
        self.version += 1
        self.values = {}
        self.blobs = []
        self.whole_statistics = {}
        self.whole_hash = {}


class StorageTable:
    """The storages seen in a step."""

    __slots__ = ("_count", "_purge_at", "_states")

    def __init__(self) -> None:
        self._states: dict[int, StorageState] = {}
        self._count = 0
        self._purge_at = 4096

    def find(self, storage: torch.UntypedStorage) -> tuple[StorageState, bool]:
        """Return the state of `storage`, and whether it is new."""
        address: int = storage._cdata
        state = self._states.get(address)
        if state is not None:
            return state, False
        if len(self._states) >= self._purge_at:
            self._purge()
        self._count += 1
        state = self._states[address] = StorageState(self._count, storage.nbytes(), cast(int, storage._weak_ref()))
        return state, True

    def invalidate(self) -> None:
        """Forget the contents of every storage: something may have written unseen."""
        for state in self._states.values():
            state.bump()
            state.written = None

    def _purge(self) -> None:
        """Forget storages that the program has freed."""
        expired = torch.UntypedStorage._expired
        for address, state in list(self._states.items()):
            if expired(state.weak):
                torch.UntypedStorage._free_weak_ref(state.weak)
                del self._states[address]
        self._purge_at = max(4096, 2 * len(self._states))

    def clear(self) -> None:
        """Let go of every weak reference."""
        for state in self._states.values():
            torch.UntypedStorage._free_weak_ref(state.weak)
        self._states.clear()
