"""The tensors of an evaluation, by value: memory is shared as recorded, and freed after its last reader.

Theory of operation
    Views run as recorded and share memory, so that a write through one is seen through the others. After a write the
    same memory, with the same geometry, is the value of the next version. If no call showed a value with its geometry,
    it becomes a view of a tensor of its storage. Memory that nothing wrote holds random numbers, different ones on each
    side: what depends on them has no counterpart. It is allocated for a whole storage, as calls may write it slice by
    slice and read it whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import zip_longest
from typing import Final

import numpy as np
import torch

from ...dump import Value
from ...dump.tensors.tensor_reading import tensor_of_parts
from ...errors import AtenDumpError, ReplayError
from ...geometry import reach
from ..rerun.shared_memory import extent, wide

UNREADABLE: Final = (AtenDumpError, RuntimeError, TypeError, ValueError)  # errors of torch and the reader about bytes
_BLANK: Final = (0.5, 1.5)  # what lies in memory that nothing wrote
_LARGE: Final = 1 << 22  # elements; a longer one may be a buffer of which only slices are used
Group = tuple[int, int]  # (storage, 0), or (0, value) if there is no storage


def group_of(storage: int, value: int) -> Group:
    """Return the memory of a value: values of one storage live and die together."""
    return (storage, 0) if storage else (0, value)


class Memory:
    """Tensors by value."""

    def __init__(
        self,
        load: Callable[[Value], torch.Tensor | None],
        is_unseen: Callable[[Value], bool] = lambda value: False,
        seed: int = 0,
    ) -> None:
        """Start empty.

        Args:
            load: returns the contents of a value that no call made, or None.
            is_unseen: returns True if no call wrote the contents of a value.
            seed: for the contents of memory that nothing wrote.
        """
        self._load = load
        self._is_unseen = is_unseen
        self._generator = torch.Generator().manual_seed(seed)
        self._newest_version: dict[int, int] = {}  # by storage, of what was made or loaded
        self._by_id: dict[int, torch.Tensor] = {}
        self._by_place: dict[tuple[object, ...], torch.Tensor] = {}
        self._by_storage: dict[int, list[tuple[Value, torch.Tensor]]] = {}
        self._ids: dict[Group, list[int]] = {}
        self._places: dict[int, list[tuple[object, ...]]] = {}
        self._newest: dict[tuple[object, ...], Value] = {}
        self._bases: dict[int, _Base] = {}  # whole storages, of which only slices were seen, by storage

    def keep(self, value: Value, tensor: torch.Tensor) -> None:
        """Use a tensor for a value from now on."""
        storage = value.storage
        self._by_id[value.id] = tensor
        self._ids.setdefault(group_of(storage, value.id), []).append(value.id)
        if storage and not value.composed:
            if storage in self._bases and not value.undefined:
                self._bases[storage].note(value, tensor)
            place = value.record.place
            self._newest_version[storage] = max(value.version, self._newest_version.get(storage, 0))
            self._newest[place] = value
            if self._by_place.get(place) is not tensor:
                self._by_place[place] = tensor
                self._places.setdefault(storage, []).append(place)
                if tensor.layout is torch.strided and tensor.stride() == value.stride:
                    self._by_storage.setdefault(storage, []).append((value, tensor))

    def begin(self, value: Value, tensor: torch.Tensor) -> None:
        """Use a new tensor for a value: earlier values of its storage are elsewhere, and known only by id.

        An optimizer may move parameters into one long tensor, while a recording shows both as the same memory.
        """
        known = self._by_storage.get(value.storage, ()) if value.storage else ()
        if any(not _share(other, tensor) for _, other in known):
            self._forget(value.storage)
        self.keep(value, tensor)

    def _forget(self, storage: int) -> None:
        """Forget the tensors of a storage, except values that are known by id."""
        self._bases.pop(storage, None)
        self._by_storage.pop(storage, None)
        for place in self._places.pop(storage, ()):
            self._by_place.pop(place, None)
            self._newest.pop(place, None)

    def largest(self, storage: int) -> tuple[Value, torch.Tensor] | None:
        """Return the tensor that shows most of a storage, and its newest value, or None."""
        known = max(
            self._by_storage.get(storage, ()), key=lambda one: seen_of(one[0].shape, one[0].stride), default=None
        )
        return None if known is None else (self._newest.get(known[0].record.place, known[0]), known[1])

    def meant(self, value: Value) -> torch.Tensor | None:
        """Return the floats whose bytes a value shows, if it does."""
        if value.dtype_name != "uint8" or not value.storage:
            return None
        for other, tensor in reversed(self._by_storage.get(value.storage, ())):
            if (
                other.is_floating
                and extent(other) == extent(value)
                and other.numel * other.dtype.itemsize == value.numel
            ):
                return tensor
        return None

    def carry(self, source: Value, target: Value) -> None:
        """Copy the views in other dtypes along with all bytes of a storage."""
        if source.storage_offset or target.storage_offset:
            return
        nbytes = source.numel * source.dtype.itemsize
        for value, tensor in tuple(self._by_storage.get(source.storage, ())):
            fits = reach(value.shape, value.stride) + value.storage_offset <= nbytes // value.dtype.itemsize
            if value.is_floating and fits and target.storage != source.storage:
                self._by_storage.setdefault(target.storage, []).append((value, tensor.clone()))

    def free(self, groups: Iterable[Group]) -> None:
        """Forget the tensors of some memory."""
        for group in groups:
            for number in self._ids.pop(group, ()):
                self._by_id.pop(number, None)
            if group[0]:
                self._forget(group[0])

    def known(self, value: Value) -> torch.Tensor | None:
        """Return the tensor of a value that was made or loaded, or None."""
        found = self._by_id.get(value.id)
        if found is None and value.storage and not value.composed:
            self._forget_what_was_written_over(value)
            found = self._by_place.get(value.record.place)
            found = self._laid_over(value) if found is None else found
            base = self._bases.get(value.storage)
            found = base.seen_as(value) if found is None and base is not None else found
        return found

    def _forget_what_was_written_over(self, value: Value) -> None:
        """Forget the tensors of a storage after an unrecorded write, as of a compiled kernel."""
        newest = self._newest_version.get(value.storage, value.version)
        if value.version > newest and value.has_data and self._is_unseen(value):
            self._newest_version[value.storage] = value.version
            self._forget(value.storage)

    def find(self, value: Value) -> torch.Tensor:
        """Return the tensor of a value.

        Raises:
            ReplayError: nothing made it, and it cannot be loaded.
        """
        found = self.known(value)
        if found is None and value.layout_name != "strided" and value.parts and not value.from_outside:
            found = tensor_of_parts(value, {name: partial(self.find, part) for name, part in value.parts.items()})
        if found is None and value.undefined:
            return self.blank(value)
        if found is None:
            found = self._load(value)
        if found is None:
            raise ReplayError(f"{value!r} was neither recorded nor made by a call")
        return found

    def blank(self, value: Value) -> torch.Tensor:
        """Return unwritten memory for a value that is only written to."""
        found = self.known(value)
        if found is None and value.storage in self._bases:
            found = self._bases[value.storage].slice_of(value)
        if found is None:
            dtype = wide(value.dtype)
            is_slice = value.numel * value.dtype.itemsize < value.storage_nbytes and not value.composed
            if is_slice and value.storage and 0 not in value.stride and value.storage not in self._bases:
                base = self._bases[value.storage] = _Base(value, self._unwritten(dtype, _elements(value)))
                found = base.slice_of(value)
            if found is None:
                flat = self._unwritten(dtype, reach(value.shape, value.stride))
                found = flat.as_strided(value.shape, value.stride)
            self.keep(value, found)
        return found

    def _unwritten(self, dtype: torch.dtype, count: int) -> torch.Tensor:
        """Return unwritten memory, as one dimension."""
        if count > _LARGE:  # pages are not touched yet
            return torch.from_numpy(np.zeros(count * dtype.itemsize, np.uint8)).view(dtype)
        found = torch.empty(count, dtype=dtype)
        if dtype.is_floating_point:
            return found.uniform_(*_BLANK, generator=self._generator)
        return found.fill_(_BLANK[0]) if dtype.is_complex else found.zero_()  # they may be indices

    def _laid_over(self, value: Value) -> torch.Tensor | None:
        """Return a view on the newest tensor of the same storage that reaches as far."""
        for other, tensor in reversed(self._by_storage.get(value.storage, [])):
            first = value.storage_offset - other.storage_offset
            is_alike = _bits(other) == _bits(value)
            if is_alike and first >= 0 and first + reach(value.shape, value.stride) <= reach(other.shape, other.stride):
                return tensor.as_strided(value.shape, value.stride, tensor.storage_offset() + first)
        return None


class _Base:
    """A whole storage, of which only slices were seen."""

    def __init__(self, value: Value, memory: torch.Tensor) -> None:
        self._memory = memory
        self._kind = _bits(value)
        self._written = torch.zeros(memory.numel(), dtype=torch.bool)

    def note(self, value: Value, tensor: torch.Tensor) -> None:
        """Note that a value was written, if it lies here."""
        if self._fits(value) and _share(tensor, self._memory):
            self._written.as_strided(value.shape, value.stride, value.storage_offset).fill_(True)

    def seen_as(self, value: Value) -> torch.Tensor | None:
        """Return the contents of a value, if all of it was written."""
        if not self._fits(value) or not self._written.as_strided(value.shape, value.stride, value.storage_offset).all():
            return None
        return self.slice_of(value)

    def slice_of(self, value: Value) -> torch.Tensor | None:
        """Return the memory of a value, written or not."""
        if not self._fits(value):
            return None
        return self._memory.as_strided(value.shape, value.stride, value.storage_offset)

    def _fits(self, value: Value) -> bool:
        end = value.storage_offset + reach(value.shape, value.stride)
        return _bits(value) == self._kind and end <= self._memory.numel()


def _elements(value: Value) -> int:
    return value.storage_nbytes // value.dtype.itemsize


def _share(one: torch.Tensor, other: torch.Tensor) -> bool:
    return other.layout is torch.strided and one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _bits(value: Value) -> tuple[object, ...]:
    return value.dtype_name, value.conjugate, value.negative


def seen_of(shape: Sequence[int], stride: Sequence[int]) -> tuple[int, int]:
    """Return how many elements of its memory a tensor shows; repeated elements rank it lower among equals."""
    count = math.prod(size for size, step in zip_longest(shape, stride, fillvalue=1) if step)
    return count, -math.prod(shape)
