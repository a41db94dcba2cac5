"""Keeps tensors of an evaluation in files if memory is short.

Theory of operation
    The tensors alive at one time in a step may need more than the free memory: float64 takes up to four times the
    recorded bytes. Large results are counted while they live. Once they take a third of the memory that was free, new
    ones are moved to files without names, which the system pages in and out. Views of them work as before.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from typing import Final

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ..rerun.memory_need import free_bytes

_LARGE: Final = 1 << 20  # storages of at least so many bytes count


class FileMemory:
    """Moves tensors to files once those alive take a third of the memory that was free."""

    def __init__(self) -> None:
        """Use the memory that is free now as the limit."""
        self._most_bytes: int | None = None
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}  # large storages that are not in files, by address
        self._nbytes = 0

    def within(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return new tensors, in files if memory is short; tensors of one storage share a file."""
        moved: dict[int, torch.UntypedStorage] = {}
        return [self._one_within(tensor, moved) for tensor in tensors]

    def _one_within(self, tensor: torch.Tensor, moved: dict[int, torch.UntypedStorage]) -> torch.Tensor:
        is_plain = tensor.layout is torch.strided and tensor.device.type == "cpu"
        if not is_plain or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
            return tensor
        storage = tensor.untyped_storage()
        if storage.nbytes() < _LARGE:
            return tensor
        address = storage.data_ptr()
        if address not in moved:
            if self._has_room(storage, address):
                return tensor
            moved[address] = _in_file(storage)
        found = torch.empty(0, dtype=tensor.dtype)
        return found.set_(moved[address], tensor.storage_offset(), tensor.shape, tensor.stride())

    def _has_room(self, storage: torch.UntypedStorage, address: int) -> bool:
        """Return True if a storage may stay in memory; it counts from now on."""
        known = self._alive.get(address)
        if storage.filename is not None or (known is not None and not known[0].expired()):
            return True
        if self._most_bytes is None:
            self._most_bytes = free_bytes() // 3
        if self._nbytes + storage.nbytes() > self._most_bytes:
            self._alive = {key: one for key, one in self._alive.items() if not one[0].expired()}
            self._nbytes = sum(nbytes for _, nbytes in self._alive.values())
        if self._nbytes + storage.nbytes() > self._most_bytes:
            return False
        self._alive[address] = StorageWeakRef(storage), storage.nbytes()
        self._nbytes += storage.nbytes()
        return True


def _in_file(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """Return the bytes of a storage in an unlinked file, which is freed with the last tensor.

    Raises:
        MemoryError: the disk is full.
    """
    handle, path = tempfile.mkstemp(prefix="aten_dump_values_")
    try:
        os.posix_fallocate(
            handle, 0, storage.nbytes()
        )  # otherwise a full disk would end the process at the first write
        found = torch.UntypedStorage.from_file(path, True, storage.nbytes())
    except OSError as error:
        raise MemoryError(f"nor has {os.path.dirname(path)} room: {error.strerror}") from None
    finally:
        os.close(handle)
        os.unlink(path)
    return found.copy_(storage)
