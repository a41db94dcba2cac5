"""Values: what they have in common once, statistics by row, flags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from aten_dump import open_dump
from aten_dump.report.html.payload.sections import value_ids
from aten_dump.report.html.payload.value_columns import values_section
from aten_dump.store import records as r
from tests.dump.building import STATISTICS, Builder, value
from tests.report.sections_read import Read


def read(b: Builder) -> Read:
    rank = open_dump(b.finish()).step(0).rank(0)
    return Read(values_section(rank, value_ids(rank), 0))


def builder(tmp_path: Path, **config: Any) -> Builder:
    return Builder(tmp_path / "dump", config=config)


def test_values_of_one_kind_share_a_signature(tmp_path: Path) -> None:
    b = builder(tmp_path)
    x = torch.ones(2, 3)
    for tensor in (x, torch.ones(2, 3), x.t(), torch.ones(2, 3).half()):
        b.value(tensor)
    found = read(b)
    assert found.columns["signature"] == [0, 0, 1, 2]
    assert found.json["signatures"][1] == ["f32[3, 2]", 24, "float32", [3, 2], [1, 3], "cpu"]
    assert found.columns["storage"] == [1, 2, 1, 3] and found.columns["id"] == [1, 2, 3, 4]


def test_flags_say_what_is_unusual(tmp_path: Path) -> None:
    b = builder(tmp_path)
    b.value(torch.ones(2).requires_grad_(), store=None)
    b.value(torch.ones(2))
    b.value(torch.ones(2), flags=r.UNDEFINED, store=None)
    assert read(b).columns["flags"] == [1, 2, 4]


def test_statistics_are_a_row_that_values_with_the_same_share(tmp_path: Path) -> None:
    b = builder(tmp_path)
    for n in range(4):
        b.value(torch.full((2,), float(n)))
    numbers = [2, -1.5, 2.5, 0.25, 3.0, None, 0, 0, 0, 0, 1, 1]
    b.emit(r.Statistics(r.STATISTICS, 2, numbers))
    b.emit(r.Same(r.SAME, 3, 2, r.SAME_STATISTICS))
    b.emit(r.Same(r.SAME, 4, 2, r.SAME_HASH))
    found = read(b)
    assert found.columns["row"] == [0, 1, 1, 0]
    assert found.json["statistics"] == STATISTICS
    assert [found.numbers(f"statistics.{name}") for name in ("min", "max", "std")] == [[-1.5], [2.5], [None]]
    assert found.numbers("statistics.positive") == [0], "what the other counts do not tell"


def test_a_count_that_does_not_add_up_is_not_lost(tmp_path: Path) -> None:
    b = builder(tmp_path, statistics=["count", "nan", "zero", "negative", "positive"])
    b.value(torch.ones(2))
    b.emit(r.Statistics(r.STATISTICS, 1, [10, 1, 2, 3, 9]))
    found = read(b)
    shown = found.numbers("statistics.positive")[0]
    assert shown is not None and shown + 10 - (1 + 2 + 3) == 9


def test_without_the_other_counts_positive_is_itself(tmp_path: Path) -> None:
    b = builder(tmp_path, statistics=["positive", "count"])
    b.value(torch.ones(2))
    b.emit(r.Statistics(r.STATISTICS, 1, [9, 10]))
    assert read(b).numbers("statistics.positive") == [9]


def test_complex_numbers_are_told_apart(tmp_path: Path) -> None:
    b = builder(tmp_path)
    b.value(torch.ones(2, dtype=torch.complex64))
    b.emit(r.Statistics(r.STATISTICS, 1, [2, 1.0, 1.0, [0.5, -2.0], 1.5, None, 0, 0, None, 0, None, None]))
    found = read(b)
    assert found.json["complex"] == {"mean": {"1": [0.5, -2.0]}} and found.numbers("statistics.mean") == [None]


def test_hashes_are_shown_where_nothing_else_is_known(tmp_path: Path) -> None:
    b = builder(tmp_path, data="hash")
    number = b.value(torch.ones(2), store=None)
    b.value(torch.ones(3), store=None)
    b.emit(r.Hash(r.HASH, number, b"\1\2\3\4\5\6\7\10"))
    b.call(b.op("aten", "aten::add", "Aten", "add"), args=[value(number)])
    assert read(b).json["hashes"] == ["0102030405060708", None]
