"""Statistics of tensors on a device, brought over many at a time: no host sync, and one copy for a batch.

Theory of operation
    A tensor is reduced on its device, on the program's stream: by one kernel where there is Triton
    (`statistics/fused_results`), or else by torch's ops (`statistics/on_device`). These results stay there, a few
    hundred bytes for a value. When enough values have come, the results are copied in one go (`device_copies`), and
    the writer's thread makes the statistics of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeVar

import torch

from ...store.records import NOTE, STATISTICS, Note, Statistics
from ...store.sink import Sink
from ..devices import has_triton
from ..torch_internals.quiet import quiet
from .device_copies import copier_of, on_stream
from .flushing import Flushable
from .host_memory import as_array, host_tensor
from .statistics.fused_results import FusedResults
from .statistics.joined_results import JoinedResults
from .statistics.on_device import (
    FLOATS,
    FUSED,
    INTS,
    MOST_ELEMENTS,
    Reduced,
    pieces,
    reduce_floats,
    reduce_ints,
    together,
)
from .statistics.rows import row_lengths

BATCH_VALUES: Final = 512
BATCH_BYTES: Final = 4 << 20  # of results: a value of a gigabyte has some 40 KB of Triton's, or half a megabyte
_triton_failed: Final[set[str]] = set()  # device types
_Results = TypeVar("_Results", FusedResults, JoinedResults)


class DeviceBatches(Flushable):
    """The reduced values of one step whose results were not sent yet."""

    def __init__(self, sink: Sink, names: tuple[str, ...], most_values: int = BATCH_VALUES) -> None:
        super().__init__()
        self._sink = sink
        self._names = names
        self._most_values = most_values
        self._fused: dict[Any, FusedResults] = {}  # by stream
        self._joined: dict[Any, JoinedResults] = {}

    def add(self, value: int, tensor: torch.Tensor) -> bool:
        """Reduce a tensor on its device; returns False if it is none that can be."""
        dtype = tensor.dtype
        if not (dtype in FLOATS or dtype in INTS) or not tensor.numel() or copier_of(tensor.device) is None:
            return False
        stream = torch.accelerator.current_stream(tensor.device)
        if dtype in FUSED and self._add_fused(value, tensor, stream):
            return True
        entry = (value, *self.reduce(tensor))
        with self._lock:
            results = self._joined.get(stream) or JoinedResults(self._names, self._most_values, BATCH_BYTES)
            results.add(entry)
            self._send_or_keep(stream, results, self._joined)
        return True

    def reduce(self, tensor: torch.Tensor) -> tuple[list[int], Reduced]:
        """Reduce a tensor that is not empty where it is; return the lengths of its rows, and the results."""
        dtype = tensor.dtype
        with quiet():
            rows, parts = [], []
            for flat in pieces(tensor.view(torch.uint8) if dtype == torch.bool else tensor, MOST_ELEMENTS):
                parts.append((reduce_floats if dtype in FLOATS else reduce_ints)(flat.resolve_neg(), self._names))
                rows += row_lengths(flat.numel())
            return rows, together(parts)

    def _add_fused(self, value: int, tensor: torch.Tensor, stream: Any) -> bool:
        """Reduce a tensor in one pass; False where it cannot be."""
        device = tensor.device
        if device.type in _triton_failed or not has_triton(device.type):
            return False
        with self._lock, quiet():
            results = self._fused.get(stream)
            try:
                if results is None:
                    results = FusedResults(device, self._names, self._most_values, BATCH_BYTES)
                if tensor.is_neg() or not results.add(value, tensor):
                    return False
            except torch.OutOfMemoryError:  # the other way may do with less
                return False
            except Exception as error:  # noqa: BLE001 - whatever a compiler raises: the dump says so, and there is another way
                self._give_up_triton(device.type, error)
                return False
            self._send_or_keep(stream, results, self._fused)
            return True

    def _give_up_triton(self, kind: str, error: Exception) -> None:
        _triton_failed.add(kind)
        message = f"no Triton for {kind}, statistics take several passes: {type(error).__name__}: {error}"
        self._sink.emit(Note(NOTE, "triton", message.partition("\n")[0], 1))

    def _send_or_keep(self, stream: Any, results: _Results, kept: dict[Any, _Results]) -> None:
        """Send results that are full, and keep others for more to come; called with the lock held."""
        if results.is_full():
            kept.pop(stream, None)
            self._send_results(stream, results)
        else:
            kept[stream] = results

    def _send_results(self, stream: Any, results: FusedResults | JoinedResults) -> None:
        """Begin the one copy of all results, and have the statistics made when it is done."""
        copier = copier_of(stream.device)
        assert copier is not None  # or nothing had been added
        wait = None
        with quiet(), on_stream(stream):
            try:
                source = results.together()
            except torch.OutOfMemoryError:
                host = results.together_on_host()
            else:
                host = host_tensor(source.numel())
                wait = copier.copy(source, host, private=True)

        def records() -> Iterator[Statistics]:
            if wait is not None:
                wait()
            for value, numbers in results.statistics(as_array(host)):
                yield Statistics(STATISTICS, value, numbers)

        self._sink.later(records, host.numel())

    def _has_any(self) -> bool:
        return bool(self._fused or self._joined)

    def _send(self) -> None:
        fused, joined = self._fused, self._joined
        self._fused, self._joined = {}, {}
        for stream, columns in fused.items():
            self._send_results(stream, columns)
        for stream, results in joined.items():
            self._send_results(stream, results)
