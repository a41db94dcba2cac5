"""What `triton_kernel` reduced many values to: columns of one matrix on their device, finished on the host.

Theory of operation
    Each program of the kernel writes one column, and the columns of a value lie side by side. So a value costs the
    program's thread one launch and no memory of its own, all values come over in one copy, and each step of putting
    columns together is one call of numpy's for all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import torch

from ....config import SIGNS
from .on_device import Array

_FLOAT64_BYTES: Final = 8


class FusedResults:
    """Results of values of one device and stream."""

    def __init__(self, device: torch.device, names: tuple[str, ...], most_values: int, most_bytes: int) -> None:
        """Take memory of the device for them, at most `most_bytes`; more only if one value has more. Call inside
        `quiet()`.
        """
        kernels = self._kernels = _kernels()
        self._names = names
        self._signs = not SIGNS.isdisjoint(names)
        self._spread = "std" in names
        self._titles = (*kernels.RESULTS, *kernels.OF_SPREAD) if self._spread else kernels.RESULTS
        most_each = kernels.MOST_PROGRAMS
        columns = max(most_each, min(most_values * most_each, most_bytes // (len(self._titles) * _FLOAT64_BYTES)))
        self._columns = torch.empty(len(self._titles), columns, dtype=torch.float64, device=device)
        self._most_values = most_values
        self._last_start = columns - most_each
        self._values: list[tuple[int, int, int]] = []  # value, its elements, its first column
        self._used = 0

    def add(self, value: int, tensor: torch.Tensor) -> bool:
        """Reduce a value to columns of its own; False where its elements lie so that the kernel cannot.

        Call inside `quiet()`, and not when it `is_full`.
        """
        start = self._used
        programs: int = self._kernels.reduce(tensor, self._columns, start, self._signs, self._spread)
        if not programs:
            return False
        self._values.append((value, tensor.numel(), start))
        self._used = start + programs
        return True

    def is_full(self) -> bool:
        """Tell whether it is to be sent: a further value may find no place."""
        return len(self._values) >= self._most_values or self._used > self._last_start

    def together(self) -> torch.Tensor:
        """Return the columns in use as uint8[n], on the device, made for this, and let go of all memory there.

        Call inside `quiet()`.
        """
        return self._in_a_row(self._columns)

    def together_on_host(self) -> torch.Tensor:
        """Return the same in host memory, without memory of the device."""
        return self._in_a_row(self._columns.cpu())

    def _in_a_row(self, columns: torch.Tensor) -> torch.Tensor:
        row = columns[:, : self._used].contiguous().view(torch.uint8).view(-1)
        del self._columns
        return row

    def statistics(self, memory: Array) -> Iterator[tuple[int, list[Any]]]:
        """Return each value and its statistics, from a copy of `together` in host memory."""
        values, counts, starts = zip(*self._values, strict=True)
        of = dict(zip(self._titles, memory.view(np.float64).reshape(len(self._titles), -1), strict=True))
        with np.errstate(all="ignore"):
            found = _finish(np.array(counts), np.array(starts), of, self._names)
        return zip(values, map(list, zip(*found, strict=True)), strict=True)


@functools.cache
def _kernels() -> Any:
    from . import triton_kernel  # imports Triton

    return triton_kernel


def _finish(counts: Array, starts: Array, of: dict[str, Array], names: tuple[str, ...]) -> list[list[Any]]:
    """Return the statistics `names` of all values, each as a list.

    Args:
        counts: i64[values], of their elements.
        starts: i64[values], their first columns.
        of: f64[columns] of each result.
        names: of `STATISTICS`.
    """

    def sums(numbers: Array) -> Array:
        return np.add.reduceat(numbers, starts)

    nan = sums(of["nan"])
    found: dict[str, Array] = {
        "count": counts,
        "min": np.where(nan > 0, np.nan, np.minimum.reduceat(of["low"], starts)),
        "max": np.where(nan > 0, np.nan, np.maximum.reduceat(of["high"], starts)),
        "mean": sums(of["sum"]) / counts,
        "l2norm": np.sqrt(sums(of["squares"])),
    }
    of_kinds = {"nan": nan, **{name: sums(of[name]) for name in ("posinf", "neginf", "zero", "negative")}}
    of_kinds["positive"] = counts - nan - of_kinds["zero"] - of_kinds["negative"]
    found |= {name: numbers.astype(np.int64) for name, numbers in of_kinds.items()}
    lists = {name: numbers.tolist() for name, numbers in found.items()}
    if "std" in names:
        spreads = _spreads(counts, starts, of, found["mean"]).tolist()
        lists["std"] = [spread if count > 1 else None for spread, count in zip(spreads, lists["count"], strict=True)]
    return [lists[name] for name in names]


def _spreads(counts: Array, starts: Array, of: dict[str, Array], mean: Array) -> Array:
    """Return std of each value, of squares around a centre for each column; anything where there is one element."""
    sizes = of["size"]
    means = of["sum"] / sizes
    within = np.add.reduceat(of["around"] - sizes * np.square(means - of["centre"]), starts)
    columns = np.diff(starts, append=len(sizes))
    between = np.add.reduceat(sizes * np.square(means - np.repeat(mean, columns)), starts)
    spreads: Array = np.sqrt(np.maximum(within, 0.0) + between) / np.sqrt(counts - 1)
    return spreads
