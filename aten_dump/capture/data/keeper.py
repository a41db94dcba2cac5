"""Keeps the data of values: bytes, statistics and hashes, as the configuration asks for.

Theory of operation
    `Keeper.keep` is called for a value right when it was seen, since the next op may write or free its memory. Small
    contiguous tensors on the CPU are copied, and handled many at a time (`batches`). Of the others the bytes go to
    the sink, statistics and hashes are computed on the spot; on a device all that is left for later (`device_batches`,
    `device_copies`).

    Bytes are kept by storage, not by view: the whole storage if the value covers half of it or more, the value's
    extent if that is not mostly gaps, else its elements alone; later views on kept bytes cost a Data record.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import string_at
from typing import Final

import torch

from ...config import DumpConfig
from ...store.records import CONJUGATE, DATA, NEGATIVE, NOTE, SAME, SAME_HASH, SAME_STATISTICS, Data, Note, Same
from ...store.sink import Sink
from ..memory.dtypes import dtype_name
from ..memory.geometry import byte_extent, covers
from ..memory.storages import StorageState, ValueInfo
from ..torch_internals.quiet import quiet
from .device_batches import BATCH_VALUES as DEVICE_VALUES
from .device_batches import DeviceBatches
from .hashes import hash_later, hash_of, statistics_of
from .small_tensor_batches import BATCH_BYTES, BATCH_VALUES, FACTS, SMALL_BYTES, STORED, Batch, Batches, Facts
from .statistics.many_small_tensors import ITEM_BYTES
from .tensor_bytes import blob_dtype, copy_bytes, row_major

KEPT_TENSOR: Final = 1
KEPT_STATISTICS: Final = 2
KEPT_HASH: Final = 4
OBSERVED: Final = 8  # by a trigger
_STRIDED, _COMPACT, _SAMPLE = 0, 1, 2
Observe = Callable[[torch.Tensor, int, StorageState], None]


class Keeper:
    """Keeps the data of the values of one step."""

    def __init__(
        self, config: DumpConfig, sink: Sink, seconds: dict[str, float], observe: Observe | None = None
    ) -> None:
        """Begin a step.

        Args:
            config: says what to keep.
            sink: where it goes.
            seconds: what that takes is added up here.
            observe: is shown each tensor, with its value's id and its storage, for a trigger; None where none asks.
        """
        self._config = config
        self._sink = sink
        self._emit = sink.emit
        self._seconds = seconds
        self.wanted = (
            (KEPT_TENSOR if config.wants_tensor else 0)
            | (KEPT_STATISTICS if config.wants_statistics else 0)
            | (KEPT_HASH if config.wants_hash else 0)
        )
        self._observe = observe
        if observe is not None:
            self.wanted |= OBSERVED
        # What one Same record says of a value that has all elements of another.
        self._all_facts = (SAME_STATISTICS if config.wants_statistics else 0) | (SAME_HASH if config.wants_hash else 0)
        self._use = (STORED if config.wants_tensor else 0) | (FACTS if self._all_facts else 0)
        self._small_bytes = 0 if config.wants_tensor and config.sample is not None else SMALL_BYTES
        facts = Facts(config) if self._all_facts else None
        if config.trigger is not None or config.max_bytes is not None:  # the first needs facts at once, the second
            self._batches = Batches(sink, facts, 1, 1)  # counts bytes one value at a time
        else:
            self._batches = Batches(sink, facts, BATCH_VALUES, min(BATCH_BYTES, config.shard_bytes))
        self._on_device = DeviceBatches(sink, config.statistics, 1 if config.trigger is not None else DEVICE_VALUES)
        if self.wanted:
            sink.on_tick(self._tick)
        # xxh3 of stored bytes is taken anyway, for their checksum.
        self._hash_is_checksum = config.hash == "xxh3" and config.trigger is None

    def keep(self, tensor: torch.Tensor, state: StorageState, info: ValueInfo) -> None:
        """Keep what is not kept yet of the data of `tensor`, which is the value `info`."""
        try:
            if self._observe is not None:
                self._observe(tensor, info.id, state)
            dtype = tensor.dtype
            item_bytes = ITEM_BYTES.get(dtype)
            if item_bytes is not None and tensor.is_cpu and not info.flags & (CONJUGATE | NEGATIVE):
                nbytes = tensor.numel() * item_bytes
                if 0 < nbytes <= self._small_bytes and tensor.is_contiguous():
                    address = tensor.data_ptr()
                    if address:  # else zeros without memory
                        info.kept = self.wanted
                        self._keep_small(dtype, address, nbytes, int(tensor.storage_offset()) * item_bytes, state, info)
                        return
            missing = self.wanted & ~info.kept
            info.kept = self.wanted
            keep_data = self._keep_zeros if tensor._is_zerotensor() else self._keep
            keep_data(tensor, state, info, missing)
        except (RuntimeError, TypeError) as error:  # a tensor that torch itself cannot read
            self._unreadable(tensor, info, error)

    def flush(self) -> None:
        """Send what waits to the sink."""
        self._batches.flush()
        self._on_device.flush()

    def _tick(self) -> None:
        self._batches.tick()
        self._on_device.tick()

    def close(self) -> None:
        """End the step: send what waits, and expect no more."""
        self._sink.on_tick(None)
        self.flush()

    # -- small tensors

    def _keep_small(
        self, dtype: torch.dtype, address: int, nbytes: int, low: int, state: StorageState, info: ValueInfo
    ) -> None:
        if low + nbytes > state.nbytes:  # the storage was shrunk under the tensor: nothing to read
            return
        use = self._use
        if nbytes == state.nbytes:
            other = state.whole_hash.get(dtype)
            if other is None:
                state.whole_hash[dtype] = state.whole_statistics[dtype] = info.id
            elif self._all_facts:
                self._emit(Same(SAME, info.id, other, self._all_facts))
                use &= STORED
        if use & STORED:
            for first, past, blob, base in state.blobs:
                if first <= low and low + nbytes <= past:
                    self._point(info.id, blob, base + low - first)
                    use &= FACTS
                    break
        if use:
            batch, start = self._batches.add(dtype, use, info.id, string_at(address, nbytes))
            if use & STORED:
                state.add_blob(low, low + nbytes, batch, start)

    def _point(self, value: int, blob: int | Batch, start: int) -> None:
        """Say that the bytes of a value are in a blob, or will be."""
        found = blob if isinstance(blob, int) else self._batches.place(value, blob, start)
        if found > 0:
            self._emit(Data(DATA, value, found, start, _STRIDED))

    # -- all others

    def _keep(self, tensor: torch.Tensor, state: StorageState, info: ValueInfo, missing: int) -> None:
        whole = (
            tensor.numel() * tensor.element_size() == state.nbytes
            and not info.flags & (CONJUGATE | NEGATIVE)
            and covers(tensor)
        )
        dtype = tensor.dtype
        if whole and missing & KEPT_STATISTICS:
            other = state.whole_statistics.setdefault(dtype, info.id)
            if other != info.id:
                self._emit(Same(SAME, info.id, other, SAME_STATISTICS))
                missing &= ~KEPT_STATISTICS
        if missing & KEPT_STATISTICS and not self._on_device.add(info.id, tensor):
            statistics_of(self._emit, tensor, info.id, self._config.statistics, self._seconds)
        if whole and missing & KEPT_HASH and tensor.is_contiguous():
            other = state.whole_hash.setdefault(dtype, info.id)
            if other != info.id:
                self._emit(Same(SAME, info.id, other, SAME_HASH))
                missing &= ~KEPT_HASH
        if missing & KEPT_TENSOR and self._keep_bytes(tensor, state, info, missing):
            missing &= ~KEPT_HASH
        if missing & KEPT_HASH and not hash_later(self._sink, tensor, info.id, self._config.hash):
            hash_of(self._emit, tensor, info.id, self._config.hash, self._seconds)

    def _keep_zeros(self, tensor: torch.Tensor, state: StorageState, info: ValueInfo, missing: int) -> None:
        """Keep the zeros that a tensor stands for which has no memory (autograd makes such)."""
        with quiet():
            zeros = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).zero_()
        self._keep(zeros, StorageState(state.id, zeros.untyped_storage().nbytes(), 0), info, missing)

    def _unreadable(self, tensor: torch.Tensor, info: ValueInfo, error: Exception) -> None:
        """Say in the dump that data of a value could not be kept; the program does not depend on it."""
        kind = f"{dtype_name(tensor.dtype)} tensor of shape {tuple(tensor.shape)} on {tensor.device}"
        self._emit(Note(NOTE, "unreadable", f"value {info.id}, a {kind}: {str(error).partition(chr(10))[0]}", 1))

    def _keep_bytes(self, tensor: torch.Tensor, state: StorageState, info: ValueInfo, missing: int) -> bool:
        """Keep the bytes; returns True if that has the hash taken as well."""
        if self._config.sample is not None:
            self._keep_elements(tensor, info, self._config.sample)
            return False
        low, high = byte_extent(tensor)
        if high > state.nbytes:  # the storage was shrunk under the tensor: nothing to read
            return False
        for first, past, known, base in state.blobs:
            if first <= low and high <= past:
                self._point(info.id, known, base + low - first)
                return False
        dense = tensor.numel() * tensor.element_size()
        if high - low > 2 * dense:
            self._keep_elements(tensor, info, None)
            return False
        first, past = (0, state.nbytes) if state.nbytes <= 2 * dense and state.written is None else (low, high)
        dtype, unit = blob_dtype(tensor.dtype, past - first)
        are_elements = past - first == dense and tensor.is_contiguous() and not info.flags & (CONJUGATE | NEGATIVE)
        exact = are_elements and unit == tensor.element_size()
        shape = list(tensor.shape) if exact else [(past - first) // unit]
        hashed = info.id if are_elements and missing & KEPT_HASH and self._hash_is_checksum else 0
        blob = self._sink.store(dtype, shape, past - first, copy_bytes(tensor, first, self._seconds), hashed)
        if blob:
            state.add_blob(first, past, blob, 0)
            self._emit(Data(DATA, info.id, blob, low - first, _STRIDED))
        return bool(blob and hashed)

    def _keep_elements(self, tensor: torch.Tensor, info: ValueInfo, first: int | None) -> None:
        """Keep the elements in row-major order, or only the first so many of them."""
        with quiet():
            flat = row_major(tensor, first)
        sampled = flat.numel() < tensor.numel()
        nbytes = flat.numel() * flat.element_size()
        dtype, unit = blob_dtype(flat.dtype, nbytes)
        exact = unit == flat.element_size() and not sampled
        shape = list(tensor.shape) if exact else [nbytes // unit]
        blob = self._sink.store(dtype, shape, nbytes, copy_bytes(flat, 0, self._seconds))
        if blob:
            self._emit(Data(DATA, info.id, blob, 0, _SAMPLE if sampled else _COMPACT))
