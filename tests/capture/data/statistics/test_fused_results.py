"""Columns of many values are put together to the statistics of each; without a kernel, which is told of here by its results.

The kernel itself: test_triton_kernel.py, and on a GPU tests/cuda.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from aten_dump.capture.data.host_memory import as_array
from aten_dump.capture.data.statistics import fused_results
from aten_dump.capture.data.statistics.fused_results import FusedResults
from aten_dump.capture.data.statistics.one_tensor import compute
from aten_dump.capture.torch_internals.quiet import quiet
from aten_dump.config import STATISTICS
from tests.capture.data.statistics.launches_by_torch import Launches


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
            assert fused.add(value, tensor, wait, True)
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
        assert fused.add(1, torch.ones(5), False, True) and not fused.add(2, torch.ones(5, 5), False, True)
        assert fused.add(3, torch.zeros(5), False, True)
        memory = as_array(fused.together())
    assert list(fused.statistics(memory)) == [(1, [1.0]), (3, [0.0])]


def test_what_waits_can_be_taken_back_and_leaves_nothing_behind() -> None:
    fused = results(("max",))
    with quiet():
        fused.add(1, torch.ones(5), True, True)
        fused.add(2, torch.zeros(7), False, True)
        ((value, tensor, *_),) = fused.take_back()
        assert (value, tensor.numel(), fused.count, fused.waits) == (1, 5, 1, False)
        fused.add(3, torch.full((9,), 4.0), True, True)
        fused.launch()
        memory = as_array(fused.together())
    assert list(fused.statistics(memory)) == [(2, [0.0]), (3, [4.0])]


def filled(fused: FusedResults, wait: bool) -> int:
    count = 0
    while not fused.is_full():
        with quiet():
            fused.add(count, torch.ones(100), wait, True)
        count += 1
    return count


@pytest.mark.parametrize("wait", [False, True], ids=["at once", "launched together"])
def test_they_are_full_by_values_and_by_columns(wait: bool) -> None:
    assert filled(results(most_values=3), wait) == 3
    bytes_each = len(Launches.RESULTS) * 8 * Launches.MOST_PROGRAMS
    assert filled(results(most_bytes=bytes_each * 5), wait) == 5
    assert filled(results(most_bytes=bytes_each * 5 - 1), wait) == 4
    assert filled(results(most_bytes=1), wait) == 1  # one fits always


def test_no_memory_of_the_device_is_held_while_a_copy_waits() -> None:
    fused: Any = results()
    with quiet():
        fused.add(1, torch.ones(5), False, True)
        fused.together()
    assert (fused._columns, fused._table, fused._results) == (None, None, None)
