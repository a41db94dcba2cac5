"""Tables of calls, uses, values and statistics, parted by step and rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from aten_dump.export.formats import to_parquet
from aten_dump.export.formats.to_parquet import write
from tests.export.made import chosen, small_step


def rows(out: Path, table: str, step: int = 0) -> list[dict[str, Any]]:
    part = parquet.ParquetFile(out / table / f"step={step}" / "rank=0" / "part-0.parquet")
    found: list[dict[str, Any]] = part.read().to_pylist()
    return found


def test_each_use_of_a_value_is_a_row_and_the_value_one(tmp_path: Path) -> None:
    write(chosen(small_step(tmp_path / "dump")), tmp_path)
    uses = rows(tmp_path, "uses")
    assert [(use["slot"], use["value_id"]) for use in uses if use["call_id"] == 3] == [
        ("input.0", 1), ("input.1.0", 2), ("output.0", 3), ("mutated.self", 3),
    ]  # fmt: skip
    values = rows(tmp_path, "values")
    assert sorted(value["value_id"] for value in values) == [1, 2, 3, 4, 5]
    y, nothing = values[2], values[-1]
    assert (y["dtype"], y["shape"], y["stride"], y["nbytes"], y["hash"]) == (
        "float32",
        [1, 2],
        [2, 1],
        8,
        "0102030405060708",
    )
    assert (y["has_data"], y["undefined"]) == (True, False)
    assert {value["undefined"] for value in values} == {True, False} and nothing["value_id"] == 4


def test_statistics_are_numbers_by_name_and_of_those_values_alone_that_have_any(tmp_path: Path) -> None:
    write(chosen(small_step(tmp_path / "dump")), tmp_path)
    (row,) = rows(tmp_path, "statistics")
    assert (row["value_id"], row["count"], row["min"], row["l2norm"], row["std"]) == (3, 2.0, -4.0, 5.0, None)


def test_calls_are_those_chosen_in_their_order(tmp_path: Path) -> None:
    small_step(tmp_path / "dump")
    small_step(tmp_path / "dump", 1)
    write(chosen(tmp_path / "dump", ["aten", "node"]), tmp_path)
    for step in (0, 1):
        assert [call["call"] for call in rows(tmp_path, "calls", step)] == [
            "Aten.addmm_.0.forward", "Node.AddmmBackward0.0.backward",
        ]  # fmt: skip


def test_a_table_without_rows_has_its_columns(tmp_path: Path) -> None:
    write(chosen(small_step(tmp_path / "dump"), ["node"], filters={"op": "none"}), tmp_path)
    part = parquet.ParquetFile(tmp_path / "uses" / "step=0" / "rank=0" / "part-0.parquet")
    assert part.schema_arrow.names == ["call_id", "slot", "value_id"] and part.metadata.num_rows == 0


def test_rows_are_written_a_group_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(to_parquet, "_ROWS", 3)
    write(chosen(small_step(tmp_path / "dump")), tmp_path)
    part = parquet.ParquetFile(tmp_path / "calls" / "step=0" / "rank=0" / "part-0.parquet").metadata
    assert [part.row_group(i).num_rows for i in range(part.num_row_groups)] == [3, 3, 1]
