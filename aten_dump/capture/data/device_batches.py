"""Statistics of tensors on a device, brought over many at a time: no host sync, and one copy for a batch.

Theory of operation
    A tensor is reduced on its device, on the program's stream: to its min and max, counts, and sums over at most 256
    rows in its own precision (float32 at least). These results stay there, a few hundred bytes for a value. When
    enough values have come, the results are put end to end, copied in one go (`device_copies`), and the writer's
    thread makes the statistics of them, summing rows in float64; so devices without float64 do as well. With Triton,
    `fused_statistics` makes all of a value's results in one pass over its memory.

    Sums are float64 on devices that have it; else they are float32 within a row, as accurate as `statistics` is for
    large tensors, but without another way for elements whose squares float32 cannot hold: their l2norm is inf.
    Integers beyond 2**31 have their mean from such sums. std is put together of the rows' means and variances.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import numpy as np
import torch

from ...store.records import NOTE, STATISTICS, Note, Statistics
from ...store.sink import Sink
from ..devices import as_array, has_float64, has_triton, host_tensor
from ..torch_internals.quiet import quiet
from .device_copies import Copier, copier_of, on_stream
from .flushing import Waiting

BATCH_VALUES: Final = 512
MOST_ROWS: Final = 256
_FLOATS: Final = frozenset((torch.float16, torch.bfloat16, torch.float32, torch.float64))
_FUSED: Final = _FLOATS - {torch.float64}
_INTS: Final = frozenset((torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool))
_EXACT_IN_INT64: Final = 1 << 31
_COUNTS: Final[dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "nan": lambda x: x != x,
    "posinf": lambda x: x == math.inf,
    "neginf": lambda x: x == -math.inf,
    "zero": lambda x: x == 0,
    "negative": lambda x: x < 0,
    "positive": lambda x: x > 0,
}
_triton_failed: Final[set[str]] = set()  # device types
Reduced = dict[str, torch.Tensor]  # name of a result -> one or more numbers, on the device
Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


@functools.lru_cache(maxsize=4096)
def rows_of(count: int) -> int:
    """Return in how many rows of the same length to cut so many elements."""
    most = min(MOST_ROWS, max(1, count // 1024))
    return next(n for n in range(most, 0, -1) if count % n == 0)


def reduce_floats(flat: torch.Tensor, names: tuple[str, ...]) -> Reduced:
    """Reduce floating elements on their device. Call inside `quiet()`."""
    wide = torch.float64 if flat.dtype == torch.float64 or has_float64(flat.device.type) else torch.float32
    low, high = torch.aminmax(flat)
    found = {"low": low.to(wide), "high": high.to(wide)}
    rows = flat.view(rows_of(flat.numel()), -1)
    if "std" in names:
        found["var"] = torch.var(rows.to(wide), dim=1, correction=0)
    if "std" in names or "mean" in names:
        found["sum"] = rows.sum(dim=1, dtype=wide)
    if "l2norm" in names:
        found["norm"] = torch.linalg.vector_norm(rows, dim=1, dtype=wide)
    return found | {name: count(flat).sum() for name, count in _COUNTS.items() if name in names}


def reduce_ints(flat: torch.Tensor, names: tuple[str, ...]) -> Reduced:
    """Reduce integers on their device. Call inside `quiet()`."""
    low, high = torch.aminmax(flat)
    found = {"low": low.to(torch.int64), "high": high.to(torch.int64), "total": flat.sum(dtype=torch.int64)}
    if not {"mean", "l2norm", "std"}.isdisjoint(names):
        wide = torch.float64 if has_float64(flat.device.type) else torch.float32
        rows = flat.view(rows_of(flat.numel()), -1).to(wide)
        found["var"] = torch.var(rows, dim=1, correction=0)
        found["sum"] = rows.sum(dim=1)
        found["norm"] = torch.linalg.vector_norm(rows, dim=1)
    signs = ("zero", "negative", "positive")
    return found | {name: _COUNTS[name](flat).sum() for name in signs if name in names}


def reduce_fused(flat: torch.Tensor) -> Reduced:
    """Reduce floating elements in one pass, all names at once."""
    from .statistics import triton_kernel as fused_statistics  # imports Triton

    return {"fused": fused_statistics.reduce(flat.contiguous())}


def _unfused(count: int, columns: Array) -> dict[str, Array]:
    from .statistics.triton_kernel import RESULTS

    reduced: dict[str, Array] = dict(zip(RESULTS, columns.reshape(len(RESULTS), -1), strict=True))
    others = reduced["nan"].sum() + reduced["zero"].sum() + reduced["negative"].sum()
    reduced["positive"] = np.array([count - others])
    return reduced


def finish(count: int, reduced: dict[str, Array], names: tuple[str, ...]) -> list[Any]:
    """Return the statistics `names` of `count` elements from what they were reduced to."""
    with np.errstate(all="ignore"):
        return _finish(count, reduced if "fused" not in reduced else _unfused(count, reduced["fused"]), names)


def _finish(count: int, reduced: dict[str, Array], names: tuple[str, ...]) -> list[Any]:
    low, high = reduced["low"].min().item(), reduced["high"].max().item()
    found: dict[str, Any] = {"count": count, "min": low, "max": high, "nan": 0, "posinf": 0, "neginf": 0}
    if "sum" in reduced:
        total: float = reduced["sum"].astype(np.float64).sum().item()
        if "total" in reduced and max(-low, high) < _EXACT_IN_INT64:
            total = reduced["total"].item()
        found["mean"] = total / count
    if "norm" in reduced:
        found["l2norm"] = math.sqrt(np.square(reduced["norm"].astype(np.float64)).sum().item())
    if "var" in reduced and count > 1:
        found["std"] = _std(count, reduced)
    found |= {name: int(reduced[name].sum().item()) for name in _COUNTS if name in reduced}
    if found["nan"]:
        found["min"] = found["max"] = math.nan
    return [found.get(name) for name in names]


def _std(count: int, reduced: dict[str, Array]) -> float:
    """Put together the spread of all elements of that within the rows and that of the rows' means."""
    each = count // len(reduced["var"])
    means = reduced["sum"].astype(np.float64) / each
    within = reduced["var"].astype(np.float64).sum().item() * each
    between = np.square(means - means.mean()).sum().item() * each
    return math.sqrt((within + between) / (count - 1))


