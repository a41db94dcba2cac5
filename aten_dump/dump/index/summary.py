"""What one step and rank holds, read from the two ends of its index: quick also for thousands of them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgpack

from ...errors import StoreError
from ...store import records
from ...store.field_types import ROW_TYPES
from ...store.index_reader import first_records
from ...store.regular_files import open_inside
from ...store.writing.index_writer import INDEX_FILE

_HEAD_BYTES: Final = 1 << 16
_TAIL_BYTES: Final = (1 << 10, 1 << 16)  # tried in turn: most commit records are short
# An array of 7 to 15 fields of kind COMMIT.
_COMMIT: Final = re.compile(rb"[\x97-\x9f]\x14")


@dataclass(frozen=True, slots=True)
class Summary:
    """Sizes of one step and rank; `commit` is None when the step is not complete."""

    header: records.Header | None
    commit: records.Commit | None
    index_bytes: int
    shard_bytes: int
    shards: int


def summarize(directory: Path) -> Summary:
    """Read the header and the commit record of an index, and the sizes of the files.

    Raises:
        StoreError: a file cannot be read.
    """
    path = directory / INDEX_FILE
    try:
        with open(open_inside(path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(_HEAD_BYTES)
            commit = None
            for nbytes in _TAIL_BYTES:
                start = max(0, size - nbytes)
                file.seek(start)
                commit = commit or find_commit(file.read(size - start), start)
        sizes = _shard_sizes(directory)
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise StoreError(error.errno, f"cannot read {path}: {error.strerror}") from error
    return Summary(_read_header(head), commit, size, sum(sizes), len(sizes))


def _shard_sizes(directory: Path) -> list[int]:
    with os.scandir(directory) as entries:
        return [entry.stat(follow_symlinks=False).st_size for entry in entries if entry.name.startswith("shard-")]


def _read_header(head: bytes) -> records.Header | None:
    rows = _unpack(head, 1)
    found = _typed(rows[0], records.HEADER) if rows else None
    return None if found is None else records.Header._make(found)


def find_commit(tail: bytes, start: int) -> records.Commit | None:
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
        if check[:2] == (records.CHECK, check_nbytes):
            found = _typed(commit, records.COMMIT)
            if found is not None:
                return records.Commit._make(found)
    return None


def _typed(row: Any, kind: int) -> tuple[Any, ...] | None:
    """Return the fields of a record that is one of a kind, with the right types."""
    size = len(records.RECORD_TYPES[kind]._fields)  # type: ignore[attr-defined]
    if not isinstance(row, tuple) or len(row) < size or row[0] != kind or ROW_TYPES[kind].problem(row[:size]):
        return None
    return row[:size]


def _unpack(data: bytes, limit: int) -> list[Any]:
    """Return up to `limit` records from the start of some bytes; none where they are not msgpack."""
    try:
        return first_records(data, limit)
    except (msgpack.UnpackException, ValueError, TypeError):  # the last: a map in place of a key
        return []
