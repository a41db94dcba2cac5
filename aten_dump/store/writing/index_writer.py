"""Appends records to an index file, with check records between them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import xxhash

from ..rank_lock import lock_file
from ..records import CHECK, Check
from ..regular_files import open_inside
from .packed_records import packed

INDEX_FILE: Final = "index.msgpack"
PARTIAL_INDEX: Final = "index.msgpack.partial"  # until its header is written


def write_all(fd: int, data: bytes) -> None:
    """Write all of `data`; os.write may write a part."""
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


class IndexWriter:
    """One index file that grows."""

    def __init__(self, fd: int, nbytes: int = 0, last_check: bytes = b"") -> None:
        """Go on at byte `nbytes`, right after the check record `last_check`."""
        self._fd = fd
        self._hash = xxhash.xxh3_64(last_check)
        self._parts: list[bytes] = []
        self._sealed: list[bytes] = []  # with check records behind them
        self._nbytes = nbytes
        self._unnamed: tuple[Path | str, Path | str] | None = None  # the name that the file has and the one it gets
        self.waiting_bytes = 0  # without a check record behind them

    @classmethod
    def create(cls, path: Path | str, folder: int | None = None) -> IndexWriter:
        """Create a new index, which gets its name with its first `flush`: there is none without a header.

        Its mode follows the umask. `folder` is the folder that it is in, if that is open: see `open_inside`.
        """
        temporary = os.path.join(os.path.dirname(path), PARTIAL_INDEX)
        index = cls(open_inside(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666, folder))
        lock_file(index._fd)  # for a recovery of older versions, which know no other lock
        index._unnamed = temporary, path
        return index

    def add(self, records: Iterable[tuple[Any, ...]]) -> None:
        """Add some records; they reach the file with the next `flush`."""
        self.add_packed(packed(records))

    def add_packed(self, batch: list[bytes]) -> None:
        """Add records that are packed."""
        self._parts += batch
        self.waiting_bytes += sum(map(len, batch))

    def seal(self) -> None:
        """Put a check record behind what was added: should the rest of a write be lost, what is before it is whole."""
        if not self._parts:
            return
        data = b"".join(self._parts)
        self._parts.clear()
        self.waiting_bytes = 0
        self._hash.update(data)
        (check,) = packed([Check(CHECK, self._nbytes + len(data), self._hash.digest())])
        self._sealed += (data, check)
        self._nbytes += len(data) + len(check)
        self._hash = xxhash.xxh3_64(check)

    def flush(self) -> None:
        """Write what was added and a check record."""
        self.seal()
        if not self._sealed:
            return
        data = b"".join(self._sealed)
        self._sealed.clear()
        write_all(self._fd, data)
        if self._unnamed is not None:
            os.rename(*self._unnamed)
            self._unnamed = None

    def sync(self) -> None:
        """Have what was flushed on the disk."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Close the file without writing more. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
