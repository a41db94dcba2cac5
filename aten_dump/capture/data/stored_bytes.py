"""Keeps the bytes of tensors by storage, not by view.

Theory of operation
    Stored is the whole storage if the value covers half of it or more, the value's extent if that is not mostly gaps,
    else its elements alone. Later views on bytes that are stored cost a Data record. With ``DumpConfig.sample`` the
    first elements are stored, and nothing else.
"""

from __future__ import annotations

from typing import Final

import torch

from ...store.records import DATA, LAYOUTS, Data
from ...store.sink import Sink
from ..memory.geometry import Elements, byte_extent, bytes_spanned
from ..memory.storages import StorageState
from .blob_dtypes import blob_dtype
from .byte_copies import copy_bytes, copy_elements
from .small_tensor_batches import Batch, Batches

STRIDED: Final = LAYOUTS.index("strided")
COMPACT: Final = LAYOUTS.index("compact")
SAMPLE: Final = LAYOUTS.index("sample")


class StoredBytes:
    """The bytes of one step's values that are stored, or will be with a batch."""

    def __init__(
        self, sink: Sink, batches: Batches, seconds: dict[str, float], sample: int | None, hash_is_checksum: bool
    ) -> None:
        """Begin a step.

        Args:
            sink: stores them.
            batches: will store those of small tensors.
            seconds: what copies take is added up here.
            sample: store only so many elements of each value.
            hash_is_checksum: the hash that is wanted is what the sink takes of stored bytes anyway.
        """
        self._sink = sink
        self._emit = sink.emit
        self._batches = batches
        self._seconds = seconds
        self._sample = sample
        self._hash_is_checksum = hash_is_checksum

    def point(self, value: int, blob: int | Batch, start: int) -> None:
        """Record that the bytes of a value are, or will be, in a blob."""
        found = blob if isinstance(blob, int) else self._batches.place(value, blob, start)
        if found > 0:
            self._emit(Data(DATA, value, found, start, STRIDED))

    def keep(
        self, tensor: torch.Tensor, state: StorageState, value: int, wants_hash: bool, elements: Elements | None = None
    ) -> bool:
        """Store the bytes of a value.

        Args:
            tensor: on that memory.
            state: of its storage.
            value: the id.
            wants_hash: its hash is wanted, which is that of its bytes as they lie if those are its elements in a row.
            elements: where they lie, if that is in host memory and known already.

        Returns:
            True if the hash is taken as well.
        """
        if self._sample is not None or state.format is not None:
            self._keep_elements(tensor, value, self._sample)
            return False
        if elements is None:
            low, high = byte_extent(tensor)
            dense, in_a_row = tensor.numel() * tensor.element_size(), tensor.is_contiguous()
        else:
            low, dense, in_a_row = elements[1], elements[2], elements[4] is None
            high = low + bytes_spanned(elements)
        if high > state.nbytes:  # the storage was shrunk under the tensor: nothing to read
            return False
        for first, past, known, base in state.blobs:
            if first <= low and high <= past:
                self.point(value, known, base + low - first)
                return False
        if high - low > 2 * dense:
            self._keep_elements(tensor, value, None)
            return False
        first, past = (0, state.nbytes) if state.nbytes <= 2 * dense and state.written is None else (low, high)
        dtype, unit = blob_dtype(tensor.dtype, past - first)
        are_elements = past - first == dense and in_a_row
        exact = are_elements and unit == tensor.element_size()
        shape = list(tensor.shape) if exact else [(past - first) // unit]
        hashed = value if are_elements and wants_hash and self._hash_is_checksum else 0
        blob = self._sink.store(dtype, shape, past - first, copy_bytes(tensor, first, self._seconds), hashed)
        if blob:
            state.add_blob(first, past, blob, 0)
            self._emit(Data(DATA, value, blob, low - first, STRIDED))
        return bool(blob and hashed)

    def _keep_elements(self, tensor: torch.Tensor, value: int, first: int | None) -> None:
        """Store the elements in row-major order, or only the first so many of them."""
        count = tensor.numel() if first is None else min(first, tensor.numel())
        sampled = count < tensor.numel()
        nbytes = count * tensor.element_size()
        dtype, unit = blob_dtype(tensor.dtype, nbytes)
        exact = unit == tensor.element_size() and not sampled
        shape = list(tensor.shape) if exact else [nbytes // unit]
        blob = self._sink.store(dtype, shape, nbytes, copy_elements(tensor, count, self._seconds))
        if blob:
            self._emit(Data(DATA, value, blob, 0, SAMPLE if sampled else COMPACT))
