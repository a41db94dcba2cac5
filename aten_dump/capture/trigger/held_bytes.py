"""The bytes of tensors that a ring holds: those that were used last, up to a budget."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...store.sink import Fill, Sink
from ...store.writing.host_bytes import HostBytes

_PIECE_BYTES: Final = 1 << 20
_ALIGNMENT: Final = 64


@dataclass(frozen=True, slots=True)
class _Blob:
    dtype: str
    shape: list[int]
    memory: NDArray[np.uint8]
    copies: list[Callable[[], None]]  # to wait for before the memory is read or freed


class HeldBytes:
    """The bytes of tensors that were used last, at most `most_bytes` of them."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._blobs: OrderedDict[int, _Blob] = OrderedDict()
        self._count = 0
        self.nbytes = 0
        self.copied_bytes = 0  # in all

    def keep(self, dtype: str, shape: list[int], nbytes: int, fill: Fill) -> int:
        """Copy a blob, for which others may have to go; one that is larger than all there is room for is not kept."""
        self._count += 1
        if nbytes > self._most_bytes:
            return self._count
        while self.nbytes + nbytes > self._most_bytes:
            self._drop(next(iter(self._blobs)))
        memory = np.empty(nbytes + _ALIGNMENT, np.uint8)
        shift = -memory.ctypes.data % _ALIGNMENT
        memory = memory[shift : shift + nbytes]
        address = memory.ctypes.data
        copies = []
        for offset in range(0, nbytes, _PIECE_BYTES):
            copied = fill(offset, address + offset, min(_PIECE_BYTES, nbytes - offset))
            if copied is not None:
                copies.append(copied)
        self._blobs[self._count] = _Blob(dtype, list(shape), memory, copies)
        self.nbytes += nbytes
        self.copied_bytes += nbytes
        return self._count

    def use(self, number: int) -> None:
        """Count a blob as used now."""
        if number in self._blobs:
            self._blobs.move_to_end(number)

    def write(self, number: int, sink: Sink) -> int:
        """Store a blob in `sink`; return its id there, 0 where it had to go or finds no room."""
        found = self._blobs.get(number)
        if found is None:
            return 0
        _wait(found)
        source = HostBytes(found.memory.ctypes.data, found.memory)
        return sink.store(found.dtype, found.shape, found.memory.nbytes, source)

    def clear(self) -> None:
        """Let all go: after that no copy is on its way to their memory."""
        for number in list(self._blobs):
            self._drop(number)

    def _drop(self, number: int) -> None:
        blob = self._blobs.pop(number)
        _wait(blob)
        self.nbytes -= blob.memory.nbytes


def _wait(blob: _Blob) -> None:
    for copied in blob.copies:
        copied()
    blob.copies.clear()
