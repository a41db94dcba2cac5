"""The records of an index, found at once and decoded one by one when they are looked at.

Theory of operation
    A million calls and their values would take gigabytes as Python objects, and most are never looked at. So msgpack
    only steps over the records, in C, and what is kept of each is where it begins and ends. Then numpy reads, of all
    records at once, what is needed to sort and find them: kinds, ids, references, which are the integers that
    records begin with (`RawRows.columns`). A row is decoded when it is asked for; the last ones are kept.
    A short index, of which a long run has ten thousand, is decoded whole: that takes less than numpy's calls would.
    Where its records are is then worked out only for what is odd: an error, or integers that are none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from operator import itemgetter
from typing import Any, Final, NamedTuple

import msgpack
import numpy as np
from numpy.typing import NDArray

from ..errors import FormatError
from .field_types import ROW_TYPES
from .records import RECORD_TYPES

Row = tuple[Any, ...]
Integers = NDArray[np.int64]

KEPT_ROWS: Final = 1 << 17  # decoded rows of a kind that are kept: some 100 MB of calls
_FEED_BYTES: Final = 16 << 20
_SHORT_BYTES: Final = 1 << 17  # an index that is decoded whole: some thousand records
_TUPLE: Final = frozenset({tuple})
_INT: Final = frozenset({int})
_PLAIN: Final = frozenset({int, type(None)})

# The integers of msgpack by their first byte: how numpy names what follows it.
_FOLLOWING: Final = {
    0xCC: ">u1", 0xCD: ">u2", 0xCE: ">u4", 0xCF: ">u8", 0xD0: ">i1", 0xD1: ">i2", 0xD2: ">i4", 0xD3: ">i8"
}  # fmt: skip
_NIL: Final = 0xC0
_LONGER_ARRAYS: Final = {0xDC: ">u2", 0xDD: ">u4"}
_CODES: Final = np.arange(256)
# By first byte: the integer that it is by itself, and the bytes that integer and nil take, 0 for all else.
_VALUES: Final = np.select([_CODES < 0x80, _CODES >= 0xE0], [_CODES, _CODES - 0x100], 0)
_WIDTHS: Final = ((_CODES < 0x80) | (_CODES >= 0xE0) | (_CODES == _NIL)).astype(np.int64)
for _code, _dtype in _FOLLOWING.items():
    _WIDTHS[_code] = 1 + np.dtype(_dtype).itemsize
_NONE: Final = np.zeros(0, np.int64)
_COUNTS: Final = np.where((_CODES & 0xF0) == 0x90, _CODES & 0x0F, 0)  # fields of a short array


class Heads(NamedTuple):
    """Where records are."""

    starts: Integers
    ends: Integers
    fields: Integers  # where the first field is
    counts: Integers  # of fields; 0 of what is no array


class RawRows(Sequence[Row]):
    """The records of one kind, in order of the file: tuples of the fields in records.py, lists as tuples too.

    A row may be longer than its record type, in an index of a newer minor version. Trailing fields that a record left
    out have their default.
    """

    def __init__(self, data: memoryview, heads: Heads, kind: int, where: str) -> None:
        """Take the records of a kind.

        Args:
            data: the bytes of the index.
            heads: where the records are.
            kind: of the records.
            where: names the index in errors.

        Raises:
            FormatError: a record lacks fields.
        """
        self._data = data
        self._starts, self._ends = heads.starts.data, heads.ends.data
        self._fields, self._counts = heads.fields, heads.counts
        self._where = where
        self._kept: dict[int, Row] = {}
        self._checked = bytearray(len(heads.starts))  # 1 for rows whose types were found right
        self._type = ROW_TYPES[kind]
        if len(heads.starts):
            self._type.expect_fields(int(self._counts.min()), where)

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, at: int) -> Row:  # type: ignore[override] # nobody needs slices
        row = self._kept.get(at)
        if row is None:
            row = self.peek(at)
            if len(self._kept) >= KEPT_ROWS:
                self._kept.clear()
            self._kept[at] = row
        return row

    def __iter__(self) -> Iterator[Row]:
        return map(self.reader, range(len(self)))

    @property
    def reader(self) -> Callable[[int], Row]:
        """How to get each row once: a pass over more than are kept would push out those that are looked at again."""
        return self.__getitem__ if len(self) <= KEPT_ROWS else self.peek

    def peek(self, at: int) -> Row:
        """Decode a row and do not keep it.

        Raises:
            FormatError: a field has not the type that it must have.
        """
        row = self._type.whole(self._decode(at))
        if not self._checked[at]:
            self._check(at, row)
            self._checked[at] = 1
        return row

    def start_of(self, at: int) -> int:
        """Return where in the index a record begins."""
        return int(self._starts[at])

    def _decode(self, at: int) -> Row:
        try:
            row: Row = msgpack.unpackb(
                self._data[self._starts[at] : self._ends[at]], use_list=False, strict_map_key=False
            )
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise no_record(self._where, self._starts[at], error) from error
        return row

    def _check(self, at: int, row: Row) -> None:
        problem = self._type.problem(row)
        if problem:
            raise FormatError(
                f"{self._where} has a {self._type.name} record near byte {self.start_of(at)} that is not what "
                f"docs/format.md says: {problem}; it was not written by aten_dump, or a later version is needed"
            )

    def columns(self, *fields: int) -> list[Integers]:
        """Read some integer fields of all rows; nil is 0. All fields before them must be integers or nil as well.

        Args:
            fields: numbers of the fields, ascending.

        Raises:
            FormatError: a field is not an integer.
        """
        found = []
        at = self._fields
        for field in range(fields[-1] + 1):
            default = self._type.default(field) or 0
            lacking = np.flatnonzero(self._counts <= field)
            values, widths = _integers(self._data, at)
            values[lacking], widths[lacking] = default, 0
            wrong = np.flatnonzero((widths == 0) & (self._counts > field))
            if len(wrong):
                raise no_record(self._where, int(at[wrong[0]]), TypeError(f"field {field} is not an integer"))
            if field in fields:
                found.append(values)
            at = at + widths
        return found

    def column(self, field: int) -> Integers:
        """Read one integer field of all rows; see `columns`."""
        return self.columns(field)[0]


class DecodedRows(RawRows):
    """The records of one kind of a short index, which were decoded; their types were not looked at."""

    def __init__(self, rows: list[Row], kind: int, where: str, raw: Callable[[], RawRows]) -> None:
        """Take the rows.

        Args:
            rows: as they were decoded.
            kind: of the records.
            where: names the index in errors.
            raw: finds the same records in the bytes.

        Raises:
            FormatError: a record lacks fields.
        """
        self._rows = rows
        self._where = where
        self._raw = raw
        self._type = ROW_TYPES[kind]
        self._columns: dict[int, Integers] = {}
        self._whole: list[Row | None] = [None] * len(rows)  # whose types were found right
        if rows:
            self._type.expect_fields(min(map(len, rows)), where)

    @property
    def unchecked(self) -> list[Row]:
        """The rows as they are, whatever is in them; fields at the end may lack."""
        return self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def peek(self, at: int) -> Row:
        row = self._whole[at]
        if row is None:
            row = self._type.whole(self._rows[at])
            self._check(at, row)
            self._whole[at] = row
        return row

    __getitem__ = peek

    def start_of(self, at: int) -> int:
        return self._raw().start_of(at)

    def columns(self, *fields: int) -> list[Integers]:
        if all(map(self._is_plain, range(fields[-1] + 1))):
            return [self._columns[field] for field in fields]
        return self._raw().columns(*fields)

    def _is_plain(self, field: int) -> bool:
        """Return True if all rows have an integer or nil in a field; keep them then."""
        if field not in self._columns:
            try:
                numbers = [row[field] for row in self._rows]
                if _PLAIN.issuperset(map(type, numbers)):
                    numbers = [one or 0 for one in numbers] if None in numbers else numbers
                    self._columns[field] = np.array(numbers, np.int64)
            except (IndexError, OverflowError):  # a field was left out, or takes 64 bits without a sign
                return False
        return field in self._columns


class MadeRows(list[Row]):
    """Rows that were made and not read."""

    def columns(self, *fields: int) -> list[Integers]:
        """Return some integer fields of all rows; None is 0."""
        return [np.array([row[field] or 0 for row in self], np.int64) for field in fields]

    @property
    def reader(self) -> Callable[[int], Row]:
        """How to get each row once."""
        return self.__getitem__

    def column(self, field: int) -> Integers:
        """Return one integer field of all rows."""
        return self.columns(field)[0]


def split_records(data: bytes | memoryview, where: str) -> tuple[dict[int, RawRows], dict[int, int]]:
    """Find the records of verified bytes.

    Args:
        data: whole records, without anything between them.
        where: names the index in errors.

    Returns:
        The rows of each known kind, and how many there are of each unknown kind.

    Raises:
        FormatError: there are bytes that are no record.
    """
    data = memoryview(data)
    decoded = _decoded_whole(data)
    if decoded is None:
        return _found_rows(data, where)
    found = cache(partial(_found_rows, data, where))

    def raw(kind: int) -> RawRows:
        return found()[0][kind]

    known: dict[int, RawRows] = {
        kind: DecodedRows(decoded.pop(kind, []), kind, where, partial(raw, kind)) for kind in RECORD_TYPES
    }
    return known, {kind: len(rows) for kind, rows in sorted(decoded.items())}


def _found_rows(data: memoryview, where: str) -> tuple[dict[int, RawRows], dict[int, int]]:
    """Find the records without decoding them."""
    heads = _heads(data, _ends(data, where))
    kinds, widths = _integers(data, heads.fields)
    wrong = np.flatnonzero((heads.counts == 0) | (widths == 0) | (kinds < 0))
    if len(wrong):
        raise no_record(where, int(heads.starts[wrong[0]]), TypeError("it is no array that begins with a kind"))
    found, times = np.unique(kinds, return_counts=True)
    counts = dict(zip(found.tolist(), times.tolist(), strict=True))
    known = {}
    for kind in RECORD_TYPES:
        chosen = np.flatnonzero(kinds == kind) if kind in counts else _NONE
        known[kind] = RawRows(data, Heads(*(column[chosen] for column in heads)), kind, where)
    return known, {kind: count for kind, count in counts.items() if kind not in RECORD_TYPES}


def no_record(where: str, at: int, error: Exception) -> FormatError:
    """Return the error for bytes that are whole and mean nothing."""
    message = f"{where} has bytes near {at} that are no record, though their checksum is right"
    return FormatError(f"{message}: {error!r}; it was not written by aten_dump")


def _decoded_whole(data: memoryview) -> dict[int, list[Row]] | None:
    """Decode all records of a short index, by kind; None of a long one, or where one is odd."""
    if len(data) > _SHORT_BYTES:
        return None
    unpacker = msgpack.Unpacker(use_list=False, strict_map_key=False, max_buffer_size=0)
    unpacker.feed(data)
    tell, end = unpacker.tell, 0
    rows: dict[Any, list[Row]] = defaultdict(list)
    try:
        for row in unpacker:
            rows[row[0]].append(row)
            end = tell()
        is_plain = all(_are_records(found) and kind >= 0 for kind, found in rows.items())
    except (ValueError, TypeError, LookupError, msgpack.UnpackException):
        return None
    return rows if is_plain and end == len(data) else None


def _are_records(rows: list[Row]) -> bool:
    """Return True if all rows are tuples that begin with an int; True and 1.0 are no kind 1."""
    return _TUPLE.issuperset(map(type, rows)) and _INT.issuperset(map(type, map(itemgetter(0), rows)))


def _ends(data: memoryview, where: str) -> Integers:
    """Step over all records and return where each ends."""
    try:
        ends = np.fromiter(_each_end(data), np.int64)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise no_record(where, 0, error) from error
    last = int(ends[-1]) if len(ends) else 0
    if last != len(data):
        raise no_record(where, last, ValueError("the last record is cut short"))
    return ends


def _each_end(data: memoryview) -> Iterator[int]:
    unpacker = msgpack.Unpacker(strict_map_key=False, max_buffer_size=0)
    skip, tell = unpacker.skip, unpacker.tell
    for start in range(0, len(data), _FEED_BYTES):
        unpacker.feed(data[start : start + _FEED_BYTES])
        try:
            while True:
                skip()
                yield tell()
        except msgpack.OutOfData:
            continue


def _heads(data: memoryview, ends: Integers) -> Heads:
    starts = np.concatenate((np.zeros(min(len(ends), 1), np.int64), ends[:-1]))
    codes = np.frombuffer(data, np.uint8)[starts]
    counts = _COUNTS[codes]
    fields = starts + 1
    for code, dtype in _LONGER_ARRAYS.items():
        longer = np.flatnonzero(codes == code)
        counts[longer] = _at(data, starts[longer] + 1, dtype)
        fields[longer] += np.dtype(dtype).itemsize
    return Heads(starts, ends, fields, counts)


def _integers(data: memoryview, at: Integers) -> tuple[Integers, Integers]:
    """Return the integers at some places, 0 for nil, and how many bytes they take, 0 for what is neither."""
    codes = np.frombuffer(data, np.uint8).take(at, mode="clip")  # a record without fields may end where the data end
    values, widths = _VALUES[codes], _WIDTHS[codes]
    wide = np.flatnonzero(widths > 1)
    if len(wide):
        codes = codes[wide]
        for code, dtype in _FOLLOWING.items():
            chosen = wide[codes == code]
            values[chosen] = _at(data, at[chosen] + 1, dtype)
    return values, widths


def _at(data: memoryview, at: Integers, dtype: str) -> NDArray[Any]:
    """Return the numbers at some places, wherever they lie."""
    size = np.dtype(dtype).itemsize
    everywhere: NDArray[Any] = np.ndarray(max(len(data) - size + 1, 0), dtype, data, strides=(1,))
    return everywhere[at]  # not take(), which would copy everything first
