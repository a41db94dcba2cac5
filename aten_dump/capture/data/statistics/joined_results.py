"""What torch's ops reduced many values to on their device, put end to end for one copy, and finished on the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from .on_device import Array, Reduced, finish

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


class JoinedResults:
    """Results of values of one device and stream."""

    def __init__(self, names: tuple[str, ...], most_values: int, most_bytes: int) -> None:
        self._names = names
        self._most_values = most_values
        self._most_bytes = most_bytes
        self._entries: list[Entry] = []
        self._nbytes = 0

    def add(self, entry: Entry) -> None:
        """Take what a value was reduced to."""
        self._entries.append(entry)
        self._nbytes += sum(tensor.nbytes for tensor in entry[2].values())

    def is_full(self) -> bool:
        """Return True if it is to be sent."""
        return len(self._entries) >= self._most_values or self._nbytes >= self._most_bytes

    def together(self) -> torch.Tensor:
        """Return all results as uint8[n], on the device, made for this. Call inside `quiet()`."""
        together, self._separate = join(self._entries)
        self._entries.clear()
        return together

    def together_on_host(self) -> torch.Tensor:
        """Return the same in host memory, brought over one by one: without memory of the device."""
        self._entries = [(v, n, {k: t.cpu() for k, t in r.items()}) for v, n, r in self._entries]
        return self.together()

    def statistics(self, memory: Array) -> Iterator[tuple[int, list[Any]]]:
        """Yield each value and its statistics, from a copy of `together` in host memory."""
        for value, rows, reduced in self._separate(memory):
            yield value, finish(rows, reduced, self._names)
