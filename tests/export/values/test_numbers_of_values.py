"""Statistics as recorded; else computed from the bytes; else none."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from aten_dump import Value, open_dump
from aten_dump.export.values.numbers_of_values import StatisticsOf
from aten_dump.store import records as r
from tests.dump.building import STATISTICS, Builder, value

ALL = tuple(name for name in STATISTICS if name != "std")


def values_of(path: Path, *tensors: torch.Tensor, stats: list[Any] | None = None, **how: Any) -> list[Value]:
    """The values of a dump that holds these tensors; `stats` are recorded of the first."""
    b = Builder(path / "dump")
    numbers = [b.value(tensor, **how) for tensor in tensors]
    if stats is not None:
        b.emit(r.Statistics(r.STATISTICS, numbers[0], stats))
    b.call(b.op("aten", "aten::add", "Aten", "add"), args=[value(n) for n in numbers])
    return list(open_dump(b.finish()).step(0).rank(0)["Aten.add.0.forward"].inputs[0])


def test_recorded_numbers_are_taken_as_they_are_and_what_is_no_number_is_left_out(tmp_path: Path) -> None:
    (found,) = values_of(tmp_path, torch.ones(2), stats=[7, 1.5, 2.5, [1.0, 2.0], None, 0.25, 0, 0, 0, 3, 4, 5])
    assert StatisticsOf(("min",))(found) == {
        "count": 7, "min": 1.5, "max": 2.5, "std": 0.25, "nan": 0, "posinf": 0, "neginf": 0, "zero": 3, "negative": 4,
        "positive": 5,
    }  # fmt: skip


def test_what_was_not_recorded_is_computed_by_name(tmp_path: Path) -> None:
    x = torch.tensor([3.0, -4.0, 0.0, math.inf, -math.inf, math.nan])
    (found,) = values_of(tmp_path, x)
    numbers = StatisticsOf((*ALL, "std"))(found)
    assert set(numbers) == set(ALL), "which has no std"
    assert [numbers[name] for name in ("count", "nan", "posinf", "neginf", "zero", "negative", "positive")] == [
        6, 1, 1, 1, 1, 2, 2,
    ]  # fmt: skip
    assert all(math.isnan(numbers[name]) for name in ("min", "max", "mean", "l2norm"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int32])
def test_small_dtypes_are_computed_without_overflow(tmp_path: Path, dtype: torch.dtype) -> None:
    (found,) = values_of(tmp_path, torch.tensor([3.0, -4.0] * 200).to(dtype))
    numbers = StatisticsOf(ALL)(found)
    assert (numbers["min"], numbers["max"], numbers["mean"], numbers["l2norm"]) == (-4, 3, -0.5, math.sqrt(25 * 200))


def test_complex_and_empty_ones_have_a_count(tmp_path: Path) -> None:
    complex_, empty = values_of(tmp_path, torch.ones(3, dtype=torch.complex64), torch.empty(0))
    statistics = StatisticsOf(ALL)
    assert (statistics(complex_), statistics(empty)) == ({"count": 3}, {"count": 0})


@pytest.mark.parametrize("how", [{"store": None}, {"flags": r.UNDEFINED}, {"flags": r.OPAQUE, "store": None}])
def test_of_what_has_no_bytes_nothing_is_known(tmp_path: Path, how: dict[str, Any]) -> None:
    (found,) = values_of(tmp_path, torch.ones(2), **how)
    assert StatisticsOf(ALL)(found) == {}


def test_each_value_is_computed_once(tmp_path: Path) -> None:
    (found,) = values_of(tmp_path, torch.ones(2))
    statistics = StatisticsOf(ALL)
    assert statistics(found) is statistics(found)


def test_numbers_of_a_tensor_in_blocks_are_those_of_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(7, 30).double()
    x[2, 3] = 0
    monkeypatch.setattr(Value.blocks, "__defaults__", (8 * 11,))
    (found,) = values_of(tmp_path, x)
    assert len(list(found.blocks())) > 20
    numbers = StatisticsOf(ALL)(found)
    exact = ("count", "min", "max", "nan", "zero", "negative", "positive")
    assert [numbers[name] for name in exact] == [210, x.min(), x.max(), 0, 1, (x < 0).sum(), (x > 0).sum()]
    assert [numbers["mean"], numbers["l2norm"]] == pytest.approx([x.mean().item(), x.norm().item()], rel=1e-12)
    x[6, 29] = math.nan
    (found,) = values_of(tmp_path / "nan", x)
    numbers = StatisticsOf(ALL)(found)
    assert numbers["nan"] == 1 and all(math.isnan(numbers[name]) for name in ("min", "max", "mean", "l2norm"))


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64, torch.bool])
def test_dtypes_that_reductions_do_not_know_are_computed(tmp_path: Path, dtype: torch.dtype) -> None:
    (found,) = values_of(tmp_path, torch.tensor([1, 0, 1]).to(dtype))
    numbers = StatisticsOf(ALL)(found)
    assert (numbers["min"], numbers["max"], numbers["zero"], numbers["positive"]) == (0, 1, 1, 2)


@pytest.mark.parametrize("name", ["float4_e2m1fn_x2", "uint4"])
def test_what_has_no_numbers_has_a_count(tmp_path: Path, name: str) -> None:
    dtype = getattr(torch, name, None)
    if dtype is None:
        pytest.skip(f"this torch has no {name}")
    (found,) = values_of(tmp_path, torch.zeros(3, dtype=torch.uint8).view(dtype))
    assert StatisticsOf(ALL)(found) == {"count": 3}
