"""``--to parquet``: tables partitioned by step and rank, as DuckDB, pandas and polars read them.

``calls`` (a row each), ``uses`` (which call has which value in which slot), ``values`` (what each tensor is) and
``statistics`` (a row for each value that has any). Tables are joined by call_id and value_id within a step and rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from ...dump import Call, RankDump, Value
from ..chosen_calls import ChosenCalls, require, slots_of

_ROWS: Final = 1 << 14  # of a row group
_INT, _TEXT, _BOOL, _FLOAT, _INTS = "int64", "string", "bool_", "float64", "list"
_TABLES: Final = {
    "calls": {
        "call_id": _INT, "name": _TEXT, "op": _TEXT, "api": _TEXT, "kind": _TEXT, "phase": _TEXT, "parent_id": _INT,
        "forward_id": _INT, "module": _TEXT, "sequence_nr": _INT, "thread": _INT, "start_ns": _INT, "duration_ns": _INT,
        "error": _TEXT, "source_file": _TEXT, "source_line": _INT, "source_function": _TEXT,
    },
    "uses": {"call_id": _INT, "slot": _TEXT, "value_id": _INT},
    "values": {
        "value_id": _INT, "storage_id": _INT, "version": _INT, "dtype": _TEXT, "shape": _INTS, "stride": _INTS,
        "device": _TEXT, "nbytes": _INT, "undefined": _BOOL, "requires_grad": _BOOL, "has_data": _BOOL, "hash": _TEXT,
    },
}  # fmt: skip


def write(chosen: ChosenCalls, out: Path) -> None:
    """Write the tables."""
    require("pyarrow", "parquet")
    for rank in chosen.each_rank():
        names = list(rank.config.get("statistics", ()))
        statistics = {"value_id": _INT, **dict.fromkeys(names, _FLOAT)}
        tables = {
            name: _Table(_part(out, name, rank), columns)
            for name, columns in ({**_TABLES, "statistics": statistics}).items()
        }
        seen: set[int] = set()
        for call in chosen.calls(rank):
            tables["calls"].add(_call_row(call))
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


def _call_row(call: Call) -> tuple[Any, ...]:
    source, forward = call.source, call.forward
    return (
        call.id, call.name, call.op, call.api, call.kind, call.phase, call.parent_id or None,
        None if forward is None else forward.id, call.module, _signed(call.sequence_nr), call.thread, call.start_ns,
        call.duration_ns, call.error, *((source.file, source.line, source.function) if source else (None, None, None)),
    )  # fmt: skip


def _signed(number: int | None) -> int | None:
    """Return a sequence number, which autograd counts in 64 bits without a sign, as Parquet's int64 holds it."""
    return number - (1 << 64) if number is not None and number >= 1 << 63 else number


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


class _Table:
    """One file, written a row group at a time."""

    def __init__(self, path: Path, columns: dict[str, str]) -> None:
        import pyarrow
        from pyarrow import parquet

        types = {name: getattr(pyarrow, kind)() for name, kind in columns.items() if kind != _INTS}
        self._schema = pyarrow.schema([(name, types.get(name, pyarrow.list_(pyarrow.int64()))) for name in columns])
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
