"""Appends records to an index file, with check records between them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import xxhash

from ..rank_lock import lock_file
from ..records import CHECK, Check
from ..regular_files import GrowingFile, write_all
from .checksums import add_to_hash
from .packed_records import packed

INDEX_FILE: Final = "index.msgpack"
CHECK_BYTES: Final = 16 << 10
CHECKED_RECORDS: Final = 64  # between looks at how many bytes they are


class IndexWriter:
    """One index file that grows."""

    def __init__(self, file: GrowingFile, nbytes: int = 0, last_check: bytes = b"") -> None:
        """Go on at byte `nbytes`, right after the check record `last_check`."""
        self._file = file
        self._hash = xxhash.xxh3_64(last_check)
        self._first: list[bytes] = []  # that wait for a flush
        self._records: list[bytes] = []  # that come behind them
        self._nbytes = nbytes
        self.waiting_bytes = 0  # of them

    @classmethod
    def create(cls, path: Path | str, folder: Callable[[], int] | None = None) -> IndexWriter:
        """Begin a new index, which is made and gets its name with its first `flush`: there is none without a header.

        See `GrowingFile`.
        """
        return cls(GrowingFile(path, folder))

    @property
    def waiting_records(self) -> int:
        """How many records wait for a flush."""
        return len(self._first) + len(self._records)

    def add(self, records: Iterable[tuple[Any, ...]]) -> None:
        """Add some records; they reach the file with the next `flush`."""
        self.add_packed(packed(records))

    def add_first(self, records: Iterable[tuple[Any, ...]]) -> None:
        """Add records that refer to nothing and that others refer to: they come before all else that waits."""
        batch = packed(records)
        self._first += batch
        self.waiting_bytes += sum(map(len, batch))

    def add_packed(self, batch: list[bytes]) -> None:
        """Add records that are packed."""
        self._records += batch
        self.waiting_bytes += sum(map(len, batch))

    def flush(self, is_last: bool = False) -> None:
        """Write what was added, with a check record every CHECK_BYTES or so: should the rest of a write be lost, what
        is before a check is whole. With `is_last` nothing comes after it, and the file may be closed already.

        Raises:
            OSError: not all is written. All of it waits still: the next call writes it anew.
        """
        self._write(self._first + self._records, is_last)
        self._first, self._records, self.waiting_bytes = [], [], 0
        self._give_name()

    def begin(self) -> None:
        """Make the file, take the lock that older versions look for, who know no other, and write the first record, the
        header: whatever comes to the disk from now on, or does not, there is an index.
        """
        lock_file(self._file.fd)
        if not self._nbytes:
            header = self._first[:1]
            self._write(header)
            self._first = self._first[1:]
            self.waiting_bytes -= sum(map(len, header))
            self._give_name()

    def _write(self, records: list[bytes], is_last: bool = False) -> None:
        """Write records behind what is written; an error leaves this writer as it was."""
        if not records:
            return
        parts, hash_, nbytes = self._checked(records)
        if not (is_last and self._file.make_whole(parts)):
            write_all(self._file.fd, [b"".join(parts)], self._nbytes)
        self._hash, self._nbytes = hash_, nbytes

    def _give_name(self) -> None:
        if self._nbytes and not self._file.is_named:
            self._file.give_name()

    def _checked(self, records: list[bytes]) -> tuple[list[bytes], xxhash.xxh3_64, int]:
        """Return records with checks between them, and the hash and the bytes of the file that come to be."""
        hash_, nbytes = self._hash.copy(), self._nbytes
        parts: list[bytes] = []
        waiting: list[bytes] = []
        for start in range(0, len(records), CHECKED_RECORDS):
            waiting.append(b"".join(records[start : start + CHECKED_RECORDS]))
            if sum(map(len, waiting)) >= CHECK_BYTES or start + CHECKED_RECORDS >= len(records):
                data = b"".join(waiting)
                waiting.clear()
                add_to_hash(hash_, data)
                (check,) = packed([Check(CHECK, nbytes + len(data), hash_.digest())])
                parts += data, check
                nbytes += len(data) + len(check)
                hash_ = xxhash.xxh3_64(check)
        return parts, hash_, nbytes

    def sync(self) -> None:
        """Put what was flushed on the disk."""
        os.fsync(self._file.fd)

    def close(self) -> None:
        """Close the file without writing more. Idempotent."""
        self._file.close()
