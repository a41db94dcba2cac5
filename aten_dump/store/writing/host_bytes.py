"""Bytes in host memory, as something that a `Sink` can store."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from time import perf_counter
from typing import Final

import numpy as np


def _unlocked_memmove() -> Callable[[int, int, int], object]:
    """Return a memmove that lets other Python threads run meanwhile, where the platform has one."""
    try:
        found = ctypes.CDLL(None).memmove
    except (AttributeError, OSError, TypeError):
        return ctypes.memmove
    found.argtypes, found.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t], None
    return found


_memmove = _unlocked_memmove()
_LONG_BYTES: Final = 64 << 10


def _bytes_at() -> Callable[[int, int], bytes]:
    """Return `bytes_at` without C. (``ctypes.string_at`` is a call of Python's more.)."""
    bytes_of = ctypes.pythonapi.PyBytes_FromStringAndSize
    bytes_of.argtypes, bytes_of.restype = [ctypes.c_void_p, ctypes.c_ssize_t], ctypes.py_object
    return bytes_of


def _memory_at() -> Callable[[int, int], memoryview]:
    """Return `memory_at` without C. (For an array of ctypes there would be a type for each length, for ever.)."""
    view_of = ctypes.pythonapi.PyMemoryView_FromMemory
    view_of.argtypes, view_of.restype = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int], ctypes.py_object
    return lambda address, nbytes: view_of(address, nbytes, 0x100)  # CPython's PyBUF_READ


# A copy of memory of the host, and a view of it, to be read: address and bytes. Whose it is must stay alive meanwhile.
try:
    from ._host_memory import bytes_at as bytes_at
    from ._host_memory import memory_at as memory_at
except ImportError:
    bytes_at: Callable[[int, int], bytes] = _bytes_at()  # type: ignore[no-redef]
    memory_at: Callable[[int, int], memoryview] = _memory_at()  # type: ignore[no-redef]


class HostBytes:
    """A `Fill` that copies bytes which are in host memory: nobody waits for a device."""

    __slots__ = ("_address", "_owner", "_seconds", "checksum")

    def __init__(self, address: int, owner: object = None, seconds: dict[str, float] | None = None) -> None:
        """Take the bytes from `address` on.

        Args:
            address: of the first byte.
            owner: keeps the memory alive.
            seconds: to whose "copy" the time of copying is added.
        """
        self._address = address
        self._owner = owner
        self._seconds = seconds
        self.checksum = b""  # xxh3_64 of what was copied last, where that was taken on the way

    @classmethod
    def of(cls, data: bytes) -> HostBytes:
        """Return the bytes of `data`."""
        return cls(np.frombuffer(data, np.uint8).ctypes.data if data else 0, data)

    def __call__(self, offset: int, address: int, nbytes: int) -> None:
        begun = perf_counter()
        self.checksum = b""
        self._copy(offset, address, nbytes)
        if self._seconds is not None:
            self._seconds["copy"] += perf_counter() - begun

    def _copy(self, offset: int, address: int, nbytes: int) -> None:
        (_memmove if nbytes >= _LONG_BYTES else ctypes.memmove)(address, self._address + offset, nbytes)
