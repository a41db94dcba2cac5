"""Statistics of tensors on a device, brought over many at a time: no host sync, and one copy for a batch.

Theory of operation
    A tensor is reduced on its device, on the program's stream: by one kernel where there is Triton
    (`statistics/fused_results`), or else by torch's ops (`statistics/on_device`). These results stay there, a few
    hundred bytes for a value. When enough values have come, the results are copied in one go (`device_copies`), and
    the writer's thread makes the statistics of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch

from ...store.records import NOTE, STATISTICS, Note, Statistics
from ...store.sink import Sink
from ..devices import has_triton, saturates
from ..torch_internals.addresses import is_copy_on_write
from ..torch_internals.quiet import quiet
from .device_copies import copier_of, on_stream
from .flushing import Flushable
from .host_memory import as_array, host_tensor
from .statistics.fused_results import FusedResults, current_stream
from .statistics.joined_results import JoinedResults
from .statistics.on_device import FLOATS, FUSED, INTS, Reduced, reduce_tensor

BATCH_VALUES: Final = 512
BATCH_BYTES: Final = 4 << 20  # of results: a value of a gigabyte has some 40 KB of Triton's, or half a megabyte
_triton_failed: Final[set[str]] = set()  # device types


class DeviceBatches(Flushable):
    """The reduced values of one step whose results were not sent yet."""

    def __init__(self, sink: Sink, names: tuple[str, ...], most_values: int = BATCH_VALUES) -> None:
        super().__init__()
        self._sink = sink
        self._names = names
        self._most_values = most_values
        self._fused: dict[tuple[int, int], tuple[Any, FusedResults]] = {}  # by device and stream, with that
        self._joined: dict[Any, JoinedResults] = {}  # by stream
        self._held = 0  # how many lists of values are under way

    def hold(self) -> None:
        """Values of one list begin to come: one launch will do for many. `release` belongs in a ``finally``."""
        if not self._held:
            self._is_filled = True  # no tick sends what is not launched yet
            if self._is_ticking:
                self._wait_for_tick()
        self._held += 1

    def release(self) -> None:
        """All of them have come, and the program may go on."""
        self._held -= 1
        if self._held:
            return
        with self._lock:
            try:
                for _, results in self._fused.values():
                    self._launch(results)
            finally:
                self._is_filled = False

    def add(self, value: int, tensor: torch.Tensor, is_dense: bool) -> bool:
        """Reduce a tensor on its device; returns False if it is none that can be. No function mode may be asked.

        Args:
            value: its id.
            tensor: it.
            is_dense: it is known to be all of a piece of memory, with no bits to be applied.
        """
        dtype = tensor.dtype
        device = tensor.device
        if not (dtype in FLOATS or dtype in INTS) or not tensor.numel():
            return False
        if copier_of(device) is None or saturates(device.type):
            return False
        with self._lock:
            if not (dtype in FUSED and self._add_fused(value, tensor, device, is_dense)):
                self._add_joined(value, tensor)
        return True

    def reduce(self, tensor: torch.Tensor) -> tuple[list[int], Reduced]:
        """Reduce a tensor that is not empty where it is; return the lengths of its rows, and the results."""
        with quiet():
            return reduce_tensor(tensor, self._names)

    def _add_joined(self, value: int, tensor: torch.Tensor) -> None:
        stream = torch.accelerator.current_stream(tensor.device)
        entry = (value, *self.reduce(tensor))  # or there is no memory left
        results = self._joined.get(stream)
        if results is None:
            results = self._joined[stream] = JoinedResults(self._names, self._most_values, BATCH_BYTES)
        results.add(entry)
        if results.is_full():
            del self._joined[stream]
            self._send_results(stream, results)

    def _add_fused(self, value: int, tensor: torch.Tensor, device: torch.device, is_dense: bool) -> bool:
        """Reduce a tensor in one pass; False where it cannot be."""
        kind = device.type
        if kind in _triton_failed or not has_triton(kind) or (not is_dense and tensor.is_neg()):
            return False
        if is_copy_on_write(tensor):  # Triton would end it
            return False
        try:
            index = device.index or 0
            key = index, current_stream(index)
            found = self._fused.get(key)
            if found is None:
                found = self._fused[key] = self._begin(device)
            stream, results = found
            if not results.add(value, tensor, self._held > 0 and self._most_values > 1, is_dense):
                return False
        except torch.OutOfMemoryError:  # the other way may do with less
            return False
        except Exception as error:  # noqa: BLE001 - whatever a compiler raises: the dump says so, and there is another way
            self._give_up_triton(kind, error)
            return False
        if results.is_full():
            del self._fused[key]
            self._send_fused(stream, results)
        return True

    def _begin(self, device: torch.device) -> tuple[Any, FusedResults]:
        with quiet():
            results = FusedResults(device, self._names, self._most_values, BATCH_BYTES)
        return torch.accelerator.current_stream(device), results

    def _launch(self, results: FusedResults) -> None:
        """Reduce the values that wait, one by one where that fails; called with the lock held."""
        if not results.waits:
            return
        try:
            with quiet():
                results.launch()
        except Exception as error:  # noqa: BLE001 - as above
            waiting = results.take_back()
            if not isinstance(error, torch.OutOfMemoryError):
                self._give_up_triton(waiting[0][1].device.type, error)
            for value, tensor, *_ in waiting:
                self._add_joined(value, tensor)

    def _send_fused(self, stream: Any, results: FusedResults) -> None:
        """Send results; there may be none, where no value could be launched."""
        self._launch(results)
        if results.count:
            self._send_results(stream, results)

    def _give_up_triton(self, kind: str, error: Exception) -> None:
        _triton_failed.add(kind)
        message = f"no Triton for {kind}, statistics take several passes: {type(error).__name__}: {error}"
        self._sink.emit(Note(NOTE, "triton", message.partition("\n")[0], 1))

    def _send_results(self, stream: Any, results: FusedResults | JoinedResults) -> None:
        """Begin the one copy of all results, and have the statistics made when it is done."""
        copier = copier_of(stream.device)
        assert copier is not None  # or nothing had been added
        wait = None
        with quiet(), on_stream(stream):
            try:
                source = results.together()
            except torch.OutOfMemoryError:  # not of fused ones, which take none
                assert isinstance(results, JoinedResults)
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
        for stream, columns in fused.values():
            self._send_fused(stream, columns)
        for stream, results in joined.items():
            self._send_results(stream, results)
