"""What an index says beside times, numbers and arguments: steps of a long run mostly say the same.

Only short indexes are looked at, which are decoded whole: of a long one, comparing takes more than it saves.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final

from ...store import records
from ...store.raw_rows import DecodedRows, RawRows, Row

# The fields that are held against those of another index, of kinds of which not all are.
_SAID: Final[dict[int, tuple[slice, ...]]] = {
    records.HEADER: (slice(1, 2), slice(4, 5), slice(7, None)),  # format version, world size, config
    records.OPEN: (slice(0, 7), slice(8, 10)),  # all but time and arguments
    records.COMMIT: (slice(0, 6),),  # all but seconds
    records.STATISTICS: (slice(0, 2),),  # whose they are
    records.HASH: (slice(0, 2),),
    # Nothing else refers to these, and they hold settings, times and checksums of their own.
    **dict.fromkeys((records.OPTIMIZER_GROUPS, records.PACKED, records.FETCHED, records.CHECK), ()),
}
_OUTPUTS: Final = records.Call._fields.index("outputs")
_TIMES: Final = slice(8, 11)  # of a call: start, duration, sequence number
_TIME_TYPES: Final = {(int, int, int), (int, int, type(None)), (int, int)}


class Pattern:
    """The records of an index without what differs from step to step."""

    def __init__(self, rows: Mapping[int, RawRows]) -> None:
        self._rows = rows

    @property
    def is_short(self) -> bool:
        """True if the index is one that is looked at."""
        return isinstance(self._rows[records.HEADER], DecodedRows)

    @cached_property
    def _said(self) -> dict[int, list[Row]] | None:
        return _said(self._rows)

    def is_of(self, rows: Mapping[int, RawRows]) -> bool:
        """Return True if another index says the same."""
        return self.is_short and self._said is not None and self._said == _said(rows)


def _said(rows: Mapping[int, RawRows]) -> dict[int, list[Row]] | None:
    """Return what an index says; None of a long one, and of one with times that are none."""
    found = {}
    for kind, given in rows.items():
        if not isinstance(given, DecodedRows):
            return None
        found[kind] = _parts(given.unchecked, _SAID.get(kind))
    calls = found[records.CALL]
    found[records.CALL] = list(map(_call, calls))
    return found if _have_times(calls) else None


def _call(row: Row) -> Row:
    """Return a call without its times, sequence number, arguments and error, and without a number that it returned."""
    outputs = row[_OUTPUTS] if len(row) > _OUTPUTS else None
    return row[: _TIMES.start], row[_TIMES.stop : 14], outputs if type(outputs) is tuple else None, row[17:18]


def _parts(rows: list[Row], parts: tuple[slice, ...] | None) -> list[Any]:
    if parts is None:
        return rows
    if not parts:
        return []
    return [tuple([row[part] for part in parts]) for row in rows]


def _have_times(rows: list[Row]) -> bool:
    times = [row[_TIMES] for row in rows]
    return _TIME_TYPES.issuperset([tuple(map(type, one)) for one in times]) and all(one[1] >= 0 for one in times)
