"""The bytes of tensors that a ring holds: those that were used last, up to a budget.

Theory of operation
    Blobs are copied into one area of memory, each behind the one before as far as there is room: memory that is fresh
    from the system costs as much again as the copy, as its pages are cleared first.
"""

from __future__ import annotations

from bisect import bisect
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
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
    start: int  # in the area
    copies: list[Callable[[], None]]  # to wait for before the memory is read or freed


class _Area:
    """Memory of one size, of which parts are taken and given back."""

    def __init__(self, nbytes: int) -> None:
        self._memory = _aligned(nbytes)  # the system gives its pages as bytes are copied to them
        self._free: list[tuple[int, int]] = [(0, nbytes)]  # in order, none beside another
        self._last = 0  # where the part that was taken last ends

    def take(self, nbytes: int) -> int:
        """Return where a part begins that was free, the next one behind the last; -1 where none is large enough."""
        first, count = bisect(self._free, (self._last, 0)), len(self._free)
        for place in chain(range(first, count), range(first)):
            start, end = self._free[place]
            if end - start >= nbytes:
                self._last = start + nbytes
                self._free[place : place + 1] = [(self._last, end)] if self._last < end else []
                return start
        return -1

    def give_back(self, start: int, nbytes: int) -> None:
        """Take a part back."""
        end = start + nbytes
        place = bisect(self._free, (start, 0))
        if place < len(self._free) and self._free[place][0] == end:
            end = self._free.pop(place)[1]
        if place and self._free[place - 1][1] == start:
            place -= 1
            start = self._free.pop(place)[0]
        self._free.insert(place, (start, end))

    def part(self, start: int, nbytes: int) -> NDArray[np.uint8]:
        """Return the memory of a part."""
        return self._memory[start : start + nbytes]


class HeldBytes:
    """The bytes of tensors that were used last, at most `most_bytes` of them."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._blobs: OrderedDict[int, _Blob] = OrderedDict()
        self._area: _Area | None = None  # None before the first blob
        self._count = 0
        self.nbytes = 0
        self.copied_bytes = 0  # in all

    def keep(self, dtype: str, shape: list[int], nbytes: int, fill: Fill) -> int:
        """Copy a blob, for which others may have to go; one that is larger than all there is room for is not kept."""
        self._count += 1
        area = self._area = self._area or self._new_area()
        if nbytes > self._most_bytes:
            return self._count
        while self.nbytes + nbytes > self._most_bytes:
            self._drop(next(iter(self._blobs)))
        while (start := area.take(_rounded(nbytes))) < 0:  # there is room, in pieces
            self._drop(next(iter(self._blobs)))
        blob = self._blobs[self._count] = _Blob(dtype, list(shape), area.part(start, nbytes), start, [])
        self.nbytes += nbytes
        self.copied_bytes += nbytes
        address = blob.memory.ctypes.data
        try:
            for offset in range(0, nbytes, _PIECE_BYTES):
                copied = fill(offset, address + offset, min(_PIECE_BYTES, nbytes - offset))
                if copied is not None:
                    blob.copies.append(copied)
        except BaseException:
            self._drop(self._count)
            raise
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
        self._area = None

    def _new_area(self) -> _Area:
        while True:
            try:
                return _Area(_rounded(self._most_bytes))
            except MemoryError:  # the budget is larger than the machine
                self._most_bytes //= 2

    def _drop(self, number: int) -> None:
        blob = self._blobs.pop(number)
        _wait(blob)
        self.nbytes -= blob.memory.nbytes
        if self._area is not None:
            self._area.give_back(blob.start, _rounded(blob.memory.nbytes))


def _rounded(nbytes: int) -> int:
    return max(1, -(-nbytes // _ALIGNMENT)) * _ALIGNMENT


def _aligned(nbytes: int) -> NDArray[np.uint8]:
    memory = np.empty(nbytes + _ALIGNMENT, np.uint8)
    shift = -memory.ctypes.data % _ALIGNMENT
    return memory[shift : shift + nbytes]


def _wait(blob: _Blob) -> None:
    for copied in blob.copies:
        copied()
    blob.copies.clear()
