"""The lock by which a running writer of a step and rank differs from a dead one.

Theory of operation
    A POSIX lock also ends when the process closes *any* descriptor of the file: a program that reads the dump which it
    writes, or copies its folder, would lose it. So the lock is one of the open file description where the system has
    such (Linux): it ends when the last descriptor that came of this `open` is closed, with the process or before.
    Forked children, who may outlive the process, close theirs when they begin. Elsewhere it is a POSIX lock, which the
    process may always take again. So it is on a file of its own, `.lock`, which is opened for nothing else, and a
    table says what is held. Whoever has locked the file checks that it still has that name, as the holder removes it
    at the end.
"""

from __future__ import annotations

import contextlib
import os
import struct
from pathlib import Path
from typing import Final

from .regular_files import let_go, open_inside

LOCK_FILE: Final = ".lock"

_held: dict[tuple[int, int], RankLock] = {}  # what this process holds, by device and inode


class RankLock:
    """A lock on the folder of a step and rank."""

    def __init__(self, path: str, fd: int) -> None:
        self._path = path
        self._fd = fd
        self._key = _key(os.fstat(fd))
        _held[self._key] = self

    @classmethod
    def take(cls, directory: Path, folder: int | None = None, name: str = LOCK_FILE) -> RankLock | None:
        """Lock a folder; None when another writer or recovery, of any process, has it.

        Args:
            directory: the folder.
            folder: the same, if it is open: see `open_inside`.
            name: of the file that is locked.

        Raises:
            FormatError: what should be the file of the lock is something else.
            OSError: the file cannot be made.
        """
        path = os.path.join(directory, name)
        while True:
            if _is_held_here(path):
                return None
            fd = open_inside(path, os.O_RDWR | os.O_CREAT, 0o666, folder)
            if not _lock_description(fd):
                let_go(fd)
                return None
            if _is_at(path, fd):
                return cls(path, fd)
            let_go(fd)  # its holder has removed it meanwhile

    def release(self) -> None:
        """Remove the file and let the lock go. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        del _held[self._key]
        with contextlib.suppress(OSError):  # who has seen the commit may take the step away just now
            if _is_at(self._path, fd):
                os.unlink(self._path)
        let_go(fd)

    def leave_to_parent(self) -> None:
        """Close the descriptor that a fork has inherited: the lock is the parent's, and ends with it."""
        let_go(self._fd)
        self._fd = -1


def _forget_what_the_parent_holds() -> None:
    for lock in _held.values():
        lock.leave_to_parent()
    _held.clear()


os.register_at_fork(after_in_child=_forget_what_the_parent_holds)


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


def _lock_description(fd: int) -> bool:
    """Take a lock of the open file description, or a POSIX lock where there is none such; False when another has it."""
    try:
        from fcntl import F_OFD_SETLK, F_WRLCK, fcntl
    except ImportError:  # not Linux
        return lock_file(fd)
    try:
        fcntl(fd, F_OFD_SETLK, struct.pack("hhqqi0q", F_WRLCK, os.SEEK_SET, 0, 0, 0))  # the whole file
    except (BlockingIOError, PermissionError):
        return False
    except OSError:  # a file system without such locks
        return lock_file(fd)
    return True


def _key(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _is_held_here(path: str) -> bool:
    """Return True if this process holds the lock; to open and close the file would drop it."""
    try:
        return _key(os.stat(path, follow_symlinks=False)) in _held
    except (FileNotFoundError, NotADirectoryError):
        return False


def _is_at(path: str, fd: int) -> bool:
    try:
        return _key(os.stat(path, follow_symlinks=False)) == _key(os.fstat(fd))
    except (FileNotFoundError, NotADirectoryError):
        return False
