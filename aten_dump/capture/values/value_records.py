"""Emits Storage and Value records, and numbers the values of a step."""

from __future__ import annotations

import math
from typing import Any

import torch

from ...store.records import CONJUGATE, NEGATIVE, OPAQUE, REQUIRES_GRAD, STORAGE, TREE_VALUE, UNDEFINED, VALUE, Value
from ...store.sink import Emit
from ..devices import private_shape
from ..memory.dtypes import dtype_name
from ..memory.geometry import Geometry
from ..memory.storages import StorageState
from ..naming.interned_tables import Interner
from ..torch_internals.quiet import quiet


class ValueRecords:
    """The records of one step's storages and values."""

    __slots__ = ("_devices", "_dtypes", "_emit", "_interner", "_keeps_memory", "_marks", "count")

    def __init__(self, emit: Emit, interner: Interner, marks: list[int], keeps_memory: bool = False) -> None:
        self.count = 0  # values so far
        self._marks = marks  # their flags are added to it
        self._keeps_memory = keeps_memory  # of those in private formats, as it lies
        self._emit = emit
        self._interner = interner
        self._dtypes: dict[torch.dtype, int] = {}  # Text ids
        self._devices: dict[torch.device, int] = {}

    def storage(self, state: StorageState, device: torch.device) -> None:
        """Emit a storage."""
        text = self._devices.get(device)
        if text is None:
            text = self._devices[device] = self._interner.text(str(device))
        self._emit((STORAGE, state.id, state.nbytes, text))

    def shared(self, state: StorageState, device: torch.device, whole: int, offset: int) -> None:
        """Emit a storage again, of which it is known now that it lies in the memory of another, from a byte on."""
        self._emit((STORAGE, state.id, state.nbytes, self._devices[device], whole, offset))

    def in_memory(
        self, tensor: torch.Tensor, state: StorageState, geometry: Geometry, is_plain: bool = False
    ) -> tuple[Any, ...]:
        """Emit the value of a tensor on a storage; return it as all records name it.

        Args:
            tensor: the tensor.
            state: its storage.
            geometry: where it lies there.
            is_plain: it is known to be neither quantized nor without memory, which need not be asked then.
        """
        flags = 0
        extra: dict[str, Any] | None = None
        offset, shape, stride, dtype, is_conj, is_neg = geometry
        if is_conj or is_neg:
            flags = (CONJUGATE if is_conj else 0) | (NEGATIVE if is_neg else 0)
        if state.written is not None and not state.written.covers(tensor, (*geometry[:4], False, False)):
            flags |= UNDEFINED
        if state.nbytes == 0 and tensor.numel():
            flags |= UNDEFINED  # its memory was given back (FSDP's parameters between uses)
        if is_plain:
            pass
        elif tensor.is_meta:
            flags |= OPAQUE
        elif tensor.is_quantized:
            extra = {"quantized": _quantization(tensor)}
        if state.format is not None:
            extra = {"format": state.format}
            if self._keeps_memory and not flags & UNDEFINED:
                extra["memory"] = self._memory(tensor, state)
        if tensor.requires_grad:
            flags |= REQUIRES_GRAD
        number = self._new_id(flags)
        text = self._dtypes.get(dtype) or self._dtype_text(dtype)
        if extra is not None:
            self._emit((VALUE, number, state.id, state.version, offset, text, shape, stride, flags, extra))
        elif flags:
            self._emit((VALUE, number, state.id, state.version, offset, text, shape, stride, flags))
        else:  # trailing fields with defaults may lack
            self._emit((VALUE, number, state.id, state.version, offset, text, shape, stride))
        return (TREE_VALUE, number)

    def _memory(self, tensor: torch.Tensor, state: StorageState) -> int:
        """Return the value that is the memory of a tensor in a private format; one for all views at this version."""
        if not state.memory:
            with quiet():
                shape = private_shape(tensor)
            number = self._new_id(0)
            stride = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
            dtype = self._dtypes.get(tensor.dtype) or self._dtype_text(tensor.dtype)
            self._emit((VALUE, number, 0, 0, 0, dtype, shape, stride, 0, {"device": str(tensor.device)}))
            state.memory = number
        return state.memory

    def without_storage(self, tensor: torch.Tensor, flags: int, extra: dict[str, Any], strided: bool = True) -> int:
        """Emit the value of a tensor that has no storage of its own; return its id.

        Raises:
            RuntimeError, TypeError, AttributeError: its sizes are symbolic or nested; nothing was emitted.
        """
        if tensor.requires_grad:
            flags |= REQUIRES_GRAD
        shape, stride = [int(n) for n in tensor.shape], list(tensor.stride()) if strided else []
        number = self._new_id(flags)
        dtype = self._dtypes.get(tensor.dtype) or self._dtype_text(tensor.dtype)
        self._emit(Value(VALUE, number, 0, 0, 0, dtype, shape, stride, flags, extra))
        return number

    def without_shape(self, extra: dict[str, Any]) -> int:
        """Emit the value of a tensor whose shape cannot be named; return its id."""
        number = self._new_id(OPAQUE)
        self._emit(Value(VALUE, number, 0, 0, 0, 0, [], [], OPAQUE, extra))
        return number

    def _new_id(self, flags: int) -> int:
        self.count = number = self.count + 1
        self._marks.append(flags)
        return number

    def _dtype_text(self, dtype: torch.dtype) -> int:
        text = self._dtypes[dtype] = self._interner.text(dtype_name(dtype))
        return text


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
