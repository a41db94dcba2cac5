"""Columns of many values are put together to the statistics of each; without a kernel, which is told of here by its results.

The kernel itself: test_triton_kernel.py, and on a GPU tests/cuda.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
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

RESULTS = ("low", "high", "sum", "squares", "nan", "posinf", "neginf", "zero", "negative")
OF_SPREAD = ("around", "centre", "size")
MOST_PROGRAMS = 7


def column(part: NDArray[np.float64]) -> list[float]:
    """Return what a program of the kernel writes of its elements (`triton_kernel`)."""
    numbers = part[~np.isnan(part)]
    low, high = (numbers.min(), numbers.max()) if numbers.size else (math.inf, -math.inf)
    centre = part[:3].mean()
    signs = (part == 0).sum(), (part < 0).sum()
    counts = np.isnan(part).sum(), (part == np.inf).sum(), (part == -np.inf).sum(), *signs
    return [low, high, part.sum(), np.square(part).sum(), *counts, np.square(part - centre).sum(), centre, part.size]


def reduce(tensor: torch.Tensor, into: torch.Tensor, start: int, signs: bool, spread: bool) -> int:
    """Do what `triton_kernel.reduce` does, three elements at least for each program."""
    if tensor.dim() > 1:
        return 0
    parts = np.array_split(tensor.double().numpy(), min(MOST_PROGRAMS, -(-tensor.numel() // 3)))
    for number, part in enumerate(parts):
        rows = column(part)[: into.size(0)]
        into[:, start + number] = torch.tensor([float(row) for row in rows], dtype=torch.float64)
    return len(parts)


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = SimpleNamespace(RESULTS=RESULTS, OF_SPREAD=OF_SPREAD, MOST_PROGRAMS=MOST_PROGRAMS, reduce=reduce)
    monkeypatch.setattr(fused_results, "_kernels", lambda: stand_in)


def results(names: tuple[str, ...] = STATISTICS, most_values: int = 100, most_bytes: int = 1 << 20) -> FusedResults:
    return FusedResults(torch.device("cpu"), names, most_values, most_bytes)


SPECIALS = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, -1.0, 2.0])
VALUES = {
    "one": torch.tensor([3.0]), "two": torch.tensor([3.0, -5.0]), "specials": SPECIALS, "infinite": SPECIALS[1:], "finite": SPECIALS[3:],
    "many": torch.randn(1000), "far from zero": torch.randn(1000) * 1e-3 + 1000, "the same": torch.full((50,), -2.5),
    "not a number": torch.full((9,), math.nan), "large": torch.full((40,), 1e30), "half": torch.randn(77).half(),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # of the column's own arithmetic
@pytest.mark.parametrize("way", ["together", "together_on_host"])
@pytest.mark.parametrize("names", [STATISTICS, ("min", "mean"), ("std",), ("positive", "count")], ids=str)
def test_statistics_of_each_value_are_those_of_its_definition(names: tuple[str, ...], way: str) -> None:
    fused = results(names)
    with quiet():
        for value, tensor in enumerate(VALUES.values()):
            assert fused.add(value, tensor)
        memory = as_array(getattr(fused, way)().cpu())
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
        assert fused.add(1, torch.ones(5)) and not fused.add(2, torch.ones(5, 5)) and fused.add(3, torch.zeros(5))
        memory = as_array(fused.together())
    assert list(fused.statistics(memory)) == [(1, [1.0]), (3, [0.0])]


def filled(fused: FusedResults) -> int:
    count = 0
    while not fused.is_full():
        with quiet():
            fused.add(count, torch.ones(100))
        count += 1
    return count


def test_they_are_full_by_values_and_by_columns() -> None:
    assert filled(results(most_values=3)) == 3
    bytes_each = 12 * 8 * MOST_PROGRAMS
    assert filled(results(most_bytes=bytes_each * 5)) == 5
    assert filled(results(most_bytes=bytes_each * 5 - 1)) == 4
    assert filled(results(most_bytes=1)) == 1  # one fits always


def test_no_memory_of_the_device_is_held_while_a_copy_waits() -> None:
    fused: Any = results()
    with quiet():
        fused.add(1, torch.ones(5))
        fused.together()
    assert not hasattr(fused, "_columns")
