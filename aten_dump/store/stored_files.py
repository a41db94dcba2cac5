"""Files of a dump that are open for reading, here or in an object store: the one place that knows which.

In: paths, `UrlPath` for those in an object store.
Out: their bytes, from any position; what a folder holds.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NoReturn, Protocol

from .objects.ranged_reading import RemoteFile
from .objects.url_path import UrlPath
from .regular_files import let_go, open_inside

_MOST_HEADER_BYTES: Final = 100_000_000  # safetensors refuses longer ones


class StoredFile(Protocol):
    """A file that is open for reading. Threads may read it side by side."""

    size: int  # when it was opened

    @property
    def path(self) -> Path: ...

    def read_into(self, room: memoryview, at: int) -> int:
        """Read bytes from `at` on into `room`; returns how many, 0 at the end."""

    def read(self, nbytes: int, at: int) -> bytes | bytearray:
        """Return so many bytes from `at` on, fewer at the end."""

    def close(self) -> None:
        """Let go of it. Idempotent."""


class LocalFile:
    """A file on this machine. It is closed when nobody holds it: a thread may let go of it while another reads."""

    def __init__(self, fd: int, path: Path, is_lent: bool = False) -> None:
        """Take an open file; one that `is_lent` is closed by whoever opened it."""
        self._fd, self.path, self._is_lent = fd, path, is_lent
        self.size = os.fstat(fd).st_size

    def read_into(self, room: memoryview, at: int) -> int:
        return os.preadv(self._fd, (room,), at)

    def read(self, nbytes: int, at: int) -> bytes:
        return os.pread(self._fd, nbytes, at)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0 and not self._is_lent:
            let_go(fd)

    def __del__(self) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("an open file is not copied: each copy would close the file of all")


def open_stored(path: Path) -> StoredFile:
    """Open a file of a dump for reading.

    Raises:
        FileNotFoundError: there is none.
        FormatError: it is a link, a FIFO, a device or a folder.
        OSError: it cannot be read.
    """
    return RemoteFile(path) if isinstance(path, UrlPath) else LocalFile(open_inside(path), path)


def is_there(path: Path) -> bool:
    """Return True if there is something of that name; what it is says who opens it."""
    return path.is_file() if isinstance(path, UrlPath) else os.path.lexists(path)


def sizes_in(folder: Path) -> dict[str, int]:
    """Return the bytes of the files in a folder, by name."""
    if isinstance(folder, UrlPath):
        return {name: found.nbytes for name, found in folder.entries().items() if found is not None}
    with os.scandir(folder) as entries:
        return {entry.name: entry.stat(follow_symlinks=False).st_size for entry in entries}


@contextlib.contextmanager
def with_local_header(path: Path) -> Iterator[Path]:
    """Give a path for libraries that open files themselves: the file, or one of its length with its header alone."""
    if not isinstance(path, UrlPath):
        yield path
        return
    file = RemoteFile(path)
    with tempfile.NamedTemporaryFile() as copy:
        size = int.from_bytes(file.read(8, 0), "little") + 8
        copy.write(file.read(min(size, _MOST_HEADER_BYTES), 0))
        copy.truncate(file.size)  # a hole, which takes no room
        copy.flush()
        yield Path(copy.name)
