"""Many small tensors at a time: each has the statistics that it has alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from aten_dump.capture.data.statistics import many_small_tensors, one_tensor
from aten_dump.config import STATISTICS
from tests.capture.bits import raw

EXACT = ("count", "min", "max", "nan", "posinf", "neginf", "zero", "negative", "positive")


def numbers(name: str) -> list[Tensor]:
    """Small tensors of one dtype, with all that is special about it."""
    dtype = getattr(torch, name)
    if dtype.is_complex:
        parts = [torch.randn(n, dtype=torch.complex128) for n in (1, 2, 7)]
        parts += [torch.tensor([complex(math.nan, 1), complex(1, -math.inf), 0j]), torch.zeros(4) * 1j]
        return [part.to(dtype) for part in parts]
    if not dtype.is_floating_point:
        if dtype == torch.bool:
            return [torch.tensor([True]), torch.rand(9) > 0.5, torch.zeros(3, dtype=dtype)]
        ends = torch.iinfo(dtype)
        parts = [[ends.min], [ends.max], [ends.min, ends.max, ends.max - 1, 0], [0, 1, 5], [ends.max] * 600, [0] * 3]
        return [torch.tensor(part, dtype=dtype) for part in parts]
    parts = [torch.randn(n) for n in (1, 2, 3, 1000)] + [torch.zeros(5), torch.tensor(3.0), torch.full((400,), 300.0)]
    if "e8m0" in name:
        return [part.abs().to(dtype) for part in parts]
    special = [[math.nan, 1, -2], [math.inf, 1], [-math.inf, math.inf], [-0.0, 0.0], [math.nan] * 3, [1, math.inf, -3]]
    parts += [torch.tensor(part) for part in special]
    if dtype.itemsize > 1:
        parts.append(torch.full((500,), torch.finfo(dtype).max / 2, dtype=torch.float64))
    return [part.to(dtype) for part in parts]


def close(found: Any, expected: Any) -> bool:
    if expected is None or found is None:
        return found is expected
    if isinstance(expected, list):
        return all(map(close, found, expected))
    return found == pytest.approx(expected, rel=1e-12, abs=1e-300, nan_ok=True)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", many_small_tensors.ITEM_BYTES, ids=str)
def test_each_has_the_statistics_that_it_has_alone(dtype: torch.dtype) -> None:
    """Counts, min and max bit by bit; sums to the last digits of a float64."""
    tensors = numbers(str(dtype).removeprefix("torch."))
    parts = [raw(tensor) for tensor in tensors]
    rows = many_small_tensors.compute(b"".join(parts), dtype, list(map(len, parts)), STATISTICS)
    for tensor, row in zip(tensors, rows, strict=True):
        alone = dict(zip(STATISTICS, one_tensor.compute(tensor, STATISTICS), strict=True))
        for name, found in zip(STATISTICS, row, strict=True):
            expected = alone[name]
            is_nan = isinstance(expected, float) and math.isnan(expected)
            same = type(found) is type(expected) and (found == expected or (is_nan and math.isnan(found)))
            assert same if name in EXACT else close(found, expected), (name, tensor, found, expected)


def test_every_selection_of_statistics() -> None:
    x = torch.tensor([1.0, -2.0, 0.0])
    for name in STATISTICS:
        assert many_small_tensors.compute(raw(x), x.dtype, [12], (name,)) == [
            pytest.approx(one_tensor.compute(x, (name,)))
        ]


def of(tensors: list[Tensor], *names: str) -> list[list[Any]]:
    parts = [raw(tensor) for tensor in tensors]
    return many_small_tensors.compute(b"".join(parts), tensors[0].dtype, list(map(len, parts)), names)


def test_a_tensor_s_neighbours_do_not_show_in_its_numbers() -> None:
    """Counts of what is not finite are taken where one tensor of the batch is not; the others have none of it."""
    found = of(
        [torch.ones(2), torch.tensor([math.nan, math.inf, -math.inf]), torch.zeros(1)], "nan", "posinf", "neginf"
    )
    assert found == [[0, 0, 0], [1, 1, 1], [0, 0, 0]]
    found = of([torch.ones(2), torch.tensor([5.0])], "nan", "posinf", "neginf")
    assert found == [[0, 0, 0], [0, 0, 0]]
    only_above = of([torch.tensor([math.inf])], "posinf", "neginf")
    only_below = of([torch.tensor([-math.inf])], "posinf", "neginf")
    assert (only_above, only_below) == ([[1, 0]], [[0, 1]])


def test_one_element_has_no_std() -> None:
    assert of([torch.tensor([3.0]), torch.tensor([1.0, 3.0])], "std") == [[None], [pytest.approx(math.sqrt(2))]]
    assert of([torch.tensor([3j]), torch.tensor([1j, 3j])], "std") == [[None], [pytest.approx(math.sqrt(2))]]


def test_what_a_complex_number_has_not_is_none() -> None:
    x = torch.tensor([complex(math.nan, 1), complex(0, -math.inf), 0j, 3 + 4j])
    assert of([x], "nan", "posinf", "neginf", "zero", "negative", "positive") == [[1, 1, None, 1, None, None]]


@pytest.mark.parametrize("greatest", [2**31 - 1, 2**31, 2**62])
def test_sums_of_integers_are_exact_where_they_can_be_and_never_wrap(greatest: int) -> None:
    """Eight of the greatest wrap an int64 sum; of 31 bits and less the sum in int64 is exact."""
    for x in (torch.full((8,), greatest), torch.full((8,), -greatest)):
        ((mean, norm),) = of([x], "mean", "l2norm")
        assert mean == x[0].item() or mean == pytest.approx(x[0].item(), rel=1e-15)
        assert norm == pytest.approx(greatest * math.sqrt(8), rel=1e-12)


def test_a_mean_of_many_integers_keeps_its_last_bit() -> None:
    x = torch.tensor([2**31 - 1] * 2047 + [1])
    assert of([x], "mean") == [[(2047 * (2**31 - 1) + 1) / 2048]]


def test_the_caller_s_numpy_settings_stay_and_do_not_matter() -> None:
    with np.errstate(all="raise"):
        before = np.geterr()
        assert of([torch.full((4,), 1e300, dtype=torch.float64)], "l2norm") == [[math.inf]]
        assert np.geterr() == before


def test_a_statistic_that_was_not_asked_for_is_not_computed() -> None:
    """Signs and sums cost a pass each."""
    x = np.ones(3)
    columns = many_small_tensors._of_float(x, np.array([0]), np.array([3]), ("min",))
    assert set(columns) == {"min", "max", "nan", "posinf", "neginf"}
    assert "std" not in many_small_tensors._of_float(x, np.array([0]), np.array([3]), ("l2norm",))
