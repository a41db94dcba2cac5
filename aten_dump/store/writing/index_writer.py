"""Appends records to an index file, with a check record after every batch.

Packing is one C call for a whole batch: a list of records is packed as one msgpack array, whose own head is
cut off again.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import msgpack
import xxhash

from ..rank_lock import lock_file
from ..records import CALL, CHECK, NOTE, VALUE, Call, Check, Note, Value
from ..regular_files import open_inside

INDEX_FILE: Final = "index.msgpack"
PARTIAL_INDEX: Final = "index.msgpack.partial"  # until its header is written
BATCH: Final = 256  # records per C call, which keeps the GIL for about 0.3 ms
_CALL_FIELDS: Final = len(Call._fields)
_VALUE_FIELDS: Final = len(Value._fields)


def write_all(fd: int, data: bytes) -> None:
    """Write all of `data`; os.write may write a part."""
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


def _shortest(record: tuple[Any, ...]) -> tuple[Any, ...]:
    """Leave out the trailing fields of the two most frequent kinds where they have their defaults."""
    kind = record[0]
    if kind == CALL and record[-1] is None and len(record) == _CALL_FIELDS:
        return record[:-2] if record[-2] is None else record[:-1]
    if kind == VALUE and record[-1] is None and len(record) == _VALUE_FIELDS:
        return record[:-1] if record[-2] else record[:-2]
    return record


class IndexWriter:
    """One index file that grows."""

    def __init__(self, fd: int, nbytes: int = 0, last_check: bytes = b"") -> None:
        """Go on at byte `nbytes`, right after the check record `last_check`."""
        self._fd = fd
        self._pack = msgpack.Packer(use_bin_type=True, unicode_errors="backslashreplace").pack
        self._hash = xxhash.xxh3_64(last_check)
        self._parts: list[bytes | memoryview] = []
        self._nbytes = nbytes
        self._unnamed: tuple[Path, Path] | None = None  # the name that the file has and the one it gets
        self.waiting_bytes = 0

    @classmethod
    def create(cls, path: Path) -> IndexWriter:
        """Create a new index, which gets its name with its first `flush`: there is none without a header.

        Its mode follows the umask.
        """
        temporary = path.with_name(PARTIAL_INDEX)
        index = cls(open_inside(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND))
        lock_file(index._fd)  # for a recovery of older versions, which know no other lock
        index._unnamed = temporary, path
        return index

    def add(self, batch: list[tuple[Any, ...]]) -> None:
        """Pack some records, a few thousand at most; they reach the file with the next `flush`."""
        if not batch:
            return
        try:
            data = self._pack([_shortest(record) for record in batch])
        except (TypeError, ValueError, OverflowError):
            self._add_one_by_one(batch)
            return
        head = 1 if len(batch) < 16 else 3
        self._parts.append(memoryview(data)[head:])
        self.waiting_bytes += len(data) - head

    def flush(self) -> None:
        """Write what was added and a check record."""
        if not self._parts:
            return
        data = b"".join(self._parts)
        self._parts.clear()
        self.waiting_bytes = 0
        self._hash.update(data)
        check = self._pack(Check(CHECK, self._nbytes + len(data), self._hash.digest()))
        write_all(self._fd, data + check)
        if self._unnamed is not None:
            os.rename(*self._unnamed)
            self._unnamed = None
        self._nbytes += len(data) + len(check)
        self._hash = xxhash.xxh3_64(check)

    def sync(self) -> None:
        """Have what was flushed on the disk."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Close the file without writing more. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _add_one_by_one(self, batch: list[tuple[Any, ...]]) -> None:
        """Keep all records but those that msgpack cannot write, for each of which a Note says so."""
        for record in batch:
            try:
                data = self._pack(record)
            except (TypeError, ValueError, OverflowError) as error:
                message = f"a record of kind {record[0]!r} was left out: {error}; it held {_shown(record)}"
                data = self._pack(Note(NOTE, "unwritable_record", message, 1))
            self._parts.append(data)
            self.waiting_bytes += len(data)


def _shown(record: tuple[Any, ...]) -> str:
    try:
        return f"{record!r:.400}"
    except ValueError:  # sys.set_int_max_str_digits
        return "an integer of too many digits to be shown"
