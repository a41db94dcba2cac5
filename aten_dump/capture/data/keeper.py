"""Keeps the data of values: bytes, statistics and hashes, as the configuration asks for.

Theory of operation
    `Keeper.keep` is called for a value right when it was seen, since the next op may write or free its memory. Small
    contiguous tensors on the CPU are copied, and handled many at a time (`small_tensor_batches`). Of the others the
    bytes go to the sink (`stored_bytes`), statistics and hashes are computed on the spot; on a device all that is left
    for later (`device_batches`, `device_copies`).
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Final

import torch

from ...config import DumpConfig
from ...store.records import (
    CONJUGATE,
    HASH,
    NEGATIVE,
    NOTE,
    SAME,
    SAME_HASH,
    SAME_STATISTICS,
    STATISTICS,
    Hash,
    Note,
    Same,
    Statistics,
)
from ...store.sink import Sink
from ...store.writing.host_bytes import bytes_at
from ..devices import in_plain_format, private_memory
from ..memory.dtypes import ITEM_BYTES, dtype_name
from ..memory.geometry import Elements, Row, byte_extent, bytes_spanned, covers, has_no_gaps
from ..memory.storages import StorageState
from ..torch_internals.addresses import address_of
from ..torch_internals.quiet import quiet
from . import gather
from .byte_copies import copied_to_host
from .device_batches import BATCH_VALUES as DEVICE_VALUES
from .device_batches import DeviceBatches
from .hash_functions import digest_of_elements
from .hashes import MOST_BYTES, hash_later, hash_of, repeated_once, statistics_later, statistics_of
from .small_tensor_batches import BATCH_BYTES, BATCH_VALUES, SMALL_BYTES, Batches
from .statistics.one_pass import of_memory
from .stored_bytes import StoredBytes
from .tensor_bytes import copied_bytes
from .wanted_data import WantedData

_NO_MEMORY: Final = (
    "{device} has no memory left for what the recorder computes there: some data was copied to the host first, and the "
    "program waited for it"
)
KEPT: Final = 128  # a bit of a value's mark: its data are kept, or cannot be
_BITS: Final = CONJUGATE | NEGATIVE
Observe = Callable[[torch.Tensor, int, StorageState], None]


class Keeper:
    """Keeps the data of the values of one step."""

    def __init__(
        self, config: DumpConfig, sink: Sink, seconds: dict[str, float], observe: Observe | None = None
    ) -> None:
        """Begin a step.

        Args:
            config: says what to keep.
            sink: where it goes.
            seconds: what that takes is added up here.
            observe: is shown each tensor, with its value's id and its storage, for a trigger; None where none asks.
        """
        wanted = self._wanted = WantedData.of(config)
        self._sink = sink
        self._emit = sink.emit
        self._seconds = seconds
        self._observe = observe
        self._keeps_bytes = wanted.bytes
        self._keeps_facts = wanted.facts
        self._small_bytes = 0 if wanted.bytes and wanted.sample is not None else SMALL_BYTES
        if config.trigger is not None or config.max_bytes is not None:  # the first needs facts at once, the second
            self._batches = Batches(sink, wanted, 1, 1)  # counts bytes one value at a time
        else:
            self._batches = Batches(sink, wanted, BATCH_VALUES, min(BATCH_BYTES, config.shard_bytes))
        self.on_device = DeviceBatches(sink, wanted.statistics, 1 if callable(config.trigger) else DEVICE_VALUES)
        # xxh3 of stored bytes is taken anyway, for their checksum.
        hash_is_checksum = wanted.hash == "xxh3" and not config.holds_back
        self._stored = StoredBytes(sink, self._batches, seconds, wanted.sample, hash_is_checksum)
        self._said_no_memory = False
        # By the id of a value: its flags, and KEPT. (Compiled, a list of numbers is read for less than bytes are.)
        self.marks: list[int] = [0]
        self.keeps_memory = config.wants_private_memory  # of tensors in private formats, as it lies
        self.keeps_nothing = not (wanted.bytes or wanted.facts or observe)
        if not self.keeps_nothing:
            sink.on_tick(self._tick)

    def keep(
        self,
        tensor: torch.Tensor,
        state: StorageState,
        value: int,
        elements: Elements | None = None,
        row: Row | None = None,
    ) -> None:
        """Keep the data of a value, once for each.

        Args:
            tensor: it.
            state: its storage.
            value: its id.
            elements: where they lie, if that is known already.
            row: the row that they lie in, if that is known.
        """
        flags = self.marks[value]
        self.marks[value] = flags | KEPT
        try:
            if self._observe is not None:
                self._observe(tensor, value, state)
            if elements is None and not flags & _BITS:
                elements = _elements_in_a_row(tensor, row)
            try:
                if elements is None or state.format is not None:
                    self._keep_as_it_lies(tensor, state, value)
                    return
                nbytes: int = elements[2]
                if nbytes <= self._small_bytes and elements[3] is not None and elements[4] is None:
                    self._keep_small(state, value, elements)
                else:
                    self._keep_in_memory(tensor, state, value, elements)
            except torch.OutOfMemoryError:
                self._keep_on_host(tensor, state, value)
        except (RuntimeError, TypeError) as error:  # a tensor that torch itself cannot read
            self._unreadable(tensor, value, error)

    def flush(self) -> None:
        """Send what waits to the sink."""
        self._batches.flush()
        self.on_device.flush()

    def _tick(self) -> None:
        self._batches.tick()
        self.on_device.tick()

    def close(self) -> None:
        """End the step: send what waits, and expect no more."""
        self._sink.on_tick(None)
        self.flush()

    # -- tensors of which is known where they lie: for those in host memory no op is called

    def _keep_in_memory(self, tensor: torch.Tensor, state: StorageState, value: int, elements: Elements) -> None:
        if elements[1] + bytes_spanned(elements) > state.nbytes:  # the storage was shrunk under it: nothing to read
            return
        layout = elements[4]
        is_dense = layout is None or has_no_gaps(*layout)
        self._keep_elements(tensor, state, value, is_dense, elements)

    def _keep_small(self, state: StorageState, value: int, elements: Elements) -> None:
        """Keep a tensor with the next batch."""
        dtype = elements[0]
        low: int = elements[1]  # compiled, numbers of C's from here on
        nbytes: int = elements[2]
        high = low + nbytes
        if high > state.nbytes:  # the storage was shrunk under the tensor: nothing to read
            return
        stored, facts = self._keeps_bytes, self._keeps_facts
        if nbytes == state.nbytes and state.whole is None:
            state.whole = dtype, value
        elif nbytes == state.nbytes:
            known = state.whole_facts()
            other = known.hash.get(dtype)
            if other is None:
                known.hash[dtype] = known.statistics[dtype] = value
            elif facts:
                self._emit(Same(SAME, value, other, self._wanted.same_facts))
                facts = False
        if stored:
            for first, past, blob, base in state.blobs:
                if first <= low and high <= past:
                    self._stored.point(value, blob, base + low - first)
                    stored = False
                    break
        if stored or facts:
            batch, start = self._batches.add(dtype, stored, facts, value, bytes_at(elements[3], nbytes))
            if stored:
                state.add_blob(low, high, batch, start)

    def _keep_small_apart(self, tensor: torch.Tensor, value: int, elements: Elements | None) -> bool:
        """Keep the facts of a small tensor with the next batch, though its elements do not lie in a row: alone, they
        take a dozen ops. False where that cannot be.
        """
        dtype = tensor.dtype
        if dtype not in ITEM_BYTES or not tensor.is_cpu or not tensor.numel() or self.marks[value] & _BITS:
            return False
        if elements is not None and gather.IS_COMPILED:
            data = gather.bytes_of_elements(elements)
        else:
            with quiet():
                data = copied_bytes(tensor)
        self._batches.add(dtype, False, True, value, data)
        return True

    # -- all others

    def _keep_as_it_lies(self, tensor: torch.Tensor, state: StorageState, value: int) -> None:
        is_plain = tensor.layout is torch.strided and tensor.is_cpu and tensor.dtype in ITEM_BYTES
        if tensor._is_zerotensor() or (is_plain and not tensor.numel()):  # no op runs on one that torch.load makes
            self._keep_zeros(tensor, state, value)
        elif state.format is not None:
            self._keep_in_plain_format(tensor, state, value)
        else:
            self._keep(tensor, state, value)

    def _keep_on_host(self, tensor: torch.Tensor, state: StorageState, value: int) -> None:
        """Keep a tensor for which the device has no memory left: its bytes are copied first, which the program waits
        for, and all else is computed on the host.
        """
        on_host = copied_to_host(tensor)
        if not self._said_no_memory:
            self._said_no_memory = True
            self._emit(Note(NOTE, "device_memory", _NO_MEMORY.format(device=tensor.device), 1))
        self._keep(on_host, StorageState(state.id, on_host.untyped_storage().nbytes(), 0), value)

    def _keep(self, tensor: torch.Tensor, state: StorageState, value: int) -> None:
        if byte_extent(tensor)[1] > state.nbytes:  # the storage was shrunk under the tensor: nothing to read
            return
        self._keep_elements(tensor, state, value, not self.marks[value] & _BITS and covers(tensor))

    def _keep_elements(
        self, tensor: torch.Tensor, state: StorageState, value: int, is_dense: bool, elements: Elements | None = None
    ) -> None:
        """Keep a tensor; `is_dense` if its elements are all of a piece of memory, with no bits to be applied, and
        `elements` if it is known where they are.
        """
        wanted = self._wanted
        dtype = tensor.dtype
        if elements is None:
            nbytes, in_a_row = tensor.numel() * tensor.element_size(), tensor.is_contiguous()
        else:
            nbytes, in_a_row = elements[2], elements[4] is None
            if elements[3] is None:  # of a device: they are not to be read from here
                elements = None
        whole = is_dense and nbytes == state.nbytes
        is_small = nbytes <= self._small_bytes and self._keeps_facts and not whole
        if is_small and self._keep_small_apart(tensor, value, elements):
            if wanted.bytes:
                self._stored.keep(tensor, state, value, False, elements)
            return
        known = state.whole_facts()
        if wanted.statistics and not (whole and self._has_same(known.statistics, dtype, value, SAME_STATISTICS)):
            self._keep_statistics(tensor, value, elements, is_dense)
        wants_hash = bool(wanted.hash) and not (
            whole and in_a_row and self._has_same(known.hash, dtype, value, SAME_HASH)
        )
        as_it_lies = wants_hash and not self.marks[value] & _BITS
        if wanted.bytes and self._stored.keep(tensor, state, value, as_it_lies, elements):
            return
        if wants_hash:
            self._keep_hash(tensor, value, elements)

    def _has_same(self, known: dict[torch.dtype, int], dtype: torch.dtype, value: int, facts: int) -> bool:
        """Return True if a value that covers the same storage has these facts already, and say so in a record."""
        other = known.setdefault(dtype, value)
        if other == value:
            return False
        self._emit(Same(SAME, value, other, facts))
        return True

    def _keep_statistics(self, tensor: torch.Tensor, value: int, elements: Elements | None, is_dense: bool) -> None:
        names = self._wanted.statistics
        if elements is not None and is_dense:
            dtype, _, nbytes, address, _ = elements
            start = perf_counter()
            numbers = of_memory(dtype, address, nbytes // ITEM_BYTES[dtype], names)
            if numbers is not None:
                self._emit(Statistics(STATISTICS, value, numbers))
                self._seconds["statistics"] += perf_counter() - start
                return
        if self.on_device.add(value, tensor, is_dense):
            return
        if not statistics_later(self._sink, tensor, value, names):
            statistics_of(self._emit, tensor, value, names, self._seconds)

    def _keep_hash(self, tensor: torch.Tensor, value: int, elements: Elements | None) -> None:
        algorithm = self._wanted.hash
        if elements is not None and elements[2] > MOST_BYTES:
            tensor, elements = repeated_once(tensor), None
        if elements is not None:
            start = perf_counter()
            digest = digest_of_elements(algorithm, elements)
            if digest is not None:
                self._emit(Hash(HASH, value, digest))
                self._seconds["hash"] += perf_counter() - start
                return
        if not hash_later(self._sink, tensor, value, algorithm):
            hash_of(self._emit, tensor, value, algorithm, self._seconds)

    def _keep_zeros(self, tensor: torch.Tensor, state: StorageState, value: int) -> None:
        """Keep the zeros that a tensor stands for which has no memory (autograd makes such), or none."""
        with quiet():
            zeros = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu").zero_()
        self._keep(zeros, StorageState(state.id, zeros.untyped_storage().nbytes(), 0), value)

    def _keep_in_plain_format(self, tensor: torch.Tensor, state: StorageState, value: int) -> None:
        """Keep the elements of a tensor that lie in an order of the device's own."""
        with quiet():
            plain = in_plain_format(tensor).contiguous()
        elements = StorageState(state.id, plain.untyped_storage().nbytes(), 0)
        elements.format = state.format
        self._keep(plain, elements, value)
        del plain
        if state.memory and not self.marks[state.memory] & KEPT:
            self.marks[state.memory] |= KEPT
            self._keep_memory(tensor, state.memory)

    def _keep_memory(self, tensor: torch.Tensor, value: int) -> None:
        """Keep the memory of a tensor in a private format as it lies."""
        try:
            with quiet():
                memory = private_memory(tensor)
        except torch.OutOfMemoryError as error:
            self._unreadable(tensor, value, error)
            return
        self._stored.keep(memory, StorageState(0, memory.untyped_storage().nbytes(), 0), value, False)

    def _unreadable(self, tensor: torch.Tensor, value: int, error: Exception) -> None:
        """Record that data of a value could not be kept; the program does not depend on it."""
        kind = f"{dtype_name(tensor.dtype)} tensor of shape {tuple(tensor.shape)} on {tensor.device}"
        self._emit(Note(NOTE, "unreadable", f"value {value}, a {kind}: {str(error).partition(chr(10))[0]}", 1))


def _elements_in_a_row(tensor: torch.Tensor, row: Row | None) -> Elements | None:
    """Return where the elements of a tensor lie, if they do so in a row; no bits of it are set."""
    if row is None:
        dtype = tensor.dtype
        item_bytes = ITEM_BYTES.get(dtype)
        if item_bytes is None or not tensor.is_contiguous():
            return None
        row = dtype, int(tensor.storage_offset()) * item_bytes, tensor.numel() * item_bytes
    address = address_of(tensor) if row[2] else 0
    return (*row, address if tensor.is_cpu else None, None) if address else None
