"""``--to parquet``: tables partitioned by step and rank, as DuckDB, pandas and polars read them.

``calls`` (a row each), ``uses`` (which call has which value in which slot), ``values`` (what each tensor is) and
``statistics`` (a row for each value that has any). Tables are joined by call_id and value_id within a step and rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from ...dump import RankDump, Value
from ...dump.dataframes.call_columns import CALL_COLUMNS, ColumnType, call_row, facts
from ...dump.dataframes.libraries import arrow_types
from ..chosen_calls import ChosenCalls, require, slots_of

_ROWS: Final = 1 << 14  # of a row group
_TABLES: Final[dict[str, dict[str, ColumnType]]] = {
    "calls": CALL_COLUMNS,
    "uses": facts("call_id", "slot", "value_id"),
    "values": facts(
        "value_id", "storage_id", "version", "dtype", "shape", "stride", "device", "nbytes", "undefined",
        "requires_grad", "has_data", "hash",
    ),
}  # fmt: skip


def write(chosen: ChosenCalls, out: Path) -> None:
    """Write the tables."""
    require("pyarrow", "parquet")
    for rank in chosen.each_rank():
        names = list(rank.config.get("statistics", ()))
        statistics: dict[str, ColumnType] = {**facts("value_id"), **dict.fromkeys(names, "float")}
        tables = {
            name: ParquetFile(_part(out, name, rank), columns)
            for name, columns in ({**_TABLES, "statistics": statistics}).items()
        }
        seen: set[int] = set()
        for call in chosen.calls(rank):
            tables["calls"].add(call_row(call))
            for slot, value in slots_of(call):
                tables["uses"].add((call.id, slot, value.id))
                if value.id not in seen:
                    seen.add(value.id)
                    tables["values"].add(_value_row(value))
                    if value.stats is not None:
                        tables["statistics"].add((value.id, *_numbers(value, names)))
        for table in tables.values():
            table.close()


def _part(out: Path, name: str, rank: RankDump) -> Path:
    folder = out / name / f"step={rank.step}" / f"rank={rank.rank}"
    folder.mkdir(parents=True)
    return folder / "part-0.parquet"


def _value_row(value: Value) -> tuple[Any, ...]:
    return (
        value.id, value.storage, value.version, value.dtype_name, list(value.shape), list(value.stride),
        value.device_name, value.nbytes, value.undefined, value.requires_grad, value.has_data, value.hash,
    )  # fmt: skip


def _numbers(value: Value, names: Iterable[str]) -> Iterator[float | None]:
    stats = dict(value.stats or {})
    for name in names:
        number = stats.get(name)
        yield float(number) if isinstance(number, int | float) else None


class ParquetFile:
    """One file, written a row group at a time."""

    def __init__(self, path: Path, columns: dict[str, ColumnType]) -> None:
        import pyarrow
        from pyarrow import parquet

        types = arrow_types(pyarrow)
        self._schema = pyarrow.schema([(name, types[kind]) for name, kind in columns.items()])
        self._make = pyarrow.Table.from_pydict
        self._writer = parquet.ParquetWriter(path, self._schema)
        self._rows: list[tuple[Any, ...]] = []

    def add(self, row: tuple[Any, ...]) -> None:
        self._rows.append(row)
        if len(self._rows) == _ROWS:
            self._flush()

    def _flush(self) -> None:
        columns = list(zip(*self._rows, strict=True)) or [()] * len(self._schema.names)
        content = {name: list(column) for name, column in zip(self._schema.names, columns, strict=True)}
        self._writer.write_table(self._make(content, schema=self._schema))
        self._rows.clear()

    def close(self) -> None:
        self._flush()
        self._writer.close()
