"""Columns as a table of pandas, polars or Arrow; each library is an extra of the package."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Final

from ...errors import MissingDataError
from .call_columns import ColumnType

Columns = Mapping[str, Sequence[Any]]
Types = Mapping[str, ColumnType]


def _import(package: str, extra: str) -> Any:
    try:
        return import_module(package)
    except ImportError as error:
        if error.name is not None and error.name.partition(".")[0] != package:
            raise  # it is there, but something of its own is not
        raise MissingDataError(f"this table needs {package}: pip install 'aten-dump[{extra}]'") from None


def pandas_table(columns: Columns, types: Types) -> Any:
    """Return a ``pandas.DataFrame``; integers and truths may be missing (``Int64``, ``boolean``)."""
    pandas = _import("pandas", "pandas")
    names: dict[ColumnType, Any] = {"int": "Int64", "float": "float64", "bool": "boolean"}
    return pandas.DataFrame(
        {name: pandas.Series(list(cells), dtype=names.get(types[name], "object")) for name, cells in columns.items()}
    )


def polars_table(columns: Columns, types: Types) -> Any:
    """Return a ``polars.DataFrame``."""
    polars = _import("polars", "polars")
    kinds: dict[ColumnType, Any] = {
        "int": polars.Int64, "float": polars.Float64, "text": polars.String, "bool": polars.Boolean,
        "ints": polars.List(polars.Int64), "texts": polars.List(polars.String),
    }  # fmt: skip
    made = (polars.Series(name, _encodable(cells, types[name]), kinds[types[name]]) for name, cells in columns.items())
    return polars.DataFrame(list(made))


def arrow_table(columns: Columns, types: Types) -> Any:
    """Return a ``pyarrow.Table``."""
    pyarrow = _import("pyarrow", "parquet")
    kinds = arrow_types(pyarrow)
    return pyarrow.table(
        {name: pyarrow.array(_encodable(cells, types[name]), kinds[types[name]]) for name, cells in columns.items()}
    )


def arrow_types(pyarrow: Any) -> dict[ColumnType, Any]:
    """Return the types of columns, of the imported library."""
    return {
        "int": pyarrow.int64(), "float": pyarrow.float64(), "text": pyarrow.string(), "bool": pyarrow.bool_(),
        "ints": pyarrow.list_(pyarrow.int64()), "texts": pyarrow.list_(pyarrow.string()),
    }  # fmt: skip


def _encodable(cells: Sequence[Any], kind: ColumnType) -> list[Any]:
    """Return cells as UTF-8 can hold them: a path that is not UTF-8 has halves of surrogate pairs in it."""
    if kind != "text":
        return list(cells)
    return [cell if cell is None else cell.encode("utf-8", "backslashreplace").decode("utf-8") for cell in cells]


Maker = Callable[[Columns, Types], Any]
LIBRARIES: Final[Mapping[str, Maker]] = {"pandas": pandas_table, "polars": polars_table, "arrow": arrow_table}
