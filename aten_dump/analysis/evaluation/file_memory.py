"""Tensors of an evaluation that memory has no room for lie in files.

Theory of operation
    What is alive at once in a step may be more than the machine has free: float64 is up to four times what was
    recorded. Large results are counted while they live. From a third of what was free on, new ones are moved to files
    without names, which the system reads and writes as it needs the room. Views of them work as ever.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from typing import Final

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ..rerun.memory_need import free_bytes

_LARGE: Final = 1 << 20  # bytes from which on a storage counts


class FileMemory:
    """Moves tensors to files once those alive take a third of the memory that was free."""

    def __init__(self) -> None:
        """Take what is free now as what may be used."""
        self._most_bytes: int | None = None
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}  # large storages that are not in files, by address
        self._nbytes = 0

    def within(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return tensors that were just made, in files where memory has no room; those of one storage share one."""
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
        """Return True if a storage may stay where it is; it counts from now on."""
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
    """Return the bytes of a storage in a file that has no name any more: it goes with the last tensor.

    Raises:
        MemoryError: there is no room for it on the disk.
    """
    handle, path = tempfile.mkstemp(prefix="aten_dump_values_")
    try:
        os.posix_fallocate(handle, 0, storage.nbytes())  # else a full disk would end the process at the first write
        found = torch.UntypedStorage.from_file(path, True, storage.nbytes())
    except OSError as error:
        raise MemoryError(f"nor has {os.path.dirname(path)} room: {error.strerror}") from None
    finally:
        os.close(handle)
        os.unlink(path)
    return found.copy_(storage)
