"""Which memory a tensor stands on, how often it was written, and which of it is defined.

Theory of operation
    A storage is known by the address of its StorageImpl. A weak reference keeps that address from being reused while
    a step is recorded; it does not keep the data. Every write that dispatch sees makes a new version; what is known
    of a version (its values, its stored bytes) is forgotten with it. Memory from ``torch.empty`` is undefined until
    written; see `extents`.
"""

from __future__ import annotations

from typing import Any, cast

import torch

from .extents import Geometry, WrittenRanges


class ValueInfo:
    """A value that has been emitted, and which of its data are kept."""

    __slots__ = ("flags", "id", "kept")

    def __init__(self, number: int, flags: int) -> None:
        self.id = number
        self.flags = flags
        self.kept = 0


class StorageState:
    """What is known of one storage at its present version."""

    __slots__ = ("blobs", "id", "nbytes", "values", "version", "weak", "whole_hash", "whole_statistics", "written")

    def __init__(self, number: int, nbytes: int, weak: int) -> None:
        self.id = number
        self.nbytes = nbytes
        self.weak = weak
        self.version = 0
        self.values: dict[Geometry, Any] = {}
        self.blobs: list[tuple[int, int, int]] = []  # stored extents: first byte, past the last byte, blob id
        self.whole_statistics: dict[torch.dtype, int] = {}  # value that covers the storage -> has the statistics
        self.whole_hash: dict[torch.dtype, int] = {}
        self.written: WrittenRanges | None = None  # None: all of it is defined

    def bump(self) -> None:
        """Begin a new version: the memory was written."""
        self.version += 1
        self.values = {}
        self.blobs = []
        self.whole_statistics = {}
        self.whole_hash = {}

    def copy(self, tensor: torch.Tensor, other: WrittenRanges, source: torch.Tensor, geometry: Geometry) -> None:
        """Begin a new version after `source`, on memory of which `other` was written, was copied to `tensor`."""
        self.bump()
        if self.written is None:
            self.written = WrittenRanges(self.nbytes)
            self.written.define(0, self.nbytes)
        if self.written.copy(tensor, other, source, geometry):
            self.written = None

    def hide(self, low: int, high: int) -> None:
        """Begin a new version in which these bytes are undefined."""
        self.bump()
        if self.written is None:
            self.written = WrittenRanges(self.nbytes)
            self.written.define(0, self.nbytes)
        self.written.in_flight = True
        self.written.forget(low, high)

    def resize(self, before: int, now: int) -> None:
        """Begin a new version after the storage was resized: what it grew by is undefined."""
        self.nbytes = now
        if self.written is None and now > before:
            self.written = WrittenRanges(now)
            self.written.define(0, before)
        elif self.written is not None:
            self.written.resize(before, now)
        self.bump()


class StorageTable:
    """The storages seen in a step."""

    __slots__ = ("_count", "_purge_at", "_states")

    def __init__(self) -> None:
        self._states: dict[int, StorageState] = {}
        self._count = 0
        self._purge_at = 4096

    def find(self, storage: torch.UntypedStorage) -> tuple[StorageState, bool]:
        """Return the state of `storage`, and whether it is new."""
        address: int = storage._cdata
        state = self._states.get(address)
        if state is not None:
            return state, False
        if len(self._states) >= self._purge_at:
            self._purge()
        nbytes = storage.nbytes()
        if type(nbytes) is not int:
            raise NotImplementedError("a storage of symbolic size has no memory")
        self._count += 1
        state = self._states[address] = StorageState(self._count, nbytes, cast(int, storage._weak_ref()))
        return state, True

    def seen(self) -> int:
        """Return how many storages were seen so far: later ones have greater ids."""
        return self._count

    def invalidate_since(self, seen: int) -> None:
        """Forget the contents of the storages that came after the first so many: they may have been written unseen."""
        for state in self._states.values():
            if state.id > seen:
                state.bump()
                state.written = None

    def invalidate(self) -> None:
        """Forget the contents of every storage: something may have written unseen."""
        for state in self._states.values():
            state.bump()
            state.written = None

    def _purge(self) -> None:
        """Forget storages that the program has freed."""
        expired = torch.UntypedStorage._expired
        for address, state in list(self._states.items()):
            if expired(state.weak):
                torch.UntypedStorage._free_weak_ref(state.weak)
                del self._states[address]
        self._purge_at = max(4096, 2 * len(self._states))

    def clear(self) -> None:
        """Let go of every weak reference."""
        for state in self._states.values():
            torch.UntypedStorage._free_weak_ref(state.weak)
        self._states.clear()
