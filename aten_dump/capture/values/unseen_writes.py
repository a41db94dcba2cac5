"""Finds writes that dispatch does not see, by what the memory holds: ``DumpConfig.dedup`` is not ``"version"``.

Theory of operation
    A storage's write version counts the writes of aten ops. numpy, a hand-launched kernel or another process writes
    without one, and the recorder would take the new contents for those it knows. Here every tensor that is looked at
    has its memory hashed (xxh3), and compared with the hash of the same bytes at the same version: another hash is a
    write that nobody told of, and begins a new version. Hashed is the whole storage where the tensor covers half of
    it, else the tensor's extent, so that views of one storage check one another and a slice of a huge buffer does not
    read the buffer. With ``dedup="sample"`` it is some words of host memory, evenly spaced, and both ends: enough for a
    kernel that writes all of a tensor, at a price that does not depend on its size.
"""

from __future__ import annotations

import ctypes
from time import perf_counter
from typing import Final

import numpy as np
import torch
import xxhash

from ...store.writing.host_bytes import memory_at
from ..data.byte_copies import copy_bytes
from ..memory.geometry import byte_extent
from ..memory.storages import StorageState
from ..torch_internals.addresses import address_of_storage

_SAMPLES: Final = 64  # words of a tensor that are looked at
_WORD: Final = 8
_Extents = dict[tuple[int, int], bytes]  # first byte, past the last byte -> digest


class UnseenWrites:
    """What the storages of one step were last seen to hold."""

    __slots__ = ("_known", "_sampled", "_seconds", "count")

    def __init__(self, seconds: dict[str, float], *, sampled: bool = False) -> None:
        self._seconds = seconds
        self._sampled = sampled  # some words of each tensor, of host memory alone
        self._known: dict[int, tuple[int, _Extents]] = {}  # storage id -> version, its extents
        self.count = 0

    def check(self, tensor: torch.Tensor, state: StorageState) -> None:
        """Begin a new version of the storage if its contents are not those seen at this version."""
        low, high = byte_extent(tensor)
        if low == high or high > state.nbytes or tensor.device.type == "meta" or tensor._is_zerotensor():
            return
        if self._sampled and tensor.device.type != "cpu":
            return
        if state.written is not None and state.written.in_flight:
            return  # its contents change, and mean nothing until the collective is complete
        if state.nbytes <= 2 * (high - low):
            low, high = 0, state.nbytes
        version, extents = self._known.get(state.id, (-1, {}))
        start = perf_counter()
        changed = version == state.version and any(
            digest != self._digest(tensor, a, b) for (a, b), digest in extents.items() if a < high and low < b
        )
        if changed:
            state.bump()
            state.written = None
            self.count += 1
        if version != state.version:
            extents = {}
            self._known[state.id] = state.version, extents
        if (low, high) not in extents:
            extents[low, high] = self._digest(tensor, low, high)
        self._seconds["hash"] += perf_counter() - start

    def _digest(self, tensor: torch.Tensor, low: int, high: int) -> bytes:
        """Hash bytes [low, high) of the storage of `tensor`, or some of them."""
        if self._sampled and high - low > _SAMPLES * _WORD:
            stride = (high - low - _WORD) // (_SAMPLES - 1)
            memory = memory_at(address_of_storage(tensor) + low, high - low)
            return xxhash.xxh3_64_digest(np.ndarray((_SAMPLES,), np.uint64, memory, 0, (stride,)).tobytes())
        if tensor.device.type == "cpu":
            return xxhash.xxh3_64_digest(memory_at(address_of_storage(tensor) + low, high - low))
        host = (ctypes.c_char * (high - low))()
        wait = copy_bytes(tensor, low, {"copy": 0.0})(0, ctypes.addressof(host), high - low)
        if wait is not None:
            wait()
        return xxhash.xxh3_64_digest(host)
