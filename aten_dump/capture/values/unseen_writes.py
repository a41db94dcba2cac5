"""Finds writes that dispatch does not see, by what the memory holds: ``DumpConfig.dedup`` is not ``"version"``.

Theory of operation
    A storage's write version counts the writes of aten ops. numpy, a hand-launched kernel or another process writes
    without one, and the recorder would take the new contents for those it knows. Here every tensor that is looked at
    has its memory hashed (xxh3), and compared with the hash of the same bytes at the same version: another hash is a
    write that nobody reported, and begins a new version. Hashed is the whole storage where the tensor covers half of
    it, else the tensor's extent, so that views of one storage check one another and a slice of a huge buffer does not
    read the buffer. With ``dedup="sample"`` it is some words of host memory, evenly spaced, and both ends: enough for a
    kernel that writes all of a tensor, at a price that does not depend on its size. Where these lie is kept for each
    extent, so that to look again is one copy of as many words.
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
_MOST_VIEWS: Final = 1 << 14  # some are of memory that was freed; none is read unless a tensor lies there again
_Extents = dict[tuple[int, int], bytes]  # first byte, past the last byte -> digest


class UnseenWrites:
    """What the storages of one step were last seen to hold."""

    __slots__ = ("_known", "_seconds", "_words", "count", "rests")

    def __init__(self, seconds: dict[str, float], *, sampled: bool = False) -> None:
        self._seconds = seconds
        self._words = _Words() if sampled else None  # of host memory alone
        self._known: dict[int, tuple[int, _Extents]] = {}  # storage id -> version, its extents
        self.count = 0
        self.rests = False  # no memory is to be read

    def check(self, tensor: torch.Tensor, state: StorageState) -> None:
        """Begin a new version of the storage if its contents are not those seen at this version."""
        if self.rests or (self._words is not None and self._words.are_as_seen(tensor, state)):
            return
        start = perf_counter()
        extent = _extent(tensor, state) if self._words is None else self._words.extent(tensor, state)
        if extent is None or (state.written is not None and state.written.in_flight):
            return  # the contents change, and mean nothing until a collective is complete
        version, extents = self._known.get(state.id, (-1, {}))
        now: bytes | None = None
        if version == state.version:
            for known, digest in extents.items():
                if known == extent:
                    now = found = self._digest(tensor, known)
                elif known[0] < extent[1] and extent[0] < known[1]:
                    found = self._digest(tensor, known)
                else:
                    continue
                if found != digest:
                    state.bump()
                    state.written = None
                    self.count += 1
                    break
        if version != state.version:
            extents = {}
            self._known[state.id] = state.version, extents
        if extent not in extents:
            extents[extent] = self._digest(tensor, extent) if now is None else now
            if self._words is not None:
                self._words.saw(tensor, state, extents)
        self._seconds["hash"] += perf_counter() - start

    def _digest(self, tensor: torch.Tensor, extent: tuple[int, int]) -> bytes:
        """Hash some bytes of the storage of `tensor`; of a sample these are the words themselves."""
        if self._words is not None:
            return self._words.read(tensor, extent)
        low, high = extent
        if tensor.device.type == "cpu":
            return xxhash.xxh3_64_digest(memory_at(address_of_storage(tensor) + low, high - low))
        host = (ctypes.c_char * (high - low))()
        wait = copy_bytes(tensor, low, {"copy": 0.0})(0, ctypes.addressof(host), high - low)
        if wait is not None:
            wait()
        return xxhash.xxh3_64_digest(host)


def _extent(tensor: torch.Tensor, state: StorageState) -> tuple[int, int] | None:
    """Return which bytes of its storage are looked at for a tensor; None of one whose memory cannot be read."""
    low, high = byte_extent(tensor)
    if low == high or high > state.nbytes or tensor.device.type == "meta" or tensor._is_zerotensor():
        return None
    return (0, state.nbytes) if state.nbytes <= 2 * (high - low) else (low, high)


class _Words:
    """Some words of storages, by where they lie."""

    __slots__ = ("_seen", "_views", "_whole")

    def __init__(self) -> None:
        # By storage id, where all of it was looked at and nothing else: version, address, bytes, words, what they were.
        self._seen: dict[int, tuple[int, int, int, np.ndarray, bytes]] = {}
        self._whole: dict[int, tuple[int, int]] = {}  # storage id -> all its bytes, of one that can be read
        self._views: dict[tuple[int, tuple[int, int]], np.ndarray] = {}  # by address of a storage, and which bytes

    def are_as_seen(self, tensor: torch.Tensor, state: StorageState) -> bool:
        """Return True if the whole storage of a tensor holds the words that were seen: the quick answer for most."""
        seen = self._seen.get(state.id)
        return (
            seen is not None
            and seen[0] == state.version
            and seen[2] == state.nbytes <= 2 * tensor.nbytes
            and seen[1] == address_of_storage(tensor)
            and seen[3].tobytes() == seen[4]
        )

    def saw(self, tensor: torch.Tensor, state: StorageState, extents: _Extents) -> None:
        """Note the words of a version of a storage; one that is looked at in parts has no quick answer."""
        whole = 0, state.nbytes
        address = address_of_storage(tensor)
        view = self._views.get((address, whole))
        if len(extents) == 1 and whole in extents and view is not None:
            self._seen[state.id] = state.version, address, state.nbytes, view, extents[whole]
        else:
            self._seen.pop(state.id, None)

    def extent(self, tensor: torch.Tensor, state: StorageState) -> tuple[int, int] | None:
        """Return which bytes are looked at; of most tensors it is known that they cover their storage."""
        whole = self._whole.get(state.id)
        nbytes = state.nbytes
        if whole is not None and whole[1] == nbytes <= 2 * tensor.nbytes:
            return whole
        found = _extent(tensor, state) if tensor.device.type == "cpu" else None
        if found is not None and found == (0, nbytes):
            self._whole[state.id] = found
        return found

    def read(self, tensor: torch.Tensor, extent: tuple[int, int]) -> bytes:
        """Return what lies there now."""
        address = address_of_storage(tensor)
        key = address, extent
        view = self._views.get(key)
        if view is None:
            low, high = extent
            memory = memory_at(address + low, high - low)
            if high - low > _SAMPLES * _WORD:
                stride = (high - low - _WORD) // (_SAMPLES - 1)
                view = np.ndarray((_SAMPLES,), np.uint64, memory, 0, (stride,))
            else:
                view = np.frombuffer(memory, np.uint8)
            if len(self._views) >= _MOST_VIEWS:
                self._views.clear()
            self._views[key] = view
        return view.tobytes()
