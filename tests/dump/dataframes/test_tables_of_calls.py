"""Calls and tensors as tables of pandas, polars and Arrow: the same cells as the handles have, with types."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aten_dump.dump import RankDump, open_dump
from aten_dump.dump.dataframes.call_columns import CALL_COLUMNS, call_row
from aten_dump.dump.dataframes.libraries import LIBRARIES
from aten_dump.dump.dataframes.tables_of_calls import table_of
from aten_dump.dump.dataframes.tensor_columns import value_column_types, value_rows
from aten_dump.errors import ConfigError
from tests.dump.building import Builder
from tests.dump.scenario import Scenario
from tests.forked import run

# library -> the rows of its table as dicts of plain values, None for what is missing
READ: dict[str, Callable[[Any], list[dict[str, Any]]]] = {
    "pandas": lambda table: [{k: _plain(v) for k, v in row.items()} for row in table.to_dict("records")],
    "polars": lambda table: table.to_dicts(),
    "arrow": lambda table: table.to_pylist(),
}


def _plain(cell: Any) -> Any:
    import pandas

    return cell if isinstance(cell, list) or not pandas.isna(cell) else None


@pytest.mark.parametrize("library", LIBRARIES)
def test_calls_are_rows(library: str, rank: RankDump) -> None:
    rows = READ[library](getattr(rank.calls, f"to_{library}")())
    assert rows == [
        dict(zip(["step", "rank", *CALL_COLUMNS], (0, 0, *call_row(call)), strict=True)) for call in rank.calls
    ]
    addmm = rows[3]
    assert (addmm["call"], addmm["module"], addmm["parent_id"]) == ("Aten.addmm.0.forward", "net.fc", 2)
    assert (addmm["source_file"], addmm["source_line"], addmm["sequence_nr"]) == ("/home/me/train.py", 42, 11)
    assert rows[7]["forward_id"] == 4 and rows[3]["forward_id"] is None


@pytest.mark.parametrize("library", LIBRARIES)
def test_tensors_are_rows(library: str, rank: RankDump, scenario: Scenario) -> None:
    rows = READ[library](getattr(rank.calls, f"to_{library}")("values"))
    expected = list(value_rows(rank.calls))
    assert [(row["call"], row["slot"], row["value_id"]) for row in rows] == [
        (row["call"], row["slot"], row["value_id"]) for row in expected
    ]
    weight = next(row for row in rows if row["value_id"] == scenario.ids["w"])
    assert (weight["shape"], weight["stride"], weight["dtype"]) == ([3, 4], [4, 1], "float32")
    assert (weight["min"], weight["max"], weight["nan"]) == (-1.5, 2.5, 0.0)
    assert next(row for row in rows if row["value_id"] == scenario.ids["x"])["min"] is None


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_part_of_the_calls_and_none(library: str, rank: RankDump) -> None:
    some = rank.calls.filter(op="aten::addmm")
    assert [row["call"] for row in READ[library](getattr(some, f"to_{library}")())] == ["Aten.addmm.0.forward"]
    for rows, columns in (("calls", 21), ("values", len(value_column_types([rank])))):
        none = getattr(rank.calls[:0], f"to_{library}")(rows)
        assert none.shape == (0, columns)


@pytest.mark.parametrize("library", LIBRARIES)
def test_complex_statistics_unsigned_numbers_and_bytes_in_names(library: str, builder: Builder) -> None:
    import torch

    from aten_dump.store import records as r

    number = builder.value(torch.zeros(2, dtype=torch.complex64))
    builder.emit(r.Statistics(r.STATISTICS, number, [2, None, None, (1.0, 2.0), 5.0]))
    op = builder.op("aten", "aten::exp", "Aten", "exp")
    builder.call(op, outputs=[r.TREE_VALUE, number], sequence_nr=2**64 - 1, module="net.\u202e<b>")
    calls = open_dump(builder.finish()).rank(0, 0).calls
    (row,) = READ[library](getattr(calls, f"to_{library}")())
    assert (row["sequence_nr"], row["module"]) == (-1, "net.\u202e<b>")
    (row,) = READ[library](getattr(calls, f"to_{library}")("values"))
    assert (row["mean"], row["l2norm"], row["min"]) == (None, 5.0, None)


def test_other_rows_are_refused(rank: RankDump) -> None:
    with pytest.raises(ConfigError, match="rows is 'tensors'; allowed: 'calls', 'values'"):
        table_of("pandas", rank, rank.calls, "tensors")  # type: ignore[arg-type]


WITHOUT = """
import sys
sys.modules[{package!r}] = None  # as where it is not installed
from aten_dump import open_dump, MissingDataError
calls = open_dump({path!r}).rank(0, 0).calls
try:
    calls.to_{library}()
except MissingDataError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("library", "package", "extra"),
    [("pandas", "pandas", "pandas"), ("polars", "polars", "polars"), ("arrow", "pyarrow", "parquet")],
)
def test_a_missing_library_is_named_with_its_extra(
    library: str, package: str, extra: str, rank: RankDump, tmp_path: Path
) -> None:
    path = str(rank.directory.parent.parent)
    code = WITHOUT.format(package=package, path=path, library=library)
    ended = run(["-c", code], tmp_path / "said")
    assert ended.said == f"this table needs {package}: pip install 'aten-dump[{extra}]'\n"