class _Batch:
    """Reduced values of one device and stream."""

    def __init__(self, stream: Any, copier: Copier, names: tuple[str, ...]) -> None:
        self._stream = stream
        self._copier = copier
        self._names = names
        self._entries: list[tuple[int, int, Reduced]] = []  # value, count, results

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, value: int, count: int, reduced: Reduced) -> None:
        self._entries.append((value, count, reduced))

    def send(self, sink: Sink) -> None:
        """Begin the one copy of all results, and have the statistics made when it is done."""
        kinds: dict[torch.dtype, list[torch.Tensor]] = {}
        for _, _, reduced in self._entries:
            for tensor in reduced.values():
                kinds.setdefault(tensor.dtype, []).append(tensor.reshape(-1))
        with quiet(), on_stream(self._stream):
            # 8-byte dtypes first, so that all are aligned.
            order = sorted(kinds, key=lambda dtype: -dtype.itemsize)
            parts = [torch.cat(kinds[dtype]).view(torch.uint8) for dtype in order]
            together = parts[0] if len(parts) == 1 else torch.cat(parts)
            host = host_tensor(together.numel())
            wait = self._copier.copy(together, host, private=True)
        layout = [(value, count, [(k, t.dtype, t.numel()) for k, t in r.items()]) for value, count, r in self._entries]
        lengths = [(dtype, sum(t.numel() for t in kinds[dtype])) for dtype in order]

        def records() -> Iterator[tuple[Any, ...]]:
            wait()
            arrays = _cut(as_array(host), lengths)
            position = dict.fromkeys(arrays, 0)
            for value, count, results in layout:
                reduced = {}
                for name, dtype, length in results:
                    start = position[dtype]
                    position[dtype] = start + length
                    reduced[name] = arrays[dtype][start : start + length]
                yield Statistics(STATISTICS, value, finish(count, reduced, self._names))

        sink.later(records, together.numel())


def _cut(memory: Array, lengths: list[tuple[torch.dtype, int]]) -> dict[torch.dtype, Array]:
    kinds = {torch.float64: np.float64, torch.int64: np.int64, torch.float32: np.float32}
    arrays, start = {}, 0
    for dtype, length in lengths:
        past = start + length * dtype.itemsize
        arrays[dtype] = memory[start:past].view(kinds[dtype])
        start = past
    return arrays


class DeviceBatches(Waiting):
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
        copier = copier_of(tensor.device) if dtype in _FLOATS or dtype in _INTS else None
        if copier is None or not tensor.numel():
            return False
        with quiet():
            tensor = tensor.resolve_neg()
            flat = (tensor.view(torch.uint8) if dtype == torch.bool else tensor).reshape(-1)
            reduced = self._fused(flat) if dtype in _FUSED else None
            if reduced is None:
                reduced = (reduce_floats if dtype in _FLOATS else reduce_ints)(flat, self._names)
        stream = torch.accelerator.current_stream(tensor.device)
        with self._lock:
            batch = self._open.get(stream)
            if batch is None:
                batch = self._open[stream] = _Batch(stream, copier, self._names)
            batch.add(value, flat.numel(), reduced)
            if len(batch) >= self._most_values:
                self._open.pop(stream).send(self._sink)
        return True

    def _fused(self, flat: torch.Tensor) -> Reduced | None:
        kind = flat.device.type
        if "std" in self._names or kind in _triton_failed or not has_triton(kind):
            return None
        try:
            return reduce_fused(flat)
        except Exception as error:  # noqa: BLE001 - whatever a compiler raises: the dump says so, and there is another way
            _triton_failed.add(kind)
            message = f"no Triton for {kind}, statistics take several passes: {type(error).__name__}: {error}"
            self._sink.emit(Note(NOTE, "triton", message.partition("\n")[0], 1))
            return None

    def _waits(self) -> bool:
        return bool(self._open)

    def _send(self) -> None:
        batches, self._open = self._open, {}
        for batch in batches.values():
            batch.send(self._sink)
