"""Where the elements of a value lie, in a few coarse bars; nothing where there is nothing to show."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from aten_dump import Value, open_dump
from aten_dump.report.html.payload import histograms
from aten_dump.report.html.payload.histograms import BARS, HIGHEST, histogram, histograms_section
from aten_dump.report.html.payload.sections import value_ids
from aten_dump.store import records as r
from tests.dump.building import Builder
from tests.report.sections_read import Read


def value_of(path: Path, tensor: torch.Tensor, **how: Any) -> Value:
    b = Builder(path / "dump")
    number = b.value(tensor, **how)
    return open_dump(b.finish()).step(0).rank(0).value_by_id(number)


def test_bars_are_by_size_with_the_highest_full(tmp_path: Path) -> None:
    x = torch.tensor([0.0] * 30 + [1.0] * 2 + [16.0])
    assert histogram(value_of(tmp_path, x)) == (0.0, 16.0, [15, 1, *[0] * 13, 1])


def test_a_bar_with_few_elements_is_still_seen(tmp_path: Path) -> None:
    found = histogram(value_of(tmp_path, torch.tensor([0.0] * 10_000 + [1.0])))
    assert found is not None and found[2][0] == HIGHEST and found[2][-1] == 1 and len(found[2]) == BARS


def test_what_is_not_finite_is_left_out(tmp_path: Path) -> None:
    found = histogram(value_of(tmp_path, torch.tensor([math.nan, math.inf, -math.inf, 1.0, 2.0])), 2)
    assert found == (1.0, 2.0, [15, 15])


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([math.nan, math.inf]), torch.full((5,), 3.0), torch.ones(3, dtype=torch.complex64),
        torch.tensor([True, False]), torch.tensor([-1.7e308, 1.7e308], dtype=torch.float64),
    ],
    ids=["none finite", "all equal", "complex", "bool", "too wide"],
)  # fmt: skip
def test_where_there_is_nothing_to_show_there_is_none(tmp_path: Path, tensor: torch.Tensor) -> None:
    assert histogram(value_of(tmp_path, tensor)) is None


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.uint8])
def test_every_dtype_of_numbers_has_bars(tmp_path: Path, dtype: torch.dtype) -> None:
    assert histogram(value_of(tmp_path, torch.tensor([0, 1, 1, 3]).to(dtype)), 3) == (0.0, 3.0, [8, 15, 8])


def test_bytes_that_are_lost_have_none(tmp_path: Path) -> None:
    assert histogram(value_of(tmp_path, torch.arange(4.0), store=None)) is None


def section_of(b: Builder) -> Read | None:
    rank = open_dump(b.finish()).step(0).rank(0)
    found = histograms_section(rank, value_ids(rank))
    return None if found is None else Read(found)


def test_the_section_names_the_values_that_have_one(tmp_path: Path) -> None:
    b = Builder(tmp_path / "dump")
    for tensor, how in (
        (torch.arange(4.0), {"store": None}), (torch.arange(4.0) - 1, {}), (torch.ones(1), {}), (torch.ones(3), {}),
        (torch.arange(9.0), {}),
    ):  # fmt: skip
        b.value(tensor, **how)  # type: ignore[arg-type]
    found = section_of(b)
    assert found is not None and found.columns["index"] == [1, 4]
    assert (found.numbers("low"), found.numbers("high")) == ([-1.0, 0.0], [2.0, 8.0])
    assert len(found.columns["bar"]) == 2 * BARS == 2 * found.json["bars"]


def test_without_bytes_there_is_no_section(tmp_path: Path) -> None:
    b = Builder(tmp_path / "dump")
    b.value(torch.arange(4.0), store=None, flags=r.UNDEFINED)
    assert section_of(b) is None


def test_no_more_is_read_than_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    b = Builder(tmp_path / "dump")
    for _ in range(3):
        b.value(torch.arange(4.0))
    b.value(torch.arange(100.0))
    monkeypatch.setattr(histograms, "MOST_BYTES", 40)
    found = section_of(b)
    assert found is not None and found.columns["index"] == [0, 1], "16 bytes each"
