"""The two ends of an index, its header and its commit record, found without reading what lies between."""

from __future__ import annotations

import contextlib
import re
from typing import Any, Final

import msgpack

from .field_types import ROW_TYPES
from .records import CHECK, COMMIT, HEADER, RECORD_TYPES, Commit, Header

END_BYTES: Final = 1 << 16  # the last bytes of an index, which hold its commit record
# An array of 7 to 15 fields of kind COMMIT.
_COMMIT: Final = re.compile(rb"[\x97-\x9f]\x14")


def first_records(data: bytes | bytearray, count: int) -> list[Any]:
    """Decode up to `count` records at the beginning of some bytes, as far as they are whole.

    Raises:
        ValueError, TypeError, msgpack.UnpackException: they are not msgpack.
    """
    unpacker = msgpack.Unpacker(strict_map_key=False, max_buffer_size=0)
    unpacker.feed(data)
    found: list[Any] = []
    start = 0
    with contextlib.suppress(msgpack.OutOfData):
        while len(found) < count:
            unpacker.skip()  # an array may say that it has billions of items: memory is taken when they are there
            end = unpacker.tell()
            found.append(msgpack.unpackb(data[start:end], use_list=False, strict_map_key=False))
            start = end
    return found


def read_header(head: bytes) -> Header | None:
    """Return the header record that an index begins with; None if it does not."""
    rows = _unpack(head, 1)
    found = _typed(rows[0], HEADER) if rows else None
    return None if found is None else Header._make(found)


def find_commit(tail: bytes, start: int) -> Commit | None:
    """Return the commit record, if the index ends with one and its check.

    Args:
        tail: the last bytes of the index.
        start: where they begin in it.
    """
    for match in reversed(list(_COMMIT.finditer(tail))):
        rows = _unpack(tail[match.start() :], 3)
        if len(rows) != 2 or any(not isinstance(row, tuple) for row in rows):
            continue
        commit, check = rows
        # The check names its own position: chance bytes inside another record do not.
        check_nbytes = start + len(tail) - len(msgpack.packb(check))
        if check[:2] == (CHECK, check_nbytes):
            found = _typed(commit, COMMIT)
            if found is not None:
                return Commit._make(found)
    return None


def find_unproven_commit(tail: bytes, start: int) -> Commit | None:
    """Return the commit record that a check of it once followed, whatever that check has become.

    An index that ends so was written to its end: if its checks do not hold, bytes of it have changed since.

    Args:
        tail: the last bytes of the index.
        start: where they begin in it.
    """
    for match in reversed(list(_COMMIT.finditer(tail))):
        rows = _unpack(tail[match.start() :], 1)
        found = _typed(rows[0], COMMIT) if rows else None
        if found is not None:
            end = match.start() + len(msgpack.packb(rows[0]))
            if len(tail) - end >= len(msgpack.packb((CHECK, start + end, bytes(8)))):
                return Commit._make(found)
    return None


def _typed(row: Any, kind: int) -> tuple[Any, ...] | None:
    """Return the fields of a record that is one of a kind, with the right types."""
    size = len(RECORD_TYPES[kind]._fields)  # type: ignore[attr-defined]
    if not isinstance(row, tuple) or len(row) < size or row[0] != kind or ROW_TYPES[kind].problem(row[:size]):
        return None
    return row[:size]


def _unpack(data: bytes, limit: int) -> list[Any]:
    """Return up to `limit` records from the start of some bytes; none where they are not msgpack."""
    try:
        return first_records(data, limit)
    except (msgpack.UnpackException, ValueError, TypeError):  # the last: a map instead of a key
        return []
