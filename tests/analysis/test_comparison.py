"""All steps and ranks together: what is said of them, and that no more is said than was shown."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet
import pytest
import torch
from click.testing import CliRunner

from aten_dump import DumpConfig, DumpMode, compare, open_dump
from aten_dump.analysis.comparison import Comparison
from aten_dump.analysis.comparison_rows import COLUMNS
from aten_dump.analysis.evidence.findings import Finding, Place, RankEvidence, Row
from aten_dump.cli.main import main
from aten_dump.config import STATISTICS
from aten_dump.dump.dataframes.call_columns import FACTS


def evidence(rank: int, *, wrong: str = "", note: str = "") -> RankEvidence:
    place = Place(0, rank, 1, wrong, "aten::mul", "aten", "forward", "", "", "", "")
    findings = (Finding("op", Row(place, place, "order", "output", "different"), "it is wrong", "", (1, 1)),)
    return RankEvidence(
        "t", "b", (0, 0), (rank, rank), "tensor", {}, (9, 9), {}, (), findings if wrong else (), {}, {},
        notes=(note,) if note else (),
    )  # fmt: skip


def test_an_answer_of_a_thousand_ranks_is_as_long_as_what_there_is_to_say() -> None:
    wrong = "Aten.mul.3.forward"
    ranks = tuple(evidence(rank, wrong=wrong if rank > 9 else "", note="it ended") for rank in range(1000))
    answer = Comparison("t", "b", ranks).answer()
    assert "  step 0 ranks 10-999: first cause Aten.mul.3.forward output" in answer
    assert "  no cause in step 0 ranks 0-9" in answer
    assert "step 0 ranks 0-999: proven for 0 of 0 calls" in answer
    assert "Note: step 0 ranks 0-999: it ended" in answer
    assert len(answer.splitlines()) < 12 and len(answer) < 2000


def test_a_note_on_the_only_rank_needs_no_name_of_it() -> None:
    assert "Note: it ended" in Comparison("t", "b", (evidence(0, note="it ended"),)).answer()


@pytest.mark.parametrize(
    ("data", "said"),
    [("full", "The dumps agree: both compute the same"), ("statistic", "The dumps agree as far as their data go")],
)
def test_what_was_only_estimated_is_not_said_to_be_the_same(tmp_path: Path, data: str, said: str) -> None:
    """By statistics alone no call is proven."""
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    for name, weight in (("a", x), ("b", x.t().contiguous().t())):
        with DumpMode(DumpConfig(tmp_path / name, data=data)):
            (weight * 3).exp().sum(0).mul(2).tanh()
    found = compare(tmp_path / "a", tmp_path / "b")
    assert found.exit_code == 0 and found.headline.startswith(said)


@pytest.mark.parametrize("library", ["pandas", "polars", "arrow"])
def test_a_comparison_is_a_table(tmp_path: Path, library: str) -> None:
    for name, factor in (("a", 2.0), ("b", 3.0)):
        with DumpMode(DumpConfig(tmp_path / name, data="full")):
            torch.arange(4.0) * factor
    found = compare(tmp_path / "a", tmp_path / "b")
    table = getattr(found, f"to_{library}")()
    rows = {"pandas": lambda: table.to_dict("records"), "polars": lambda: table.to_dicts()}.get(
        library, lambda: table.to_pylist()
    )()
    assert tuple(rows[0]) == COLUMNS
    assert [(row["target"], row["slot"], row["status"]) for row in rows] == [
        (row.target.call if row.target else None, row.slot, row.status) for row in found.rows
    ]
    different = next(row for row in rows if row["status"] == "different" and row["count"] == 4)
    assert different["max_abs"] == 3.0 and different["max_abs_at"] == [3]


def test_one_fact_has_one_name_in_all_tables(tmp_path: Path) -> None:
    """So that tables are joined by the columns that they have in common, and a script knows one set of names."""
    with DumpMode(DumpConfig(tmp_path / "dump", data="statistic")):
        torch.arange(4.0) * 2
    rank = open_dump(tmp_path / "dump").rank(0, 0)
    CliRunner().invoke(main, ["export", str(tmp_path / "dump"), "--to", "parquet", "--out", str(tmp_path / "out")])
    exported = {path.name: pyarrow.parquet.read_table(path) for path in (tmp_path / "out").iterdir()}
    tables = {**exported, "of calls": rank.calls.to_arrow(), "of values": rank.calls.to_arrow(rows="values")}
    tables["compared"] = compare(tmp_path / "dump", tmp_path / "dump").to_arrow()
    stats = CliRunner().invoke(main, ["stats", str(tmp_path / "dump"), "--format", "csv"]).stdout.splitlines()[0]
    assert stats.split(",") == tables["of values"].column_names
    own = {*STATISTICS, *(name for name in COLUMNS if name not in FACTS)}
    for name, table in tables.items():
        assert set(table.column_names) <= {*FACTS, *own}, name
    cells = {
        fact: {str(cell) for table in tables.values() if fact in table.column_names for cell in table[fact].to_pylist()}
        for fact in ("call", "call_id", "value_id", "storage_id")
    }
    assert cells["call"] == {call.name for call in rank.calls}
    assert cells["call_id"] == {str(call.id) for call in rank.calls}
    assert cells["value_id"] == {str(value.id) for value in rank.values}
    assert cells["storage_id"] == {str(value.storage) for value in rank.values}
