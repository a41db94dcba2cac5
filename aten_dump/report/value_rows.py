"""Values as rows, one per (call, slot, value), and their CSV and JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any, Final, TextIO

from ..dump import RankDump
from ..dump.dataframes.tensor_columns import value_column_types, value_rows
from ..plain_text import CsvRows

__all__ = ["columns", "value_rows", "write_csv", "write_json"]

SCHEMA: Final = 1  # of the JSON; a later one only adds members


def columns(ranks: Iterable[RankDump]) -> list[str]:
    """Return the columns of the rows of some steps and ranks: the statistics are those that were recorded."""
    return list(value_column_types(ranks))


def write_csv(rows: Iterable[dict[str, Any]], names: Sequence[str], file: TextIO) -> None:
    """Write rows as CSV; shapes are JSON lists, what was not recorded is empty."""
    writer = CsvRows(file)
    writer.write(names)
    for row in rows:
        writer.write(row.get(name) for name in names)


def write_json(rows: Iterable[dict[str, Any]], names: Sequence[str], file: TextIO) -> None:
    """Write one JSON object, the version of its schema and ``rows``, one on each line, as they come.

    NaN and infinities are strings, a complex is [re, im].
    """
    file.write(f'{{"schema": {SCHEMA}, "rows": [')
    separator = "\n"
    for row in rows:
        cells = {name: _json_cell(row.get(name)) for name in names}
        file.write(separator + json.dumps(cells, allow_nan=False))
        separator = ",\n"
    file.write("\n]}\n" if separator != "\n" else "]}\n")


def _json_cell(cell: Any) -> Any:
    if isinstance(cell, complex):
        return [_json_cell(cell.real), _json_cell(cell.imag)]
    if isinstance(cell, float) and not math.isfinite(cell):
        return "NaN" if math.isnan(cell) else "Infinity" if cell > 0 else "-Infinity"
    return cell
