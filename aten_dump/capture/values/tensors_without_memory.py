"""Tensors that have no bytes of their own: sparse ones, wrappers of others, and what nothing is known of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...store.records import OPAQUE
from ..memory.sparse_parts import sparse_parts
from ..unseen import Coverage
from .tensor_subclasses import describe_subclass
from .value_records import ValueRecords

ValueOf = Callable[[torch.Tensor, bool], int]


class TensorsWithoutMemory:
    """The values of one step's tensors without bytes of their own."""

    def __init__(self, records: ValueRecords, coverage: Coverage) -> None:
        """Begin a step.

        Args:
            records: emits their values.
            coverage: is told of those that nothing is known of.
        """
        self._records = records
        self._coverage = coverage
        self._known: dict[tuple[Any, ...], int] = {}  # values of tensors made of other tensors

    def of_subclass(self, tensor: torch.Tensor, keep: bool, value_of: ValueOf) -> int:
        """Return the value of a tensor with a dispatch of its own.

        Args:
            tensor: if it stands on another one (a DTensor), that one is kept in its place.
            keep: keep the data of what it stands on.
            value_of: returns the value of that.
        """
        describe = describe_subclass(type(tensor))
        if describe is None:
            return self.opaque(tensor)
        inner, extra, identity = describe(tensor)
        local = value_of(inner, keep)
        key = (type(tensor), local, tensor.shape, tensor.stride(), tensor.requires_grad, identity)
        known = self._known.get(key)
        if known is None:
            extra = {**_class_and_device(tensor), **extra, "local": local}
            known = self._known[key] = self._records.without_storage(tensor, OPAQUE, extra)
        return known

    def without_storage(self, tensor: torch.Tensor, keep: bool, value_of: ValueOf) -> int:
        """Return the value of a tensor that has no storage; a sparse one is the same as long as its parts are."""
        parts = sparse_parts(tensor)
        if not parts:
            return self.opaque(tensor)
        ids = {name: value_of(part, keep) for name, part in parts.items()}
        is_coo = tensor.layout is torch.sparse_coo
        coalesced = is_coo and tensor.is_coalesced()
        key = (tensor.layout, tensor.shape, coalesced, *ids.values())
        known = self._known.get(key)
        if known is None:
            extra: dict[str, Any] = {"layout": str(tensor.layout)[len("torch.") :], "device": str(tensor.device)}
            extra["parts"] = ids
            if is_coo:
                extra |= {"coalesced": coalesced, "dense_dims": tensor.dense_dim()}
            known = self._known[key] = self._records.without_storage(tensor, 0, extra, strided=False)
        return known

    def opaque(self, tensor: torch.Tensor) -> int:
        """Return the value of a tensor of which the shape is all that can be recorded, if that."""
        extra = _class_and_device(tensor)
        self._coverage.add("wrapped_tensors", extra["class"])
        if tensor._has_symbolic_sizes_strides:
            return self._records.without_shape(extra)  # to ask a symbolic size for its number makes it a constant
        return self._of_shape(tensor, extra)

    def unknown_sum(self, like: torch.Tensor) -> int:
        """Return a new value with the geometry of `like` and no data: a sum that the recorder did not compute."""
        return self._of_shape(like, {"sum": True, "device": str(like.device)})

    def _of_shape(self, tensor: torch.Tensor, extra: dict[str, Any]) -> int:
        """Return a new value with the geometry of a tensor, if it has one that can be named, and no data."""
        try:
            return self._records.without_storage(tensor, OPAQUE, extra, tensor.layout is torch.strided)
        except (RuntimeError, TypeError, AttributeError):  # symbolic or nested sizes
            return self._records.without_shape(extra)


def _class_and_device(tensor: torch.Tensor) -> dict[str, Any]:
    kind = type(tensor)
    return {"class": f"{kind.__module__}.{kind.__qualname__}", "device": str(tensor.device)}
