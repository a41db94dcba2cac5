"""The rows of a comparison: plain values under fixed columns, a table, a Parquet file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from aten_dump import StoreError
from aten_dump.analysis.comparison_rows import COLUMNS, ULP_COLUMNS, comparison_rows
from aten_dump.analysis.distance.metrics import ULP_EDGES, Metrics
from aten_dump.analysis.distance.value_distance import Closeness
from aten_dump.report.comparison import comparison_table, write_parquet
from tests.report.evidence import place, row

METRICS = Metrics(
    6, "float32", 0.25, 0.5, (1, 2), 2.0, None, 0.125, 0.875, 0.0625, 0.5, 0.75, 1.0, (3, 2, *[0] * (len(ULP_EDGES) - 2), 1),
    0, None, 0, 0,
)  # fmt: skip
CLOSE = Closeness("tensor", error=0.25, metrics=METRICS, shape=((2, 3), (3, 2)))


def cells(*rows: Any) -> list[dict[str, Any]]:
    return list(comparison_rows(rows))


def test_a_row_says_who_was_compared_and_how_they_were_found() -> None:
    (found,) = cells(row(place(1, module="fc"), place(2), ratio=3.0, floor=0.5, floor_from="", note=""))
    assert (found["target"], found["baseline"], found["slot"]) == (
        "Aten.add.1.forward",
        "Aten.add.2.forward",
        "output.0",
    )
    assert (found["module"], found["status"], found["ratio"]) == ("fc", "different", 3.0)
    assert (found["floor_from"], found["note"]) == (None, None) and found[
        "matched_by"
    ] == "same op and shape, in sequence"
    assert "error" not in found, "nothing was measured"


def test_a_call_without_a_counterpart_is_of_its_own_side() -> None:
    of_target, of_baseline = cells(row(place(1), None, "unmatched", ""), row(None, place(2), "unmatched", ""))
    assert (of_target["target"], of_target["baseline"], of_target["matched_by"]) == ("Aten.add.1.forward", None, None)
    assert (of_baseline["target"], of_baseline["baseline"]) == (None, "Aten.add.2.forward")


def test_what_was_measured_is_under_its_column_and_what_is_equal_on_both_sides_is_not_told() -> None:
    (found,) = cells(row(place(1), place(1), closeness=CLOSE))
    assert (found["level"], found["bitwise"], found["error"], found["cosine"]) == ("tensor", False, 0.25, 0.875)
    assert (found["target_shape"], found["baseline_shape"]) == ([2, 3], [3, 2])
    assert "target_dtype" not in found and "target_layout" not in found
    assert (found["max_abs_at"], found["max_rel_at"], found["compared_as"]) == ([1, 2], None, "float32")
    assert [found[name] for name in ULP_COLUMNS] == list(METRICS.ulp)
    assert set(found) <= set(COLUMNS)


def test_statistics_have_an_error_and_no_metrics() -> None:
    (found,) = cells(
        row(place(1), place(1), closeness=Closeness("statistic", error=0.5, dtype=("float32", "bfloat16")))
    )
    assert (found["error"], found["target_dtype"], found["baseline_dtype"]) == (0.5, "float32", "bfloat16")
    assert "rel_l2" not in found


@pytest.mark.parametrize(("limit", "count", "left"), [(None, 3, 0), (2, 2, 1), (5, 3, 0)])
def test_the_table_leaves_out_what_is_over_the_limit(limit: int | None, count: int, left: int) -> None:
    rows = [row(place(n), place(n), closeness=CLOSE, ratio=4.0) for n in (1, 2)] + [
        row(place(3, module=""), None, "unmatched", "")
    ]
    table, left_out = comparison_table(rows, limit)
    lines = table.rows
    assert (len(lines), left_out) == (count, left)
    assert lines[0] == [
        "different", "Aten.add.1.forward", "output.0", "Aten.add.1.forward", "order", "fc", "0.25", "-", "4", "0.5", "0.875",
    ]  # fmt: skip
    if count == 3:
        assert lines[2] == ["unmatched", "Aten.add.3.forward", "-", "-", "-", "-", *["-"] * 5]


def test_a_parquet_file_has_every_column(tmp_path: Path) -> None:
    rows = cells(row(place(1), None, "unmatched", ""), row(place(2), place(2), closeness=CLOSE))
    write_parquet(rows, COLUMNS, tmp_path / "rows.parquet")
    table = parquet.read_table(tmp_path / "rows.parquet")
    assert tuple(table.column_names) == COLUMNS and table.column("target_shape").to_pylist() == [None, [2, 3]]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot write .*gone"):
        write_parquet([], COLUMNS, tmp_path / "gone" / "rows.parquet")


def test_a_file_that_was_there_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    old = tmp_path / "rows.parquet"
    old.write_bytes(b"old")
    (tmp_path / f".rows.parquet.{os.getpid()}.partial").mkdir()  # nothing can be written under the other name
    with pytest.raises(StoreError):
        write_parquet([], COLUMNS, old)
    assert old.read_bytes() == b"old"
