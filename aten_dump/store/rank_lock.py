"""The lock that tells a running writer of a step and rank from a dead one.

Theory of operation
    A POSIX lock ends with its process, is not inherited by its children and works on NFS. But it also ends when the
    process closes *any* descriptor of the file, so it cannot lie on the index: a program that reads the dump which it
    writes would lose it. It lies on a file of its own, `.lock`, that nobody opens but to lock it; within a process,
    which may always lock what it has locked, a table says what is held. Who has locked the file looks whether it is
    still the one of that name, as the holder removes it at the end.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from .regular_files import open_inside

LOCK_FILE: Final = ".lock"

_held: dict[tuple[int, int], int] = {}  # the process that holds a lock, by device and inode: a fork inherits the table


class RankLock:
    """A lock on the folder of a step and rank."""

    def __init__(self, path: Path, fd: int) -> None:
        self._path = path
        self._fd = fd
        self._key = _key(os.fstat(fd))
        _held[self._key] = os.getpid()

    @classmethod
    def take(cls, directory: Path) -> RankLock | None:
        """Lock a folder; None when another writer or recovery, of any process, has it.

        Raises:
            FormatError: what should be the file of the lock is something else.
            OSError: the file cannot be made.
        """
        path = directory / LOCK_FILE
        while True:
            if _is_held_here(path):
                return None
            fd = open_inside(path, os.O_RDWR | os.O_CREAT, 0o666)
            if not lock_file(fd):
                os.close(fd)
                return None
            if _is_at(path, fd):
                return cls(path, fd)
            os.close(fd)  # its holder has removed it meanwhile

    def release(self) -> None:
        """Remove the file and let the lock go. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        if _held.get(self._key) == os.getpid():
            del _held[self._key]
            if _is_at(self._path, fd):
                os.unlink(self._path)
        os.close(fd)


def lock_file(fd: int) -> bool:
    """Take a POSIX lock on a file; False when another process has it."""
    try:
        import fcntl
    except ImportError:  # not a POSIX system
        return True
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:  # a file system without locks
        return True
    return True


def _key(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _is_held_here(path: Path) -> bool:
    """Tell whether this process holds the lock; to open and close the file would drop it."""
    try:
        return _held.get(_key(os.stat(path, follow_symlinks=False))) == os.getpid()
    except (FileNotFoundError, NotADirectoryError):
        return False


def _is_at(path: Path, fd: int) -> bool:
    try:
        return _key(os.stat(path, follow_symlinks=False)) == _key(os.fstat(fd))
    except (FileNotFoundError, NotADirectoryError):
        return False
