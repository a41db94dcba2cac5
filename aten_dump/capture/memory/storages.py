"""Which memory a tensor stands on, how often it was written, and which of it is defined.

Theory of operation
    A storage is known by the address of its StorageImpl. A weak reference keeps that address from being reused while
    a step is recorded; it does not keep the data. Every write that dispatch sees makes a new version; what is known
    of a version (its values, its stored bytes) is forgotten with it. Memory from ``torch.empty`` is undefined until
    written; see `written_bytes`.
"""

from __future__ import annotations

from typing import Any, Final, cast

import torch

from .geometry import Geometry
from .written_bytes import WrittenRanges

Stored = tuple[int, int, Any, int]
# States at which the freed ones are looked for. Each state and what hangs on it is walked by Python's collector.
_LEAST_PURGE: Final = 1024


class ValueInfo:
    """A value that has been emitted, and whether its data are kept."""

    __slots__ = ("flags", "id", "is_kept")

    def __init__(self, number: int, flags: int, is_kept: bool) -> None:
        self.id = number
        self.flags = flags
        self.is_kept = is_kept


class WriteClock:
    """Counts the writes to all storages: the time that `StorageState.written_at` is told in."""

    __slots__ = ("writes",)  # of an instance: to set a class's attribute slows down each look-up of its others

    def __init__(self) -> None:
        self.writes = 0


CLOCK: Final = WriteClock()


class StorageState:
    """What is known of one storage at its present version."""

    __slots__ = (
        "blobs",
        "id",
        "is_meta",
        "nbytes",
        "values",
        "version",
        "weak",
        "whole_hash",
        "whole_statistics",
        "written",
        "written_at",
    )

    def __init__(self, number: int, nbytes: int, weak: int, is_meta: bool = False) -> None:
        self.id = number
        self.nbytes = nbytes
        self.weak = weak
        self.is_meta = is_meta  # without memory
        self.version = 0
        self.written_at = 0  # `CLOCK.writes` when this version began
        self.values: dict[Geometry, Any] = {}
        # Stored extents: first byte, past the last byte, the blob's id or the batch that will be one, byte in the blob.
        self.blobs: list[Stored] | tuple[()] = ()
        self.whole_statistics: dict[torch.dtype, int] = {}  # value that covers the storage -> has the statistics
        self.whole_hash: dict[torch.dtype, int] = {}
        self.written: WrittenRanges | None = None  # None: all of it is defined

    def bump(self) -> None:
        """Begin a new version: the memory was written."""
        CLOCK.writes += 1
        self.written_at = CLOCK.writes
        self.version += 1
        self.values = {}
        self.blobs = ()
        self.whole_statistics = {}
        self.whole_hash = {}

    def add_blob(self, first: int, past: int, blob: Any, start: int) -> None:
        """Note that the bytes [first, past) are stored."""
        if isinstance(self.blobs, tuple):
            self.blobs = []
        self.blobs.append((first, past, blob, start))

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

    __slots__ = ("_count", "_purge_at", "states")

    def __init__(self) -> None:
        self.states: dict[int, StorageState] = {}  # by the address of the StorageImpl
        self._count = 0
        self._purge_at = _LEAST_PURGE

    def add(self, storage: torch.UntypedStorage, is_meta: bool) -> StorageState:
        """Take in a storage that is not in `states`.

        Raises:
            NotImplementedError: its size is symbolic.
        """
        if len(self.states) >= self._purge_at:
            self._purge()
        nbytes = storage.nbytes()
        if type(nbytes) is not int:
            raise NotImplementedError("a storage of symbolic size has no memory")
        self._count += 1
        state = StorageState(self._count, nbytes, cast(int, storage._weak_ref()), is_meta)
        self.states[storage._cdata] = state
        return state

    def seen(self) -> int:
        """Return how many storages were seen so far: later ones have greater ids."""
        return self._count

    def invalidate_since(self, seen: int) -> None:
        """Forget the contents of the storages that came after the first so many: they may have been written unseen."""
        for state in self.states.values():
            if state.id > seen:
                state.bump()
                state.written = None

    def invalidate(self) -> None:
        """Forget the contents of every storage: something may have written unseen."""
        for state in self.states.values():
            state.bump()
            state.written = None

    def _purge(self) -> None:
        """Forget storages that the program has freed."""
        expired = torch.UntypedStorage._expired
        for address, state in list(self.states.items()):
            if expired(state.weak):
                torch.UntypedStorage._free_weak_ref(state.weak)
                del self.states[address]
        self._purge_at = max(_LEAST_PURGE, len(self.states) * 3 // 2)

    def clear(self) -> None:
        """Let go of every weak reference."""
        for state in self.states.values():
            torch.UntypedStorage._free_weak_ref(state.weak)
        self.states.clear()
