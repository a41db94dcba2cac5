"""Statistics of tensors on a device, brought over many at a time: no host sync, and one copy for a batch.

Theory of operation
    A tensor is reduced on its device, on the program's stream (`statistics/on_device`). These results stay there, a few
    hundred bytes for a value. When enough values have come, the results are put end to end, copied in one go
    (`device_copies`), and the writer's thread makes the statistics of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import torch

from ...store.records import NOTE, STATISTICS, Note, Statistics
from ...store.sink import Sink
from ..devices import has_triton
from ..torch_internals.quiet import quiet
from .device_copies import Copier, copier_of, on_stream
from .flushing import Flushable
from .host_memory import as_array, host_tensor
from .statistics.on_device import (
    FLOATS,
    FUSED,
    INTS,
    MOST_ELEMENTS,
    Array,
    Reduced,
    finish,
    pieces,
    reduce_floats,
    reduce_fused,
    reduce_ints,
    together,
)
from .statistics.rows import row_lengths

BATCH_VALUES: Final = 512
BATCH_BYTES: Final = 4 << 20  # of results: a value of a gigabyte has half a megabyte
_triton_failed: Final[set[str]] = set()  # device types


Entry = tuple[int, list[int], Reduced]  # value, lengths of its rows, results


def join(
    entries: list[Entry],
) -> tuple[torch.Tensor, Callable[[Array], Iterator[tuple[int, list[int], dict[str, Array]]]]]:
    """Put the results of all entries end to end. Call inside `quiet()`.

    Returns:
        All of them as uint8[n] on their device, and what makes the same entries, of arrays, of a copy in host memory.
    """
    kinds: dict[torch.dtype, list[torch.Tensor]] = {}
    for _, _, reduced in entries:
        for tensor in reduced.values():
            kinds.setdefault(tensor.dtype, []).append(tensor.reshape(-1))
    order = sorted(kinds, key=lambda dtype: -dtype.itemsize)  # 8-byte dtypes first, so that all are aligned
    parts = [torch.cat(kinds[dtype]).view(torch.uint8) for dtype in order]
    layout = [(value, rows, [(k, t.dtype, t.numel()) for k, t in r.items()]) for value, rows, r in entries]
    lengths = [(dtype, sum(t.numel() for t in kinds[dtype])) for dtype in order]

    def separate(memory: Array) -> Iterator[tuple[int, list[int], dict[str, Array]]]:
        arrays = _cut(memory, lengths)
        position = dict.fromkeys(arrays, 0)
        for value, rows, results in layout:
            reduced = {}
            for name, dtype, length in results:
                start = position[dtype]
                position[dtype] = start + length
                reduced[name] = arrays[dtype][start : start + length]
            yield value, rows, reduced

    return parts[0] if len(parts) == 1 else torch.cat(parts), separate


def _cut(memory: Array, lengths: list[tuple[torch.dtype, int]]) -> dict[torch.dtype, Array]:
    kinds = {torch.float64: np.float64, torch.int64: np.int64, torch.float32: np.float32}
    arrays, start = {}, 0
    for dtype, length in lengths:
        past = start + length * dtype.itemsize
        arrays[dtype] = memory[start:past].view(kinds[dtype])
        start = past
    return arrays


def _no_wait() -> None:
    """The results are on the host already."""


class _Batch:
    """Reduced values of one device and stream."""

    def __init__(self, stream: Any, copier: Copier, names: tuple[str, ...]) -> None:
        self._stream = stream
        self._copier = copier
        self._names = names
        self._entries: list[Entry] = []
        self._nbytes = 0

    def is_full(self, most_values: int) -> bool:
        return len(self._entries) >= most_values or self._nbytes >= BATCH_BYTES

    def add(self, entry: Entry) -> None:
        self._entries.append(entry)
        self._nbytes += sum(tensor.nbytes for tensor in entry[2].values())

    def send(self, sink: Sink) -> None:
        """Begin the one copy of all results, and have the statistics made when it is done."""
        with quiet(), on_stream(self._stream):
            try:
                together, separate = join(self._entries)
            except torch.OutOfMemoryError:  # then one by one
                together, separate = join([(v, n, {k: t.cpu() for k, t in r.items()}) for v, n, r in self._entries])
                host, wait = together, _no_wait
            else:
                host = host_tensor(together.numel())
                wait = self._copier.copy(together, host, private=True)
        names = self._names

        def records() -> Iterator[Statistics]:
            wait()
            for value, rows, reduced in separate(as_array(host)):
                yield Statistics(STATISTICS, value, finish(rows, reduced, names))

        sink.later(records, together.numel())


class DeviceBatches(Flushable):
    """The reduced values of one step whose results were not sent yet."""

    def __init__(self, sink: Sink, names: tuple[str, ...], most_values: int = BATCH_VALUES) -> None:
        super().__init__()
        self._sink = sink
        self._names = names
        self._most_values = most_values
        self._open: dict[Any, _Batch] = {}

    def add(self, value: int, tensor: torch.Tensor) -> bool:
        """Reduce a tensor on its device; returns False if it is none that can be."""
        dtype = tensor.dtype
        copier = copier_of(tensor.device) if dtype in FLOATS or dtype in INTS else None
        if copier is None or not tensor.numel():
            return False
        rows, reduced = self.reduce(tensor)
        stream = torch.accelerator.current_stream(tensor.device)
        with self._lock:
            batch = self._open.get(stream)
            if batch is None:
                batch = self._open[stream] = _Batch(stream, copier, self._names)
            batch.add((value, rows, reduced))
            if batch.is_full(self._most_values):
                self._open.pop(stream).send(self._sink)
        return True

    def reduce(self, tensor: torch.Tensor) -> tuple[list[int], Reduced]:
        """Reduce a tensor that is not empty where it is; return the lengths of its rows, and the results."""
        dtype, count = tensor.dtype, tensor.numel()
        with quiet():
            if dtype in FUSED and not tensor.is_neg():
                fused = self._fused(tensor)
                if fused is not None:
                    return [count], fused
            rows, parts = [], []
            for flat in pieces(tensor.view(torch.uint8) if dtype == torch.bool else tensor, MOST_ELEMENTS):
                parts.append((reduce_floats if dtype in FLOATS else reduce_ints)(flat.resolve_neg(), self._names))
                rows += row_lengths(flat.numel())
            return rows, together(parts)

    def _fused(self, tensor: torch.Tensor) -> Reduced | None:
        kind = tensor.device.type
        if kind in _triton_failed or not has_triton(kind):
            return None
        try:
            return reduce_fused(tensor, self._names)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a compiler raises: the dump says so, and there is another way
            _triton_failed.add(kind)
            message = f"no Triton for {kind}, statistics take several passes: {type(error).__name__}: {error}"
            self._sink.emit(Note(NOTE, "triton", message.partition("\n")[0], 1))
            return None

    def _has_any(self) -> bool:
        return bool(self._open)

    def _send(self) -> None:
        batches, self._open = self._open, {}
        for batch in batches.values():
            batch.send(self._sink)
