"""Tensors become values: one id per (storage, write version, geometry), and their data are kept once.

Theory of operation
    `ValueTable.value_of(tensor, keep)` is asked for every tensor of every call, before the op for its inputs and
    after it for its outputs. A geometry seen before at this version costs a dictionary look-up. A new one emits a
    Value record. With `keep`, the `Keeper` keeps the data that the configuration asks for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from ...store.records import (
    CONJUGATE,
    NEGATIVE,
    NOTE,
    OPAQUE,
    REQUIRES_GRAD,
    STORAGE,
    UNDEFINED,
    VALUE,
    Note,
    Storage,
    Value,
)
from ...store.sink import Emit
from ..data.keeper import Keeper
from ..memory.dtypes import dtype_name
from ..memory.geometry import Geometry, byte_extent
from ..memory.storages import StorageState, StorageTable, ValueInfo
from ..memory.written_bytes import WrittenRanges
from ..naming.interned_tables import Interner
from ..torch_internals.quiet import quiet
from ..unseen import Coverage
from .tensor_subclasses import Described, describe_subclass
from .unseen_writes import UnseenWrites

_TENSOR: Final = torch.Tensor
_is_functional: Final[Callable[[torch.Tensor], bool]] = torch._is_functional_tensor
_COMPLEX: Final = frozenset((torch.complex32, torch.complex64, torch.complex128))
_new: Final = tuple.__new__  # of a record, without the checks of a NamedTuple's own


class ValueTable:
    """The values of one step."""

    def __init__(
        self,
        emit: Emit,
        keeper: Keeper,
        interner: Interner,
        coverage: Coverage,
        unseen_writes: UnseenWrites | None = None,
    ) -> None:
        """Begin a step.

        Args:
            emit: takes Storage and Value records.
            keeper: keeps the data of the values; closed with this table.
            interner: of the step.
            coverage: is told of tensors whose memory cannot be seen.
            unseen_writes: looks for writes that dispatch does not see; None: those of dispatch are believed.
        """
        self._coverage = coverage
        self._emit = emit
        self._interner = interner
        self._storages = StorageTable()
        self._states = self._storages.states
        self._dtypes: dict[torch.dtype, int] = {}  # Text ids
        self._devices: dict[torch.device, int] = {}
        self._unseen_writes = unseen_writes
        self._plain: dict[type, bool] = {torch.Tensor: True, torch.nn.Parameter: True}
        self._composed: dict[tuple[Any, ...], int] = {}  # values of tensors made of other tensors
        self.count = 0
        self._keeper = keeper
        self._keeps_nothing = keeper.keeps_nothing

    def value_of(self, tensor: torch.Tensor, keep: bool) -> int:
        """Return the id of the value that `tensor` is at this moment.

        Args:
            tensor: any tensor, of any layout, device and subclass; it is not changed.
            keep: keep the data that the configuration asks for.
        """
        kind = type(tensor)
        if kind is not _TENSOR and not self._plain.get(kind, False) and not self._is_plain(kind):
            describe = describe_subclass(kind)
            return self._opaque(tensor) if describe is None else self._made_of(tensor, describe, keep)
        try:
            storage = tensor.untyped_storage()
            dtype = tensor.dtype
            geometry: Geometry = (
                tensor.storage_offset(),
                tensor.shape,
                tensor.stride(),
                dtype,
                dtype in _COMPLEX and tensor.is_conj(),
                tensor.is_neg(),
            )
            state = self._states.get(storage._cdata)
            if state is None:
                state = self._new_state(storage, tensor)
            elif storage.nbytes() != state.nbytes:  # resized, by an op or unseen: the memory may be another
                state.resize(state.nbytes, storage.nbytes())
        except (NotImplementedError, RuntimeError):  # sparse, nested, functorch wrappers: no storage or shape to name
            return self._without_storage(tensor, keep)
        if self._unseen_writes is not None:
            self._unseen_writes.check(tensor, state)
        info: ValueInfo | None = state.values.get(geometry)
        if info is None:
            if _is_functional(tensor):
                return self._opaque(tensor)  # it has a storage, but no memory
            # A plain tuple of plain tuples: Python's collector need not walk it.
            geometry = (geometry[0], tuple(geometry[1]), *geometry[2:])
            info = state.values[geometry] = self._new_value(tensor, state, geometry)
        if keep and not info.is_kept and not info.flags & (UNDEFINED | OPAQUE):
            self._keeper.keep(tensor, state, info)
        return info.id

    def knows(self, tensor: torch.Tensor) -> bool:
        """Tell whether the memory of `tensor` was seen before."""
        try:
            return tensor.untyped_storage()._cdata in self._states
        except (NotImplementedError, RuntimeError):
            return False

    def written(self, tensor: torch.Tensor) -> None:
        """Begin a new version of the storage of `tensor`: an op wrote to it."""
        try:
            state = self._state_of(tensor)
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
            state = self._state_of(tensor)
        except (NotImplementedError, RuntimeError):
            return
        if state.version == 0 and not state.values:
            state.written = WrittenRanges(state.nbytes)

    def unwritten(self, tensor: torch.Tensor) -> None:
        """Note that the memory of `tensor` is about to be written by others, and holds nothing until then."""
        try:
            state = self._state_of(tensor)
        except (NotImplementedError, RuntimeError):
            return
        state.hide(*byte_extent(tensor))

    def resized(self, storage: torch.UntypedStorage, before: int) -> None:
        """Note that the program resized `storage` itself, from so many bytes."""
        state = self._states.get(storage._cdata) or self._new_state(storage, storage)
        state.resize(before, storage.nbytes())

    def version_of(self, tensor: torch.Tensor) -> tuple[StorageState, int] | None:
        """Return the storage's state and its version now; None where there is no storage."""
        try:
            state = self._state_of(tensor)
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

    @property
    def finds_unseen_writes(self) -> bool:
        """Whether contents are looked at for writes that dispatch does not see (``dedup="content"``)."""
        return self._unseen_writes is not None

    def written_since(self, tensor: torch.Tensor, writes: int) -> bool:
        """Tell whether the memory of `tensor` was written since `writes` was so much."""
        known = self.version_of(tensor)
        if known is None:
            return False
        if self._unseen_writes is not None:
            self._unseen_writes.check(tensor, known[0])
        return known[0].written_at > writes

    def clear(self) -> None:
        """Let go of everything."""
        if self._unseen_writes is not None and self._unseen_writes.count:
            message = "writes that no op tells of (numpy, a custom kernel) were found by the contents of the memory"
            self._emit(Note(NOTE, "unseen_writes", message, self._unseen_writes.count))
        try:
            self._keeper.close()
        finally:
            self._storages.clear()

    def synthetic(self, like: torch.Tensor) -> int:
        """Return a new value with the geometry of `like` and no data: a sum that the recorder did not compute."""
        return self._emit_value(0, 0, 0, like, OPAQUE, {"sum": True, "device": str(like.device)})

    def _state_of(self, tensor: torch.Tensor) -> StorageState:
        storage = tensor.untyped_storage()
        state = self._states.get(storage._cdata)
        if state is None:
            return self._new_state(storage, tensor)
        if storage.nbytes() != state.nbytes:
            state.resize(state.nbytes, storage.nbytes())
        return state

    def _new_state(self, storage: torch.UntypedStorage, on: Any) -> StorageState:
        device = on.device
        state = self._storages.add(storage, device.type == "meta")
        text = self._devices.get(device)
        if text is None:
            text = self._devices[device] = self._interner.text(str(device))
        self._emit(_new(Storage, (STORAGE, state.id, state.nbytes, text)))
        return state

    # -- new values

    def _new_value(self, tensor: torch.Tensor, state: StorageState, geometry: Geometry) -> ValueInfo:
        flags = 0
        extra = None
        if geometry[4] or geometry[5]:
            flags = (CONJUGATE if geometry[4] else 0) | (NEGATIVE if geometry[5] else 0)
        if state.written is not None and not state.written.covers(tensor, (*geometry[:4], False, False)):
            flags |= UNDEFINED
        if state.nbytes == 0 and tensor.numel():
            flags |= UNDEFINED  # its memory was given back (FSDP's parameters between uses)
        if state.is_meta:
            flags |= OPAQUE
        elif tensor.is_quantized:
            extra = {"quantized": _quantization(tensor)}
        if tensor.requires_grad:
            flags |= REQUIRES_GRAD
        self.count = number = self.count + 1
        text = self._dtypes.get(geometry[3]) or self._dtype_text(geometry[3])
        offset, shape, stride = geometry[:3]
        self._emit(_new(Value, (VALUE, number, state.id, state.version, offset, text, shape, stride, flags, extra)))
        return ValueInfo(number, flags, self._keeps_nothing)

    def _dtype_text(self, dtype: torch.dtype) -> int:
        text = self._dtypes[dtype] = self._interner.text(dtype_name(dtype))
        return text

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
        dtype = self._dtypes.get(tensor.dtype) or self._dtype_text(tensor.dtype)
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
