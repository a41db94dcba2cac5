"""The table of a comparison for a terminal, and any table as Parquet."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from ..analysis.evidence.findings import Row
from ..errors import MissingDataError, StoreError
from ..whole_files import replaced_when_whole
from .table import Table, names, numbers, words
from .units import format_number


def comparison_table(rows: Iterable[Row], limit: int | None) -> tuple[Table, int]:
    """Return the table for a terminal, and how many rows `limit` left out."""
    table = Table(
        words("status"),
        names("target"),
        words("slot"),
        names("baseline", spare=1),
        words("matched by", spare=5),
        names("module", spare=2),
        numbers("error"),
        numbers("floor", spare=2),
        numbers("ratio"),
        numbers("max abs", spare=3),
        numbers("cosine", spare=4),
    )
    found = iter(rows)
    for row in islice(found, limit):
        close = row.closeness
        metrics = close.metrics if close else None
        table.add_row(
            row.status,
            row.target.call if row.target else "-",
            row.slot or "-",
            row.baseline.call if row.baseline else "-",
            row.how or "-",
            row.place.module or "-",
            format_number(close.error if close else None),
            format_number(row.floor),
            format_number(row.ratio),
            format_number(metrics.max_abs if metrics else None),
            format_number(metrics.cosine if metrics else None),
        )
    return table, sum(1 for _ in found)


def write_parquet(rows: Iterable[dict[str, Any]], names: Sequence[str], path: str | os.PathLike[str]) -> None:
    """Write rows as a Parquet file, which has its name only when it is whole.

    Raises:
        MissingDataError: pyarrow is not installed.
        StoreError: the file cannot be written.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        message = "Parquet needs pyarrow: pip install 'aten-dump[parquet]', or take --format csv"
        raise MissingDataError(message) from None
    table = pyarrow.Table.from_pylist([{name: row.get(name) for name in names} for row in rows])
    try:
        with replaced_when_whole(path) as part:
            parquet.write_table(table, part)
    except OSError as error:
        raise StoreError(error.errno, f"cannot write {path}: {error.strerror}") from error
