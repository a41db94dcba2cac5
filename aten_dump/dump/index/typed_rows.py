"""Typed views of raw rows: a row becomes its record type when it is looked at.

Theory of operation
    Tables of millions of rows are kept as numpy arrays of positions: by id (`Places`), by what they refer to
    (`Groups`). A dict of as many entries would take gigabytes, and seconds to fill. A row with fields of a newer
    version keeps them at its end, out of reach.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Final, Generic, TypeVar

import numpy as np

from ...store.raw_rows import Integers, MadeRows, RawRows, Row

Record = TypeVar("Record", bound=tuple[Any, ...])

_SPARSE: Final = 8  # ids this much further apart than there are rows are not kept in an array


class Places(Mapping[int, int]):
    """Positions by id; of equal ids the last counts."""

    __slots__ = ("_ids", "_low", "_others", "_places")

    def __init__(self, ids: Integers) -> None:
        self._ids = ids
        self._low = int(ids.min()) if len(ids) else 0
        reach = int(ids.max()) - self._low + 1 if len(ids) else 0
        places = np.full(reach if reach <= _SPARSE * len(ids) + 1024 else 0, -1, np.int64)
        if len(places):
            places[ids - self._low] = np.arange(len(ids))
        is_whole = np.count_nonzero(places >= 0) == len(ids)
        self._places = places.data if is_whole else places[:0].data
        # Ids far apart, or one id twice: our writer makes neither.
        self._others = {} if is_whole else dict(zip(ids.tolist(), range(len(ids)), strict=True))

    def find(self, id: int) -> int:
        """Return the position of an id, or -1."""
        at = id - self._low
        place: int = self._places[at] if 0 <= at < len(self._places) else self._others.get(id, -1)
        return place

    def __getitem__(self, id: int) -> int:
        place = self.find(id)
        if place < 0:
            raise KeyError(id)
        return place

    def __contains__(self, id: object) -> bool:
        return isinstance(id, int) and self.find(id) >= 0

    def __iter__(self) -> Iterator[int]:
        return iter(self._others or self._ids.tolist())

    def __len__(self) -> int:
        return len(self._others) or len(self._ids)

    def in_order(self) -> Sequence[int]:
        """Return the ids in ascending order, the order in which our writer leaves them."""
        is_sorted = bool((self._ids[1:] > self._ids[:-1]).all())
        return (self._ids if is_sorted else np.unique(self._ids)).data

    def positions(self) -> Sequence[int]:
        """Return the positions that count, in the order of the first of equal ids."""
        return list(self._others.values()) or range(len(self._ids))


class Groups(Mapping[int, Sequence[int]]):
    """Positions by a number that several share, ascending."""

    __slots__ = ("_groups", "_order", "_starts")

    def __init__(self, keys: Integers) -> None:
        order = np.argsort(keys, kind="stable")
        distinct, starts = np.unique(keys[order], return_index=True)
        self._order = order.data
        self._starts = np.append(starts, len(order)).data
        self._groups = Places(distinct)

    def __getitem__(self, key: int) -> Sequence[int]:
        group = self._groups[key]
        return self._order[self._starts[group] : self._starts[group + 1]]

    def __iter__(self) -> Iterator[int]:
        return iter(self._groups)

    def __len__(self) -> int:
        return len(self._groups)


class Records(Generic[Record]):
    """Rows in order, as records."""

    __slots__ = ("_make", "_rows")

    def __init__(self, rows: Sequence[Row], record_type: type[Record]) -> None:
        self._rows = rows
        self._make: partial[Record] = partial(tuple.__new__, record_type)

    def __getitem__(self, position: int) -> Record:
        return self._make(self._rows[position])

    def __iter__(self) -> Iterator[Record]:
        return map(self._make, self._rows)

    def __len__(self) -> int:
        return len(self._rows)


class RecordTable(Mapping[int, Record]):
    """Rows by their id, or by the id they are about; of rows with one id the last counts."""

    def __init__(self, rows: RawRows | MadeRows, record_type: type[Record]) -> None:
        self.rows = rows
        self._make: partial[Record] = partial(tuple.__new__, record_type)

    @cached_property
    def places(self) -> Places:
        """Positions in `rows` by id."""
        return Places(self.rows.column(1))

    def __getitem__(self, id: int) -> Record:
        return self._make(self.rows[self.places[id]])

    def find(self, id: int) -> Record | None:
        """Return the record of an id, or None: `get`, without an exception for each that is not there."""
        place = self.places.find(id)
        return None if place < 0 else self._make(self.rows[place])

    def __contains__(self, id: object) -> bool:
        return id in self.places

    def __iter__(self) -> Iterator[int]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)

    def records(self) -> Iterator[Record]:
        """Return all records, faster than `values`."""
        positions = self.places.positions()
        rows = self.rows if isinstance(positions, range) else map(self.rows.__getitem__, positions)
        return map(self._make, rows)


class Facts(Mapping[int, Any]):
    """What rows say of the values they are about: their field after the id."""

    __slots__ = ("_table",)

    def __init__(self, rows: RawRows, record_type: type[tuple[Any, ...]]) -> None:
        self._table = RecordTable(rows, record_type)

    def position(self, id: int) -> int:
        """Return where the fact of a value is among `in_order`; -1 where there is none."""
        return self._table.places.find(id)

    def in_order(self) -> list[Any]:
        """Return all facts, in the order of the file."""
        return [row[2] for row in self._table.rows]

    def __getitem__(self, id: int) -> Any:
        return self._table[id][2]

    def __contains__(self, id: object) -> bool:
        return id in self._table

    def __iter__(self) -> Iterator[int]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)
