"""Where the elements of a value lie, in a few coarse bars; nothing where there is nothing to show."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from aten_dump import Value, open_dump
from aten_dump.dump.index.source import Source
from aten_dump.dump.index.tables import Tables
from aten_dump.report.html.payload import histograms
from aten_dump.report.html.payload.histograms import BARS, HIGHEST, counted, histogram, histograms_section
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
    assert histogram(value_of(tmp_path, x)) == (0.0, 16.0, [15, 1, *[0] * 13, 1], 0)


def test_a_bar_with_few_elements_is_still_seen(tmp_path: Path) -> None:
    found = histogram(value_of(tmp_path, torch.tensor([0.0] * 10_000 + [1.0])))
    assert found is not None and found[2][0] == HIGHEST and found[2][-1] == 1 and len(found[2]) == BARS


def test_what_is_not_finite_is_left_out(tmp_path: Path) -> None:
    found = histogram(value_of(tmp_path, torch.tensor([math.nan, math.inf, -math.inf, 1.0, 2.0])), bars=2)
    assert found == (1.0, 2.0, [15, 15], 0)


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
    assert histogram(value_of(tmp_path, torch.tensor([0, 1, 1, 3]).to(dtype)), bars=3) == (0.0, 3.0, [8, 15, 8], 0)


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


def test_of_large_tensors_a_sample_is_read_where_there_is_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = Builder(tmp_path / "dump")
    tensors = [torch.arange(4.0), torch.arange(4e4), torch.arange(4e4).reshape(200, 200).t() - 2e4, torch.arange(9.0)]
    for tensor in tensors:
        b.value(tensor)
    bytes_read = 0
    read = Source.read

    def counting(self: Source, tables: Tables, blob: r.Blob, start: int, stop: int) -> Any:
        nonlocal bytes_read
        bytes_read += stop - start
        return read(self, tables, blob, start, stop)

    monkeypatch.setattr(histograms, "MOST_BYTES", 1 << 16)
    monkeypatch.setattr(Source, "read", counting)
    found = section_of(b)
    assert found is not None and found.columns["index"] == [0, 1, 2, 3]
    assert 0.9 * (1 << 16) < bytes_read <= 1 << 16
    sampled = found.columns["sampled"]
    assert sampled[0] == sampled[3] == 0 and sampled[1] == sampled[2] > 7000
    assert found.numbers("low")[1:3] == [0, -2e4] and found.numbers("high")[1:3] == [39_999, 19_999], "both ends"
    assert set(found.columns["bar"][BARS : 3 * BARS]) <= {HIGHEST - 1, HIGHEST}, "from everywhere, evenly"


def test_many_tensors_each_get_a_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    b = Builder(tmp_path / "dump")
    for _ in range(5):
        b.value(torch.arange(2000.0))
    monkeypatch.setattr(histograms, "MOST_BYTES", 100)
    found = section_of(b)
    assert found is not None and found.columns["sampled"] == [histograms.LEAST_BYTES // 4] * 5


def test_what_cannot_be_read_in_blocks_is_read_whole_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scattered = value_of(tmp_path, torch.arange(4000.0)[::2])
    found = histogram(scattered, 4096)
    assert found is not None and found.sampled == 0
    monkeypatch.setattr(histograms, "_MOST_SCATTERED", 4096)
    assert histogram(scattered, 4096) is None


def test_counts_of_parts() -> None:
    assert counted(torch.tensor([0.0, 1.0, 1.0, 4.0]), 4) == (0.0, 4.0, [1, 2, 0, 1])
    assert counted(torch.tensor([2.0, 2.0]), 4) == (2.0, 2.0, [2])
    assert counted(torch.tensor([]), 4) == (0.0, 0.0, [])


@pytest.mark.parametrize("name", ["float4_e2m1fn_x2", "uint4"])
def test_what_has_no_numbers_has_no_bars(tmp_path: Path, name: str) -> None:
    if not hasattr(torch, name):
        pytest.skip(f"this torch has no {name}")
    assert histogram(value_of(tmp_path, torch.arange(8, dtype=torch.uint8).view(getattr(torch, name)))) is None
