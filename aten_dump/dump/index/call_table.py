"""All calls of an index in execution order, and single fields of all of them at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from functools import partial
from typing import Final

import numpy as np

from ...store import records
from ...store.raw_rows import Integers, MadeRows, RawRows, Row
from .typed_rows import Places

_COLUMNS: Final = ("id", "parent", "op", "n", "repeat", "phase", "module", "forward")


class CallTable:
    """The calls in order of id, which is the order in which they began; those that were cut short among them."""

    def __init__(self, rows: RawRows | MadeRows, cut_short: MadeRows | None = None) -> None:
        """Sort the rows of the file, written when calls ended, and the calls that have none."""
        self._rows = rows
        self._cut_short = cut_short or MadeRows()
        fields = [records.Call._fields.index(name) for name in _COLUMNS]
        found = zip(rows.columns(*fields), self._cut_short.columns(*fields), strict=True)
        columns = dict(zip(_COLUMNS, map(np.concatenate, found), strict=True))
        order = np.argsort(columns["id"], kind="stable")
        self._columns = {name: values[order] for name, values in columns.items()}
        self._in_order = order
        self._order = order.data
        self.places = Places(self._columns["id"])

    def with_rows(self, rows: RawRows | MadeRows) -> CallTable:
        """Return the table of other rows, which differ from these in times and sequence numbers alone."""
        found = copy(self)
        found._rows = rows
        return found

    def column(self, name: str) -> Integers:
        """Return an integer field of all calls, one of those that a record begins with; nil is 0."""
        if name not in self._columns:
            field = records.Call._fields.index(name)
            parts = self._rows.column(field), self._cut_short.column(field)
            return np.concatenate(parts)[self._in_order]
        return self._columns[name]

    def __getitem__(self, position: int) -> records.Call:
        return self._call(self._rows.__getitem__, self._order[position])

    def __iter__(self) -> Iterator[records.Call]:
        return map(partial(self._call, self._rows.reader), self._order)

    def _call(self, read: Callable[[int], Row], number: int) -> records.Call:
        row = read(number) if number < len(self._rows) else self._cut_short[number - len(self._rows)]
        return tuple.__new__(records.Call, row)

    def __len__(self) -> int:
        return len(self._order)
