"""What an answer needs from the rows of one step and rank, and rows in a compact form if there are many.

Theory of operation
    A row takes half a kilobyte and a step has thousands, so the rows of a thousand ranks would not fit into memory. If
    there are many step-ranks, rows are packed to a thirtieth (`PackedRows`) and unpacked when they are read. What the
    answer needs from all rows is counted once, before packing.
"""

from __future__ import annotations

import pickle
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, overload

from .findings import Place, Row, Status

MOST_WHOLE: Final = 16  # most step-ranks of one comparison whose rows are not packed
_MOST_NAMED: Final = 4
NOT_COMPARED: Final = "what it made was read, and could not be compared"


@dataclass(slots=True)
class Firsts:
    """The first calls of a kind, each by a row, and the number of all."""

    rows: list[Row] = field(default_factory=list)
    count: int = 0
    _last: Place | None = None

    def add(self, row: Row) -> None:
        """Count the call of a row, once for all rows of it; rows come in execution order."""
        if row.place == self._last:
            return
        self._last = row.place
        self.count += 1
        if len(self.rows) < _MOST_NAMED:
            self.rows.append(row)

    def add_all(self, other: Firsts) -> None:
        """Count the calls of another step or rank."""
        self.count += other.count
        self.rows += other.rows[: _MOST_NAMED - len(self.rows)]


@dataclass(slots=True)
class RowSummary:
    """Counts over rows."""

    statuses: Counter[Status] = field(default_factory=Counter)
    judged: Counter[Status] = field(default_factory=Counter)  # of those with something to compare
    let_through: Counter[str] = field(default_factory=Counter)  # by the user's rule
    why_unknown: Counter[str] = field(default_factory=Counter)  # reasons
    undefined: int = 0  # of unknown ones that were made from unwritten memory
    not_compared: int = 0  # calls without a counterpart whose effect is unknown
    first_different: Row | None = None
    unmatched: Firsts = field(default_factory=Firsts)
    seen_otherwise: Firsts = field(default_factory=Firsts)  # other arguments, and no data show the effect

    def add(self, row: Row) -> None:
        """Count a row; rows come in execution order."""
        status, close = row.status, row.closeness
        self.statuses[status] += 1
        if close is None or close.level != "none" or status == "different":
            self.judged[status] += 1
        if status == "different" and self.first_different is None:
            self.first_different = row
        elif status == "within" and row.floor_from == "rule":
            self.let_through[row.floor_reason] += 1
        elif status == "unmatched":
            self.not_compared += row.note == NOT_COMPARED
            self.unmatched.add(row)
        elif status == "unknown" and close is not None:
            self.why_unknown[close.reason] += 1
            self.undefined += close.undefined
        if row.seen:
            self.seen_otherwise.add(row)

    def add_all(self, other: RowSummary) -> None:
        """Add the counts of later rows."""
        self.statuses += other.statuses
        self.judged += other.judged
        self.let_through += other.let_through
        self.why_unknown += other.why_unknown
        self.undefined += other.undefined
        self.not_compared += other.not_compared
        self.first_different = self.first_different or other.first_different
        self.unmatched.add_all(other.unmatched)
        self.seen_otherwise.add_all(other.seen_otherwise)


def summary_of(rows: Iterable[Row]) -> RowSummary:
    """Return the counts over rows."""
    if isinstance(rows, PackedRows):
        return rows.summary
    found = RowSummary()
    for row in rows:
        found.add(row)
    return found


class PackedRows(Sequence["Row"]):
    """Rows that are unpacked at each reading, which takes 10 us per row."""

    __slots__ = ("_count", "_packed", "summary")

    def __init__(self, rows: Sequence[Row]) -> None:
        self.summary = summary_of(rows)
        self._count = len(rows)
        self._packed = zlib.compress(pickle.dumps(tuple(rows), pickle.HIGHEST_PROTOCOL), 1)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Row]:
        return iter(self._unpacked())

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Row, ...]: ...

    def __getitem__(self, index: int | slice) -> Row | tuple[Row, ...]:
        return self._unpacked()[index]

    def _unpacked(self) -> tuple[Row, ...]:
        rows: tuple[Row, ...] = pickle.loads(zlib.decompress(self._packed))
        return rows
