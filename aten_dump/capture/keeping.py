"""Keeps the data of values: bytes, statistics and hashes, as the configuration asks for.

Theory of operation
    `Keeper.keep` is called for a value right when it was seen, since the next op may write or free its memory: bytes
    go to the sink, statistics and hashes are computed. Bytes are kept by storage, not by view: the whole storage if
    the value covers half of it or more, the value's extent if that is not mostly gaps, else its elements alone; later
    views on kept bytes cost a Data record.
"""

from __future__ import annotations

from typing import Final

import torch

from ..config import DumpConfig
from ..store.records import CONJUGATE, DATA, NEGATIVE, NOTE, Data, Note
from ..store.sink import Sink
from .digests import covers, hash_of, same_hash, same_statistics, statistics_of
from .extents import byte_extent
from .memory import blob_dtype, copy_bytes, row_major
from .names import dtype_name
from .quiet import quiet
from .storages import StorageState, ValueInfo

KEPT_TENSOR: Final = 1
KEPT_STATISTICS: Final = 2
KEPT_HASH: Final = 4
_STRIDED, _COMPACT, _SAMPLE = 0, 1, 2


class Keeper:
    """Keeps the data of the values of one step."""

    def __init__(self, config: DumpConfig, sink: Sink, seconds: dict[str, float]) -> None:
        self._config = config
        self._sink = sink
        self._emit = sink.emit
        self._seconds = seconds
        self.wanted = (
            (KEPT_TENSOR if config.wants_tensor else 0)
            | (KEPT_STATISTICS if config.wants_statistics else 0)
            | (KEPT_HASH if config.wants_hash else 0)
        )

    def keep(self, tensor: torch.Tensor, state: StorageState, info: ValueInfo) -> None:
        """Keep what is not kept yet of the data of `tensor`, which is the value `info`."""
        missing = self.wanted & ~info.kept
        try:
            keep_data = self._keep_zeros if tensor._is_zerotensor() else self._keep
            keep_data(tensor, state, info, missing)
        except (RuntimeError, TypeError) as error:  # a tensor that torch itself cannot read
            self._unreadable(tensor, info, error)

    def _keep(self, tensor: torch.Tensor, state: StorageState, info: ValueInfo, missing: int) -> None:
        info.kept |= missing
        if missing & KEPT_TENSOR:
            self._keep_bytes(tensor, state, info)
        whole = (
            tensor.numel() * tensor.element_size() == state.nbytes
            and not info.flags & (CONJUGATE | NEGATIVE)
            and covers(tensor)
        )
        if missing & KEPT_STATISTICS and not (whole and same_statistics(self._emit, tensor, state, info.id)):
            statistics_of(self._emit, tensor, info.id, self._config.statistics, self._seconds)
            if whole:
                state.whole_statistics[tensor.dtype] = info.id
        if missing & KEPT_HASH and not (whole and same_hash(self._emit, tensor, state, info.id)):
            hash_of(self._emit, tensor, info.id, self._config.hash, self._seconds)
            if whole and tensor.is_contiguous():
                state.whole_hash[tensor.dtype] = info.id

    def _keep_zeros(self, tensor: torch.Tensor, state: StorageState, info: ValueInfo, missing: int) -> None:
        """Keep the zeros that a tensor stands for which has no memory (autograd makes such)."""
        with quiet():
            zeros = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).zero_()
        self._keep(zeros, StorageState(state.id, zeros.untyped_storage().nbytes(), 0), info, missing)

    def _unreadable(self, tensor: torch.Tensor, info: ValueInfo, error: Exception) -> None:
        """Say in the dump that data of a value could not be kept; the program does not depend on it."""
        kind = f"{dtype_name(tensor.dtype)} tensor of shape {tuple(tensor.shape)} on {tensor.device}"
        self._emit(Note(NOTE, "unreadable", f"value {info.id}, a {kind}: {str(error).partition(chr(10))[0]}", 1))

    def _keep_bytes(self, tensor: torch.Tensor, state: StorageState, info: ValueInfo) -> None:
        if self._config.sample is not None:
            self._keep_elements(tensor, info, self._config.sample)
            return
        low, high = byte_extent(tensor)
        if high > state.nbytes:  # the storage was shrunk under the tensor: nothing to read
            return
        for first, past, blob in state.blobs:
            if first <= low and high <= past:
                self._emit(Data(DATA, info.id, blob, low - first, _STRIDED))
                return
        dense = tensor.numel() * tensor.element_size()
        if high - low > 2 * dense:
            self._keep_elements(tensor, info, None)
            return
        first, past = (0, state.nbytes) if state.nbytes <= 2 * dense and state.written is None else (low, high)
        dtype, unit = blob_dtype(tensor.dtype, past - first)
        exact = past - first == dense and tensor.is_contiguous() and unit == tensor.element_size()
        shape = list(tensor.shape) if exact else [(past - first) // unit]
        blob = self._sink.store(dtype, shape, past - first, copy_bytes(tensor, first, self._seconds))
        if blob:
            state.blobs.append((first, past, blob))
            self._emit(Data(DATA, info.id, blob, low - first, _STRIDED))

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
