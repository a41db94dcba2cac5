"""What ``rank.calls.to_pandas()`` and its like return."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal

from ...errors import ConfigError
from ..handles import Call, Recording
from .call_columns import CALL_COLUMNS, ColumnType, call_row, facts
from .libraries import LIBRARIES
from .tensor_columns import value_column_types, value_rows

Rows = Literal["calls", "values"]
_PLACE: Final = facts("step", "rank")


def table_of(library: str, rank: Recording, calls: Iterable[Call], rows: Rows) -> Any:
    """Return calls as a table.

    Args:
        library: one of `LIBRARIES`.
        rank: that the calls are of.
        calls: in the order of the rows.
        rows: ``"calls"``: a row for each call; ``"values"``: one for each tensor of each call, with its statistics.

    Raises:
        ConfigError: `rows` is something else.
        MissingDataError: the library is not installed.
    """
    if rows == "calls":
        types = {**_PLACE, **CALL_COLUMNS}
        found = [(rank.step, rank.rank, *call_row(call)) for call in calls]
        columns = dict(zip(types, zip(*found, strict=True) if found else [()] * len(types), strict=True))
    elif rows == "values":
        types = value_column_types([rank])
        named = list(value_rows(calls))
        columns = {name: tuple(_cell(row.get(name), kind) for row in named) for name, kind in types.items()}
    else:
        raise ConfigError(f"rows is {rows!r}; allowed: 'calls', 'values'")
    return LIBRARIES[library](columns, types)


def _cell(cell: Any, kind: ColumnType) -> Any:
    """Return a statistic as a float; that of complex numbers has no place in a column of them."""
    if kind == "float":
        return float(cell) if isinstance(cell, (int, float)) else None
    return cell
