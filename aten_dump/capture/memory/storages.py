"""What is known of one storage: how often it was written, which of it is defined, its values and stored bytes.

Every write that dispatch sees makes a new version; what is known of a version is forgotten with it. Memory from
``torch.empty`` is undefined until written; see `written_bytes`.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import xxhash

from ...store.records import Tree
from ...store.writing.host_bytes import memory_at
from ...torch_names import referred_storage
from ..collector import HIDES, hide
from ..torch_internals.addresses import address_in
from .geometry import Geometry
from .written_bytes import WrittenRanges

Stored = tuple[int, int, Any, int]  # see `StorageState.blobs`


class WriteClock:
    """Counts the writes to all storages: the clock of `StorageState.written_at`."""

    __slots__ = ("writes",)  # of an instance: to set a class's attribute slows down each look-up of its others

    def __init__(self) -> None:
        self.writes = 0


CLOCK: Final = WriteClock()


class WholeFacts:
    """Which values that cover a storage have its facts, by dtype."""

    __slots__ = ("hash", "statistics")

    def __init__(self) -> None:
        self.hash: dict[torch.dtype, int] = {}
        self.statistics: dict[torch.dtype, int] = {}


class StorageState:
    """What is known of one storage at its present version."""

    __slots__ = (
        "blobs",
        "format",
        "id",
        "memory",
        "nbytes",
        "others",
        "place",
        "shared",
        "value",
        "version",
        "weak",
        "whole",
        "written",
        "written_at",
    )

    def __init__(self, number: int, nbytes: int, weak: int) -> None:
        self.id = number
        self.nbytes = nbytes
        self.weak = weak
        self.shared: list[StorageState] | None = None  # with it, all that lie in one memory: see `SharedMemory`
        self.format: str | None = None  # of a device's own, in which elements do not lie as strides say
        self.memory = 0  # the value that is its memory as it lies, in such a format, where wanted
        self.version = 0
        self.written_at = 0  # `CLOCK.writes` when this version began
        # Where the first value of this version lies, its geometry or its key (see `known_values`), and that value as
        # all records name it: most have one value, and comparing costs less than hashing. Then the others.
        self.place: Geometry | bytes | None = None
        self.value: Tree = None
        self.others: dict[Geometry | bytes, Tree] | None = None
        # Stored extents: first byte, past the last byte, the blob's id or the batch that will be one, byte in the blob.
        self.blobs: list[Stored] | tuple[()] = ()
        # None until something is known: with data="structure" nothing ever is. Where one value alone has all facts, its
        # dtype and itself.
        self.whole: WholeFacts | tuple[torch.dtype, int] | None = None
        self.written: WrittenRanges | None = None  # None: all of it is defined

    def bump(self) -> None:
        """Begin a new version: the memory was written."""
        CLOCK.writes += 1
        self._begin(self.version + 1)
        for other in self.shared or ():
            if other is not self:
                other.written = None
                other._begin(self.version)

    def _begin(self, version: int) -> None:
        self.written_at = CLOCK.writes
        self.version = version
        self.place = self.value = self.others = None
        self.blobs = ()
        self.whole = None
        self.memory = 0

    def add_value(self, place: Geometry | bytes, value: Tree) -> None:
        """Note a value that is new to this version."""
        if self.value is None:
            self.place, self.value = place, value
        elif self.others is None:
            self.others = {place: value}
        else:
            self.others[place] = value

    def whole_facts(self) -> WholeFacts:
        """Return what is known of values that cover the storage, to be added to."""
        whole = self.whole
        if isinstance(whole, WholeFacts):
            return whole
        self.whole = facts = WholeFacts()
        if whole is not None:
            facts.hash[whole[0]] = facts.statistics[whole[0]] = whole[1]
        return facts

    def add_blob(self, first: int, past: int, blob: Any, start: int) -> None:
        """Note that the bytes [first, past) are stored."""
        stored: Any = (first, past, blob, start)  # one object where it is compiled, too
        if isinstance(self.blobs, tuple):
            self.blobs = []
        self.blobs.append(stored)
        if HIDES:
            hide(self.blobs, stored)

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


def digest_of(state: StorageState) -> int | None:
    """Return a digest of the bytes of a storage; None of one that is gone, or not in host memory."""
    storage = referred_storage(state.weak)
    if storage is None or storage.device.type != "cpu" or not state.nbytes or storage.nbytes() != state.nbytes:
        return None
    found = xxhash.xxh3_64_intdigest(memory_at(address_in(storage), state.nbytes))
    # Asked last: compiled, a variable lets go of its memory after its last use.
    return found if storage.nbytes() == state.nbytes else None


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """Return the storage of a tensor; None for one that has none: a sparse one, a wrapper."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None
