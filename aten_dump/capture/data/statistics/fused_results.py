"""Results of the kernels in `triton_kernel` for many values, which come over together and are finished on the host.

Theory of operation
    Each program of a kernel writes one column of a matrix that stays on the device, and the columns of a value lie side
    by side. So a value costs the program's thread one launch and no memory of its own. When enough have come, one
    launch puts the columns of each together, all values come over in one copy, and each step of finishing them is one
    call of numpy's for all. Values that come together, as those that an optimizer updates by one op, are launched
    together.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import torch

from ....config import SIGNS
from .on_device import Array

_ITEM_BYTES: Final = 8
_Row = tuple[int, int, int, int]  # of `fused_launches.reduce_many`
_Waiting = tuple[int, torch.Tensor, int, int, int, int]  # value, address, elements, blocks for each program, programs


class FusedResults:
    """Results of values of one device and stream."""

    def __init__(self, device: torch.device, names: tuple[str, ...], most_values: int, most_bytes: int) -> None:
        """Take memory of the device for them, at most `most_bytes`; more only if one value has more. Call inside
        `quiet()`.
        """
        launches = self._launches = _fused_launches()
        self._names = names
        self._signs = not SIGNS.isdisjoint(names)
        most_each = launches.MOST_PROGRAMS
        columns = max(most_each, min(most_values * most_each, most_bytes // (launches.PARTS * _ITEM_BYTES)))
        self._columns: Any = torch.empty(launches.PARTS, columns, dtype=torch.float64, device=device)
        self._table: Any = torch.empty(most_values * 4, dtype=torch.int64, device=device)
        self._results: Any = torch.empty(most_values * len(launches.RESULTS), dtype=torch.float64, device=device)
        self._most_values = most_values
        self._last_start = columns - most_each
        self._values: list[tuple[int, int, bool]] = []  # value, its elements, is it of floats
        self._places: list[tuple[int, int]] = []  # the first column of each, and how many it has
        self._used = 0
        self._waiting: list[_Waiting] = []
        self._waiting_columns = 0

    @property
    def waits(self) -> bool:
        """Return True if there are values that were not launched."""
        return bool(self._waiting)

    @property
    def count(self) -> int:
        """How many values there are."""
        return len(self._values) + len(self._waiting)

    def add(self, value: int, tensor: torch.Tensor, wait: bool, is_dense: bool) -> bool:
        """Reduce a value to columns of its own; False where its elements lie so that the kernel cannot.

        Not to be called when it `is_full`.

        Args:
            value: its id.
            tensor: of FUSED, not empty, without the bit of a negative view.
            wait: others come with it: it may wait for `launch`. Nobody writes to its memory before that.
            is_dense: it is known to be all of a piece of memory.
        """
        launches = self._launches
        count = tensor.numel()
        if wait:
            address = launches.address_together(tensor, is_dense)
            if address:
                blocks, programs = launches.programs_of(count)
                self._waiting.append((value, tensor, address, count, blocks, programs))
                self._waiting_columns += programs
                return True
        programs = launches.reduce(tensor, self._columns, self._used, self._signs, is_dense)
        if programs:
            self._take(value, count, tensor.dtype, programs)
        return bool(programs)

    def launch(self) -> None:
        """Reduce what waits. Call inside `quiet()`."""
        by_dtype: dict[torch.dtype, list[_Row]] = {}
        start = self._used
        for _, tensor, address, count, blocks, programs in self._waiting:
            by_dtype.setdefault(tensor.dtype, []).append((address, count, blocks, start))
            start += programs
        for dtype, rows in by_dtype.items():
            self._launches.reduce_many(rows, dtype, self._table.view(-1, 4), self._columns, self._signs)
        for value, tensor, _, count, _, programs in self.take_back():
            self._take(value, count, tensor.dtype, programs)

    def take_back(self) -> list[_Waiting]:
        """Let go of what waits, and return it: first values and their tensors."""
        waiting, self._waiting, self._waiting_columns = self._waiting, [], 0
        return waiting

    def _take(self, value: int, count: int, dtype: torch.dtype, programs: int) -> None:
        self._values.append((value, count, dtype.is_floating_point))
        self._places.append((self._used, programs))
        self._used += programs

    def is_full(self) -> bool:
        """Return True if it is to be sent: a further value may find no place."""
        return self.count >= self._most_values or self._used + self._waiting_columns > self._last_start

    def together(self) -> torch.Tensor:
        """Return the results as uint8[n], on the device, made for this, and let go of all memory there. It takes none.

        Call inside `quiet()`, when nothing waits.
        """
        count = len(self._values)
        row: torch.Tensor = self._results[: count * len(self._launches.RESULTS)]
        into = row.view(len(self._launches.RESULTS), count)
        self._launches.put_together(self._places, self._columns, self._table.view(-1, 2), into)
        self._columns = self._table = self._results = None
        return row.view(torch.uint8)

    def statistics(self, memory: Array) -> Iterator[tuple[int, list[Any]]]:
        """Return each value and its statistics, from a copy of `together` in host memory."""
        values, counts, are_floats = zip(*self._values, strict=True)
        titles = self._launches.RESULTS
        of = dict(zip(titles, memory.view(np.float64).reshape(len(titles), -1), strict=True))
        with np.errstate(all="ignore"):
            found = _finish(np.array(counts), are_floats, of, self._names)
        return zip(values, map(list, zip(*found, strict=True)), strict=True)


def current_stream(device: int) -> int:
    """Return the handle of the thread's current stream of a device, by its index, where Triton has that."""
    handle: int = _fused_launches().current_stream(device)
    return handle


@functools.cache
def _fused_launches() -> Any:
    from . import fused_launches  # imports Triton

    return fused_launches


def _finish(
    counts: Array, are_floats: tuple[bool, ...], of: dict[str, Array], names: tuple[str, ...]
) -> list[list[Any]]:
    """Return the statistics `names` of all values, each as a list.

    Args:
        counts: i64[values], of their elements.
        are_floats: of each value; the limits of others are integers.
        of: f64[values] of each result.
        names: of `STATISTICS`.
    """
    nan = of["nan"] > 0
    nonfinite = nan | (of["posinf"] > 0) | (of["neginf"] > 0)
    found: dict[str, Array] = {
        "count": counts,
        "min": np.where(nan, np.nan, of["low"]),
        "max": np.where(nan, np.nan, of["high"]),
        "mean": of["sum"] / counts,
        "l2norm": np.where(nan, np.nan, np.where(nonfinite, np.inf, np.sqrt(np.maximum(of["squares"], 0.0)))),
        "std": np.where(nonfinite, np.nan, np.sqrt(of["spread"] / (counts - 1))),
    }
    of_kinds = {name: of[name] for name in ("nan", "posinf", "neginf", "zero", "negative")}
    of_kinds["positive"] = counts - of["nan"] - of["zero"] - of["negative"]
    found |= {name: numbers.astype(np.int64) for name, numbers in of_kinds.items()}
    lists = {name: numbers.tolist() for name, numbers in found.items()}
    for at, (count, is_float) in enumerate(zip(lists["count"], are_floats, strict=True)):
        if count == 1:
            lists["std"][at] = None
        if not is_float:
            lists["min"][at], lists["max"][at] = int(lists["min"][at]), int(lists["max"][at])
    return [lists[name] for name in names]
