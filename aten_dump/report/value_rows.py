"""Values as rows, one per (call, slot, value), and their CSV and JSON."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TextIO

from ..dump import Call, RankDump, Value
from . import plain_text

CALL_COLUMNS: Final = ("step", "rank", "call", "call_id", "op", "kind", "phase", "module", "slot")
VALUE_COLUMNS: Final = ("value", "storage", "version", "dtype", "shape", "stride", "device", "undefined", "nbytes")


def columns(ranks: Iterable[RankDump]) -> list[str]:
    """Return the columns of the rows of some steps and ranks: the statistics are those that were recorded."""
    statistics = dict.fromkeys(name for rank in ranks for name in rank.config.get("statistics", ()))
    return [*CALL_COLUMNS, *VALUE_COLUMNS, *statistics, "hash"]


def value_rows(calls: Iterable[Call]) -> Iterator[dict[str, Any]]:
    """Yield a row for each input, output and written argument of each call."""
    for call in calls:
        rank = call.rank
        facts = (rank.step, rank.rank, call.name, call.id, call.op, call.kind, call.phase, call.module)
        start = dict(zip(CALL_COLUMNS, facts, strict=False))
        for slot, value in call.all_values():
            yield {**start, "slot": slot, **_value_columns(value)}


def _value_columns(value: Value) -> dict[str, Any]:
    facts = (
        value.id,
        value.storage,
        value.version,
        value.dtype_name,
        list(value.shape),
        list(value.stride),
        value.device_name,
        value.undefined,
        value.nbytes,
    )
    return {**dict(zip(VALUE_COLUMNS, facts, strict=True)), **(value.stats or {}), "hash": value.hash}


def write_csv(rows: Iterable[dict[str, Any]], names: Sequence[str], file: TextIO) -> None:
    """Write rows as CSV; shapes are JSON lists, what was not recorded is empty."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow([_csv_cell(row.get(name)) for name in names])


def _csv_cell(cell: Any) -> Any:
    if isinstance(cell, list):
        return json.dumps(cell)
    if isinstance(cell, bool):
        return str(cell).lower()
    return "" if cell is None else repr(cell) if isinstance(cell, float) else plain_text.cell(cell)


def write_json(rows: Iterable[dict[str, Any]], names: Sequence[str], file: TextIO) -> None:
    """Write rows as a JSON array, an object a line; NaN and infinities are strings, a complex is [re, im]."""
    separator = "[\n"
    for row in rows:
        cells = {name: _json_cell(row.get(name)) for name in names}
        file.write(separator + json.dumps(cells, allow_nan=False))
        separator = ",\n"
    file.write("\n]\n" if separator != "[\n" else "[]\n")


def _json_cell(cell: Any) -> Any:
    if isinstance(cell, complex):
        return [_json_cell(cell.real), _json_cell(cell.imag)]
    if isinstance(cell, float) and not math.isfinite(cell):
        return "NaN" if math.isnan(cell) else "Infinity" if cell > 0 else "-Infinity"
    return cell
