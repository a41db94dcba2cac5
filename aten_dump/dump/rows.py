"""Typed views of raw rows: a row becomes its record type when it is looked at.

Millions of typed records that stay would cost the garbage collector seconds at every full collection; plain
tuples of plain values it lets go of. A row with fields of a newer version keeps them at its end, out of reach.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

from ..errors import FormatError
from ..store.index import Row

Record = TypeVar("Record", bound=tuple[Any, ...])


def check_sizes(rows: list[Row], record_type: type[tuple[Any, ...]], where: str) -> None:
    """Check that no row lacks fields.

    Raises:
        FormatError: one does.
    """
    size = len(record_type._fields)  # type: ignore[attr-defined]
    found = min(map(len, rows), default=size)
    if found < size:
        raise FormatError(
            f"{where} has a {record_type.__name__} record of {found} fields, it must have {size}; "
            "run `aten-dump verify`"
        )


class Records(Generic[Record]):
    """Rows in order, as records."""

    __slots__ = ("_make", "rows")

    def __init__(self, rows: list[Row], record_type: type[Record]) -> None:
        self.rows = rows
        self._make: partial[Record] = partial(tuple.__new__, record_type)

    def __getitem__(self, position: int) -> Record:
        return self._make(self.rows[position])

    def __iter__(self) -> Iterator[Record]:
        return map(self._make, self.rows)

    def __len__(self) -> int:
        return len(self.rows)


class RecordTable(Mapping[int, Record]):
    """Rows by a number in them, as records; of rows with one number the last counts."""

    __slots__ = ("_make", "_rows")

    def __init__(self, rows: Iterable[Row], record_type: type[Record], key: int = 1) -> None:
        self._rows = {row[key]: row for row in rows}
        self._make: partial[Record] = partial(tuple.__new__, record_type)

    def __getitem__(self, number: int) -> Record:
        return self._make(self._rows[number])

    def __contains__(self, number: object) -> bool:
        return number in self._rows

    def __iter__(self) -> Iterator[int]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def records(self) -> Iterator[Record]:
        """Return all records, faster than `values`."""
        return map(self._make, self._rows.values())
