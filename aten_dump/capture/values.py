"""Tensors become values: one id per (storage, write version, geometry), and their data are kept once.

Theory of operation
    `ValueTable.value_of(tensor, keep)` is asked for every tensor of every call, before the op for its inputs and
    after it for its outputs. A geometry seen before at this version costs a dictionary look-up. A new one emits a
    Value record. With `keep`, the data that the configuration asks for are kept there and then, since the next op may
    write or free the memory: bytes go to the sink, statistics and hashes are computed. Bytes are kept by storage, not
    by view: the whole storage if the value covers half of it or more, the value's extent if that is not mostly gaps,
    else its elements alone; later views on kept bytes cost a Data record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from ..config import DumpConfig
from ..store.records import (
    CONJUGATE,
    DATA,
    NEGATIVE,
    NOTE,
    OPAQUE,
    REQUIRES_GRAD,
    STORAGE,
    UNDEFINED,
    VALUE,
    Data,
    Note,
    Storage,
    Value,
)
from ..store.sink import Sink
from .contents import Contents
from .coverage import Coverage
from .digests import covers, hash_of, same_hash, same_statistics, statistics_of
from .extents import Geometry, WrittenRanges, byte_extent
from .interning import Interner
from .memory import blob_dtype, copy_bytes, row_major
from .names import dtype_name
from .quiet import quiet
from .storages import StorageState, StorageTable
from .subclasses import Described, describe_subclass

_KEPT_TENSOR: Final = 1
_KEPT_STATISTICS: Final = 2
_KEPT_HASH: Final = 4
_STRIDED, _COMPACT, _SAMPLE = 0, 1, 2


def _geometry_of(tensor: torch.Tensor) -> Geometry:
    dtype = tensor.dtype
    conjugate = dtype.is_complex and tensor.is_conj()
    return tensor.storage_offset(), tensor.shape, tensor.stride(), dtype, conjugate, tensor.is_neg()


class ValueInfo:
    """A value that has been emitted, and which of its data are kept."""

    __slots__ = ("flags", "id", "kept")

    def __init__(self, number: int, flags: int) -> None:
        self.id = number
        self.flags = flags
        self.kept = 0


class ValueTable:
    """The values of one step."""

    def __init__(
        self, config: DumpConfig, sink: Sink, interner: Interner, seconds: dict[str, float], coverage: Coverage
    ) -> None:
        self._coverage = coverage
        self._config = config
        self._sink = sink
        self._emit = sink.emit
        self._interner = interner
        self._seconds = seconds
        self._storages = StorageTable()
        self._contents = Contents(seconds) if config.dedup == "content" else None
        self._plain: dict[type, bool] = {torch.Tensor: True, torch.nn.Parameter: True}
        self._composed: dict[tuple[Any, ...], int] = {}  # values of tensors made of other tensors
        self.count = 0
        self._wanted = (
            (_KEPT_TENSOR if config.wants_tensor else 0)
            | (_KEPT_STATISTICS if config.wants_statistics else 0)
            | (_KEPT_HASH if config.wants_hash else 0)
        )

    def value_of(self, tensor: torch.Tensor, keep: bool) -> int:
        """Return the id of the value that `tensor` is at this moment.

        Args:
            tensor: any tensor, of any layout, device and subclass; it is not changed.
            keep: keep the data that the configuration asks for.
        """
        if not self._plain.get(type(tensor), False) and not self._is_plain(type(tensor)):
            describe = describe_subclass(type(tensor))
            return self._opaque(tensor) if describe is None else self._made_of(tensor, describe, keep)
        try:
            storage = tensor.untyped_storage()
            geometry = _geometry_of(tensor)
            state = self._state_of(storage, tensor)
        except (NotImplementedError, RuntimeError):  # sparse, nested, functorch wrappers: no storage or shape to name
            return self._without_storage(tensor, keep)
        if self._contents is not None:
            self._contents.check(tensor, state)
        info = state.values.get(geometry)
        if info is None:
            if torch._is_functional_tensor(tensor):
                return self._opaque(tensor)  # it has a storage, but no memory
            info = state.values[geometry] = self._new_value(tensor, state, geometry)
        missing = self._wanted & ~info.kept
        if keep and missing and not info.flags & (UNDEFINED | OPAQUE):
            try:
                keep_data = self._keep_zeros if tensor._is_zerotensor() else self._keep
                keep_data(tensor, state, info, missing)
            except (RuntimeError, TypeError) as error:  # a tensor that torch itself cannot read
                self._unreadable(tensor, info, error)
        return int(info.id)

    def written(self, tensor: torch.Tensor) -> None:
        """Begin a new version of the storage of `tensor`: an op wrote to it."""
        try:
            state = self._state_of(tensor.untyped_storage(), tensor)
        except (NotImplementedError, RuntimeError):
            return
        state.bump()
        if state.written is not None:
            geometry = (tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype, False, False)
            if state.written.write(tensor, geometry):
                state.written = None

    def copied(self, tensor: torch.Tensor, source: torch.Tensor) -> None:
        """Begin a new version of the storage of `tensor`: it holds the elements of `source` now, defined or not."""
        theirs = self.version_of(source)
        if theirs is None or theirs[0].written is None:
            self.written(tensor)
            return
        ours = self.version_of(tensor)
        if ours is not None:
            geometry = (tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype, False, False)
            ours[0].copy(tensor, theirs[0].written, source, geometry)

    def cloned(self, tensor: torch.Tensor, source: torch.Tensor) -> None:
        """Note that `tensor` was just made with the elements of `source`, defined or not."""
        theirs = self.version_of(source)
        if theirs is not None and theirs[0].written is not None:
            self.undefined(tensor)
            self.copied(tensor, source)

    def undefined(self, tensor: torch.Tensor) -> None:
        """Note that the memory of `tensor` was just allocated and holds nothing yet."""
        try:
            state = self._state_of(tensor.untyped_storage(), tensor)
        except (NotImplementedError, RuntimeError):
            return
        if state.version == 0 and not state.values:
            state.written = WrittenRanges(state.nbytes)

    def unwritten(self, tensor: torch.Tensor) -> None:
        """Note that the memory of `tensor` is about to be written by others, and holds nothing until then."""
        try:
            state = self._state_of(tensor.untyped_storage(), tensor)
        except (NotImplementedError, RuntimeError):
            return
        state.hide(*byte_extent(tensor))

    def resized(self, storage: torch.UntypedStorage, before: int) -> None:
        """Note that the program resized `storage` itself, from so many bytes."""
        state, new = self._storages.find(storage)
        if new:
            self._emit(Storage(STORAGE, state.id, state.nbytes, self._interner.text(str(storage.device))))
        state.resize(before, storage.nbytes())

    def version_of(self, tensor: torch.Tensor) -> tuple[StorageState, int] | None:
        """Return the storage's state and its version now; None where there is no storage."""
        try:
            state = self._state_of(tensor.untyped_storage(), tensor)
        except (NotImplementedError, RuntimeError):
            return None
        return state, state.version

    def storages_seen(self) -> int:
        """Return a mark for `invalidate_since`."""
        return self._storages.seen()

    def invalidate_since(self, mark: int) -> None:
        """Trust no contents of memory that came after `mark`: kernels that no mode sees write to it."""
        self._storages.invalidate_since(mark)

    def invalidate(self) -> None:
        """Trust no contents seen so far: the program ran unobserved."""
        self._storages.invalidate()

    def changed_unseen(self, tensor: torch.Tensor, state: StorageState) -> bool:
        """Tell whether something that dispatch did not see wrote to `tensor`; looked for with ``dedup="content"``."""
        if self._contents is None:
            return False
        version = state.version
        self._contents.check(tensor, state)
        return state.version != version

    def clear(self) -> None:
        """Let go of everything."""
        if self._contents is not None and self._contents.unseen_writes:
            message = "writes that no op tells of (numpy, a custom kernel) were found by the contents of the memory"
            self._emit(Note(NOTE, "unseen_writes", message, self._contents.unseen_writes))
        self._storages.clear()

    def synthetic(self, like: torch.Tensor) -> int:
        """Return a new value with the geometry of `like` and no data: a sum that the recorder did not compute."""
        return self._emit_value(0, 0, 0, like, OPAQUE, {"sum": True, "device": str(like.device)})

    def _state_of(self, storage: torch.UntypedStorage, tensor: torch.Tensor) -> StorageState:
        state, new = self._storages.find(storage)
        if new:
            self._emit(Storage(STORAGE, state.id, state.nbytes, self._interner.text(str(tensor.device))))
        elif storage.nbytes() != state.nbytes:  # resized, by an op or unseen: the memory may be another
            state.resize(state.nbytes, storage.nbytes())
        return state

    # -- new values

    def _new_value(self, tensor: torch.Tensor, state: StorageState, geometry: tuple[Any, ...]) -> ValueInfo:
        flags = (CONJUGATE if geometry[4] else 0) | (NEGATIVE if geometry[5] else 0)
        if state.written is not None and not state.written.covers(tensor, (*geometry[:4], False, False)):
            flags |= UNDEFINED
        if state.nbytes == 0 and tensor.numel():
            flags |= UNDEFINED  # its memory was given back (FSDP's parameters between uses)
        extra = None
        if tensor.device.type == "meta":
            flags |= OPAQUE
        elif tensor.is_quantized:
            extra = {"quantized": _quantization(tensor)}
        number = self._emit_value(state.id, state.version, geometry[0], tensor, flags, extra)
        return ValueInfo(number, flags)

    def _emit_value(
        self,
        storage: int,
        version: int,
        offset: int,
        tensor: torch.Tensor,
        flags: int,
        extra: dict[str, Any] | None,
        strided: bool = True,
    ) -> int:
        self.count += 1
        number = self.count
        if tensor.requires_grad:
            flags |= REQUIRES_GRAD
        dtype = self._interner.text(dtype_name(tensor.dtype))
        stride = list(tensor.stride()) if strided else []
        self._emit(
            Value(VALUE, number, storage, version, offset, dtype, [int(n) for n in tensor.shape], stride, flags, extra)
        )
        return number

    def _is_plain(self, kind: type) -> bool:
        """Tell whether tensors of `kind` are memory like any other: no dispatch of their own."""
        plain = (
            getattr(kind, "__torch_dispatch__", None) is torch._C._disabled_torch_dispatch_impl
            or kind is torch.nn.Buffer
        )
        self._plain[kind] = plain
        return plain

    def _made_of(self, tensor: torch.Tensor, describe: Callable[[torch.Tensor], Described], keep: bool) -> int:
        """Return the value of a tensor that stands on another one (a DTensor), which is kept in its place."""
        inner, extra, identity = describe(tensor)
        local = self.value_of(inner, keep)
        key = (type(tensor), local, tensor.shape, tensor.stride(), tensor.requires_grad, identity)
        known = self._composed.get(key)
        if known is None:
            kind = type(tensor)
            extra = {"class": f"{kind.__module__}.{kind.__qualname__}", "device": str(tensor.device), **extra}
            known = self._composed[key] = self._emit_value(0, 0, 0, tensor, OPAQUE, {**extra, "local": local})
        return known

    def _opaque(self, tensor: torch.Tensor) -> int:
        kind = type(tensor)
        extra = {"class": f"{kind.__module__}.{kind.__qualname__}", "device": str(tensor.device)}
        self._coverage.add("wrapped_tensors", extra["class"])
        if tensor._has_symbolic_sizes_strides:
            return self._emit_nothing(extra)  # to ask a symbolic size for its number makes it a constant
        strided = tensor.layout is torch.strided
        try:
            return self._emit_value(0, 0, 0, tensor, OPAQUE, extra, strided)
        except (RuntimeError, TypeError, AttributeError):  # symbolic or nested sizes
            return self._emit_nothing(extra)

    def _emit_nothing(self, extra: dict[str, Any]) -> int:
        self.count += 1
        self._emit(Value(VALUE, self.count, 0, 0, 0, 0, [], [], OPAQUE, extra))
        return self.count

    def _without_storage(self, tensor: torch.Tensor, keep: bool) -> int:
        names = _SPARSE_PARTS.get(tensor.layout)
        if names is None:
            return self._opaque(tensor)
        with quiet():
            parts = {name: getattr(tensor, method)() for name, method in names.items()}
        extra: dict[str, Any] = {"layout": str(tensor.layout)[len("torch.") :], "device": str(tensor.device)}
        extra["parts"] = {name: self.value_of(part, keep) for name, part in parts.items()}
        if tensor.layout is torch.sparse_coo:
            extra["coalesced"] = tensor.is_coalesced()
            extra["dense_dims"] = tensor.dense_dim()
        return self._emit_value(0, 0, 0, tensor, 0, extra, strided=False)

    # -- their data

    def _keep(self, tensor: torch.Tensor, state: StorageState, info: ValueInfo, missing: int) -> None:
        info.kept |= missing
        if missing & _KEPT_TENSOR:
            self._keep_bytes(tensor, state, info)
        whole = (
            tensor.numel() * tensor.element_size() == state.nbytes
            and not info.flags & (CONJUGATE | NEGATIVE)
            and covers(tensor)
        )
        if missing & _KEPT_STATISTICS and not (whole and same_statistics(self._emit, tensor, state, info.id)):
            statistics_of(self._emit, tensor, info.id, self._config.statistics, self._seconds)
            if whole:
                state.whole_statistics[tensor.dtype] = info.id
        if missing & _KEPT_HASH and not (whole and same_hash(self._emit, tensor, state, info.id)):
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


_SPARSE_PARTS: Final = {
    torch.sparse_coo: {"indices": "_indices", "values": "_values"},
    torch.sparse_csr: {"crow_indices": "crow_indices", "col_indices": "col_indices", "values": "values"},
    torch.sparse_bsr: {"crow_indices": "crow_indices", "col_indices": "col_indices", "values": "values"},
    torch.sparse_csc: {"ccol_indices": "ccol_indices", "row_indices": "row_indices", "values": "values"},
    torch.sparse_bsc: {"ccol_indices": "ccol_indices", "row_indices": "row_indices", "values": "values"},
}


def _quantization(tensor: torch.Tensor) -> dict[str, Any]:
    scheme = str(tensor.qscheme())[len("torch.") :]
    with quiet():
        if scheme.startswith("per_tensor"):
            return {"scheme": scheme, "scale": tensor.q_scale(), "zero_point": tensor.q_zero_point()}
        scales, points = tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()
        return {
            "scheme": scheme,
            "scales": scales.double().tolist(),
            "zero_points": points.tolist(),
            "points_dtype": dtype_name(points.dtype),
            "axis": tensor.q_per_channel_axis(),
        }
