"""Columns of many values are put together to the statistics of each; without a kernel, which is told of here by its results.

The kernel itself: test_triton_kernel.py, and on a GPU tests/cuda.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from aten_dump.capture.data.host_memory import as_array
from aten_dump.capture.data.statistics import fused_results
from aten_dump.capture.data.statistics.fused_results import FusedResults
from aten_dump.capture.data.statistics.one_tensor import compute
from aten_dump.capture.torch_internals.quiet import quiet
from aten_dump.config import STATISTICS

RESULTS = ("low", "high", "sum", "squares", "spread", "nan", "posinf", "neginf", "zero", "negative")
MOST_PROGRAMS = 7


def column(part: NDArray[np.float64]) -> list[float]:
    """Return what is told here of some elements: all but `spread`, which needs the mean of all."""
    numbers = part[~np.isnan(part)]
    low, high = (numbers.min(), numbers.max()) if numbers.size else (math.inf, -math.inf)
    counts = np.isnan(part).sum(), (part == np.inf).sum(), (part == -np.inf).sum()
    return [low, high, part.sum(), np.square(part).sum(), 0.0, *counts, (part == 0).sum(), (part < 0).sum()]


class Launches:
    """What `fused_launches` does, by torch: a column keeps its elements' results in place of its parts."""

    RESULTS, PARTS, MOST_PROGRAMS = RESULTS, len(RESULTS), MOST_PROGRAMS

    def __init__(self) -> None:
        self.tensors: dict[int, torch.Tensor] = {}  # by address
        self.by_start: dict[int, NDArray[np.float64]] = {}  # all elements by the first column
        self.together: list[tuple[torch.dtype, int]] = []  # what was launched together

    def can_be_together(self, tensor: torch.Tensor) -> bool:
        self.tensors[tensor.data_ptr()] = tensor
        return tensor.dim() == 1

    def programs_of(self, count: int) -> tuple[int, int]:
        return 1, min(MOST_PROGRAMS, -(-count // 3))

    def reduce(self, tensor: torch.Tensor, into: torch.Tensor, start: int, signs: bool) -> int:
        if tensor.dim() > 1:
            return 0
        elements = self.by_start[start] = tensor.double().numpy()
        parts = np.array_split(elements, self.programs_of(tensor.numel())[1])
        for number, part in enumerate(parts):
            into[:, start + number] = torch.tensor([float(row) for row in column(part)], dtype=torch.float64)
        return len(parts)

    def reduce_many(
        self,
        rows: list[tuple[int, int, int, int]],
        dtype: torch.dtype,
        table: torch.Tensor,
        into: torch.Tensor,
        signs: bool,
    ) -> None:
        assert table.shape[0] >= len(rows) and table.shape[1] == 4
        self.together.append((dtype, len(rows)))
        for address, count, _, start in rows:
            tensor = self.tensors[address]
            assert (tensor.dtype, tensor.numel()) == (dtype, count)
            self.reduce(tensor, into, start, signs)

    def put_together(
        self, places: list[tuple[int, int]], columns: torch.Tensor, table: torch.Tensor, into: torch.Tensor
    ) -> None:
        assert table.shape[0] >= len(places) and table.shape[1] == 2
        for value, (start, programs) in enumerate(places):
            of = columns[:, start : start + programs]
            elements = self.by_start[start]
            low, high, total = of[0].min(), of[1].max(), of[2:].sum(dim=1)
            spread = np.square(elements - elements.mean()).sum()
            row = [float(low), float(high), *total.tolist()]
            into[:, value] = torch.tensor([*row[:4], float(spread), *row[5:]], dtype=torch.float64)


@pytest.fixture(autouse=True)
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    stand_in = Launches()
    monkeypatch.setattr(fused_results, "_fused_launches", lambda: stand_in)
    return stand_in


def results(names: tuple[str, ...] = STATISTICS, most_values: int = 100, most_bytes: int = 1 << 20) -> FusedResults:
    return FusedResults(torch.device("cpu"), names, most_values, most_bytes)


SPECIALS = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, -1.0, 2.0])
VALUES = {
    "one": torch.tensor([3.0]), "two": torch.tensor([3.0, -5.0]), "specials": SPECIALS, "infinite": SPECIALS[1:], "finite": SPECIALS[3:],
    "many": torch.randn(1000), "far from zero": torch.randn(1000) * 1e-3 + 1000, "the same": torch.full((50,), -2.5),
    "not a number": torch.full((9,), math.nan), "large": torch.full((40,), 1e30), "half": torch.randn(77).half(),
    "bytes": torch.tensor([0, 255, 7, 0], dtype=torch.uint8), "truth": torch.tensor([True, False, True]),
    "words": torch.tensor([-(2**15), 2**15 - 1, 5], dtype=torch.int16),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # of the column's own arithmetic
@pytest.mark.parametrize("wait", [False, True], ids=["at once", "launched together"])
@pytest.mark.parametrize("names", [STATISTICS, ("min", "mean"), ("std",), ("positive", "count")], ids=str)
def test_statistics_of_each_value_are_those_of_its_definition(
    names: tuple[str, ...], wait: bool, launches: Launches
) -> None:
    fused = results(names)
    with quiet():
        for value, tensor in enumerate(VALUES.values()):
            assert fused.add(value, tensor, wait)
            assert fused.waits == wait and fused.count == value + 1
        fused.launch()
        assert not fused.waits and len(launches.together) == (5 if wait else 0), "one for each dtype"
        memory = as_array(fused.together())
    found = list(fused.statistics(memory))
    assert [value for value, _ in found] == list(range(len(VALUES)))
    for (kind, tensor), (_, numbers) in zip(VALUES.items(), found, strict=True):
        for name, mine, defined in zip(names, numbers, compute(tensor, names), strict=True):
            assert type(mine) is type(defined), (kind, name, mine, defined)
            near = 1e-6 * tensor.double().abs().mean().item() if name == "mean" else 0
            same = mine == defined or mine == pytest.approx(defined, rel=2e-6, abs=near, nan_ok=True)
            assert same, (kind, name, mine, defined)


def test_what_the_kernel_cannot_reduce_leaves_nothing_behind() -> None:
    fused = results(("max",))
    with quiet():
        assert fused.add(1, torch.ones(5), False) and not fused.add(2, torch.ones(5, 5), False)
        assert fused.add(3, torch.zeros(5), False)
        memory = as_array(fused.together())
    assert list(fused.statistics(memory)) == [(1, [1.0]), (3, [0.0])]


def test_what_waits_can_be_taken_back_and_leaves_nothing_behind() -> None:
    fused = results(("max",))
    with quiet():
        fused.add(1, torch.ones(5), True)
        fused.add(2, torch.zeros(7), False)
        ((value, tensor, *_),) = fused.take_back()
        assert (value, tensor.numel(), fused.count, fused.waits) == (1, 5, 1, False)
        fused.add(3, torch.full((9,), 4.0), True)
        fused.launch()
        memory = as_array(fused.together())
    assert list(fused.statistics(memory)) == [(2, [0.0]), (3, [4.0])]


def filled(fused: FusedResults, wait: bool) -> int:
    count = 0
    while not fused.is_full():
        with quiet():
            fused.add(count, torch.ones(100), wait)
        count += 1
    return count


@pytest.mark.parametrize("wait", [False, True], ids=["at once", "launched together"])
def test_they_are_full_by_values_and_by_columns(wait: bool) -> None:
    assert filled(results(most_values=3), wait) == 3
    bytes_each = len(RESULTS) * 8 * MOST_PROGRAMS
    assert filled(results(most_bytes=bytes_each * 5), wait) == 5
    assert filled(results(most_bytes=bytes_each * 5 - 1), wait) == 4
    assert filled(results(most_bytes=1), wait) == 1  # one fits always


def test_no_memory_of_the_device_is_held_while_a_copy_waits() -> None:
    fused: Any = results()
    with quiet():
        fused.add(1, torch.ones(5), False)
        fused.together()
    assert (fused._columns, fused._table, fused._results) == (None, None, None)
