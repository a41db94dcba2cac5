"""Which memory a tensor stands on, and what is written to it.

Theory of operation
    A storage is known by the address of its StorageImpl. A weak reference keeps that address from being reused while
    a step is recorded; it does not keep the data.

    An NPU's optimizers move tensors into a long one, each with a storage of its own. A write through one must be seen
    in all: storages that overlap in memory count their writes together, and each begins the same new version.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch

from ...torch_names import free_weak_ref, is_expired
from ..collector import HIDES, hide
from ..devices import HAVE_PRIVATE_FORMATS, private_format
from ..torch_internals.addresses import address_of_storage, is_copy_on_write
from ..torch_internals.quiet import quiet
from .geometry import Geometry, byte_extent
from .seen_bytes import SeenBytes
from .sparse_parts import sparse_parts
from .storages import StorageState, digest_of, storage_of
from .written_bytes import WrittenRanges

# States at which the freed ones are looked for. Each state and what hangs on it is walked by Python's collector.
_LEAST_PURGE: Final = 1024
# Of modules that are not compiled, by names that are final here: found without a look into a dict.
_free: Final = free_weak_ref
_PRIVATE: Final = HAVE_PRIVATE_FORMATS
_Report = Callable[
    [StorageState, torch.device, int, int], None
]  # a storage; the other one in which it lies, and its first byte
_types: Final[dict[torch.device, str]] = {}  # to read a device's type makes a string each time


class StorageTable:
    """The storages seen in a step."""

    __slots__ = ("_announce", "_count", "_purge_at", "_shared", "seen_bytes", "states")

    def __init__(self, announce: Callable[[StorageState, torch.device], None], report_shared: _Report) -> None:
        """Begin a step.

        Args:
            announce: is called with each storage when it is first seen, and its device.
            report_shared: is called with a storage that lies in the memory of another.
        """
        self._shared = SharedMemory(report_shared)
        self.states: dict[int, StorageState] = {}  # by the address of the StorageImpl
        self._announce = announce
        self._count = 0
        self._purge_at = _LEAST_PURGE
        self.seen_bytes = SeenBytes()

    # -- storages

    def add(self, storage: torch.UntypedStorage, on: Any) -> StorageState:
        """Take in a storage that is not in `states`; `on` is a tensor on it, or itself.

        Raises:
            NotImplementedError: its size is symbolic.
        """
        nbytes = storage.nbytes()
        if type(nbytes) is not int:
            raise NotImplementedError("a storage of symbolic size has no memory")
        device = on.device
        kind = _types.get(device)
        if kind is None:
            kind = _types[device] = device.type
        if kind not in _PRIVATE:
            return self.add_plain(storage, storage._cdata, nbytes, device)
        state = self._new_state(storage, storage._cdata, nbytes)
        if isinstance(on, torch.Tensor):
            with quiet():
                state.format = private_format(on)
        self._announce(state, device)
        if not (isinstance(on, torch.Tensor) and is_copy_on_write(on)):  # in that nobody sees what others write
            self._shared.add(state, storage.data_ptr(), device)
        return state

    def add_plain(self, storage: torch.UntypedStorage, address: int, nbytes: int, device: torch.device) -> StorageState:
        """Take in a storage at `address` that is not in `states`, on a device that has no formats of its own."""
        state = self._new_state(storage, address, nbytes)
        self._announce(state, device)
        return state

    def _new_state(self, storage: torch.UntypedStorage, address: int, nbytes: int) -> StorageState:
        if len(self.states) >= self._purge_at:
            self._purge()
        self._count += 1
        weak: Any = storage._weak_ref()
        state = self.states[address] = StorageState(self._count, nbytes, weak)
        if HIDES:
            hide(state, storage)
        return state

    def state_of(self, tensor: torch.Tensor) -> StorageState | None:
        """Return what is known of the storage of `tensor`; None where there is none."""
        try:
            storage = tensor.untyped_storage()
            state = self.states.get(storage._cdata)
            if state is None:
                return self.add(storage, tensor)
            if storage.nbytes() != state.nbytes:  # resized, by an op or unseen
                self.take_size(state, storage, state.nbytes)
        except (NotImplementedError, RuntimeError):
            return None
        return state

    def knows(self, tensor: torch.Tensor) -> bool:
        """Return True if the memory of `tensor` was seen before."""
        storage = storage_of(tensor)
        if storage is None:
            return False
        if storage._cdata in self.states:
            return True
        if HIDES:
            hide(storage)  # of each number that a node has saved torch keeps one
        return False

    def _purge(self) -> None:
        """Forget storages that the program has freed."""
        for address, state in list(self.states.items()):
            if is_expired(state.weak):
                _free(state.weak)
                del self.states[address]
                self.seen_bytes.forget(state)
        self._purge_at = max(_LEAST_PURGE, len(self.states) * 3 // 2)

    def clear(self) -> None:
        """Let go of every weak reference."""
        for state in self.states.values():
            _free(state.weak)
        self.states.clear()

    # -- writes

    def written(self, tensor: torch.Tensor) -> None:
        """Begin a new version of the storage of `tensor`, or of those of its parts: an op wrote to it."""
        state = self.state_of(tensor)
        if state is None:
            for part in sparse_parts(tensor).values():
                self.written(part)
            return
        state.bump()
        if state.written is not None and state.written.write(tensor, _geometry_of(tensor)):
            state.written = None

    def copied(self, tensor: torch.Tensor, source: torch.Tensor) -> None:
        """Begin a new version of the storage of `tensor`: it holds the elements of `source` now, defined or not."""
        theirs = self.state_of(source)
        if theirs is None or theirs.written is None:
            self.written(tensor)
            return
        ours = self.state_of(tensor)
        if ours is not None:
            ours.copy(tensor, theirs.written, source, _geometry_of(tensor))

    def cloned(self, tensor: torch.Tensor, source: torch.Tensor) -> None:
        """Note that `tensor` was just made with the elements of `source`, defined or not."""
        theirs = self.state_of(source)
        if theirs is not None and theirs.written is not None:
            self.undefined(tensor)
            self.copied(tensor, source)

    def undefined(self, tensor: torch.Tensor) -> None:
        """Note that the memory of `tensor` was just allocated and holds nothing yet."""
        state = None if tensor._has_symbolic_sizes_strides else self.state_of(tensor)  # what is jagged wraps its memory
        if state is not None and state.version == 0 and state.value is None:
            state.written = WrittenRanges(state.nbytes)

    def unwritten(self, tensor: torch.Tensor) -> None:
        """Note that the memory of `tensor` is about to be written by others, and holds nothing until then."""
        state = self.state_of(tensor)
        if state is not None:
            state.hide(*byte_extent(tensor))

    def moved(self, tensor: torch.Tensor) -> None:
        """Note that an op gave the storage of `tensor` the memory of another."""
        state = self.state_of(tensor)
        if state is not None:
            self._shared.add(state, address_of_storage(tensor), tensor.device)

    def resized(self, storage: torch.UntypedStorage, before: int) -> None:
        """Note that the program resized `storage` itself, from so many bytes."""
        self.take_size(self.states.get(storage._cdata) or self.add(storage, storage), storage, before)

    def take_size(self, state: StorageState, storage: torch.UntypedStorage, before: int) -> None:
        """Take in a new size, and where the memory now lies: FSDP gives it back for a while, and others get it."""
        state.resize(before, storage.nbytes())
        if storage.device.type in HAVE_PRIVATE_FORMATS:  # to be resized, it got memory of its own
            self._shared.add(state, storage.data_ptr(), storage.device)

    # -- writes that nobody sees

    def seen(self) -> int:
        """Return how many storages were seen so far, a mark for `invalidate_since`: later ones have greater ids."""
        return self._count

    def unwritten_contents(self) -> dict[int, int]:
        """Return a digest of each storage in host memory of which nothing, or a part, was written, by its id."""
        found: dict[int, int] = {}
        for state in list(self.states.values()):
            if state.written is not None and not state.written.in_flight:
                digest = digest_of(state)
                if digest is not None:
                    found[state.id] = digest
        return found

    def invalidate_since(self, mark: int) -> None:
        """Trust no contents of memory that came after `mark`: kernels that no mode sees write to it."""
        for state in self.states.values():
            if state.id > mark:
                state.bump()
                state.written = None

    def invalidate(self, before: dict[int, int] | None = None) -> None:
        """Trust no contents seen so far: the program ran unobserved.

        Args:
            before: what `unwritten_contents` gave before it did: what has not changed since was not written.
        """
        for state in self.states.values():
            if self.seen_bytes.are_in(state):
                continue
            state.bump()
            known = None if before is None else before.get(state.id)
            if state.written is not None and (known is None or known != digest_of(state)):
                state.written = None


def states_of(tensors: Iterable[torch.Tensor], table: StorageTable) -> list[StorageState]:
    """Return the storages of tensors, each once, but those that a collective is writing."""
    found = {
        id(state): state
        for tensor in tensors
        for part in sparse_parts(tensor).values() or (tensor,)
        if (state := table.state_of(part)) is not None and state.nbytes
    }
    return [state for state in found.values() if state.written is None or not state.written.in_flight]


class SharedMemory:
    """Where storages lie, in ranges that do not overlap; one that reaches into a storage that lives is joined to it."""

    __slots__ = ("_addresses", "_devices", "_ends", "_placed", "_report", "_reported", "_starts")

    def __init__(self, report: _Report) -> None:
        """Begin a step; `report` gets a storage, the id of the one in whose memory it lies, and the first byte."""
        self._report = report
        self._reported: dict[int, int] = {}  # in whose memory a storage lies, by ids
        self._addresses: dict[int, int] = {}  # by id of the storage
        self._devices: dict[int, torch.device] = {}
        self._starts: list[int] = []  # of ranges of memory, in order
        self._ends: list[int] = []
        self._placed: list[list[StorageState]] = []  # the storages in each range

    def add(self, state: StorageState, address: int, device: torch.device) -> None:
        """Take in a storage; one that was moved leaves those that it lay with."""
        if state.shared is not None:
            state.shared.remove(state)
            state.shared = None
        if not state.nbytes:
            return
        self._addresses[state.id] = address
        self._devices[state.id] = device
        start, end = address, address + state.nbytes
        first, last = bisect_right(self._ends, start), bisect_left(self._starts, end)
        others = [
            other
            for placed in self._placed[first:last]
            for other in placed
            if other is not state and other.nbytes and not is_expired(other.weak)
        ]
        self._starts[first:last] = [min((start, *self._starts[first:last]))]
        self._ends[first:last] = [max((end, *self._ends[first:last]))]
        self._placed[first:last] = [[*others, state]]
        shared = [other for other in others if start < self._end_of(other) and self._addresses[other.id] < end]
        if shared:
            self._join([state, *shared])

    def _end_of(self, state: StorageState) -> int:
        return self._addresses[state.id] + state.nbytes

    def _join(self, states: list[StorageState]) -> None:
        """Let storages, and those that they lie with already, count their writes together."""
        members: dict[int, StorageState] = {}
        for state in states:
            members |= {other.id: other for other in state.shared or [state]}
        shared = list(members.values())
        version = max(state.version for state in shared)
        whole = min(shared, key=lambda state: (self._addresses[state.id], -state.nbytes, state.id))
        for state in shared:
            state.shared, state.version = shared, version
            if self._reported.get(state.id, state.id) != whole.id:
                self._reported[state.id] = whole.id
                offset = self._addresses[state.id] - self._addresses[whole.id]
                self._report(state, self._devices[state.id], whole.id, offset)


def _geometry_of(tensor: torch.Tensor) -> Geometry:
    return tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype, False, False
