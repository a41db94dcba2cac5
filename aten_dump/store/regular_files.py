"""What lies inside a dump: folders of steps and ranks, and regular files, never reached through a symbolic link.

Theory of operation
    A dump may come from a stranger, or lie where others can write. So the names below its own folder are followed only
    where they are what they seem: step and rank folders must be folders, files must be regular files. A link could lead
    a recovery into other people's files; a FIFO would hang whoever reads it, a device never ends. Folders are opened
    one inside the other, so that nothing can be exchanged between the look and the use.

    The system may write less than it was given, and may say only at the close that bytes are lost (NFS, quotas). So the
    store writes bytes through `write_all` alone, which writes all or raises, and closes what it has written through
    `GrowingFile.close` or `written`, which raise too. `let_go` closes what was only read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

from ..errors import FormatError
from .objects.url_path import UrlPath

try:
    from . import _small_files
except ImportError:
    IS_COMPILED = False
else:
    IS_COMPILED = True

_NUMBERED: Final = re.compile(r"(step|rank|restart)(0|[1-9][0-9]{0,17})")
_LEVELS: Final = 2  # of folders inside a dump: step, rank
_LINK_ERRORS: Final = (errno.ELOOP, errno.ENOTDIR, errno.EMLINK)
PARTIAL: Final = ".partial"  # at the end of the names of files that are not whole
SMALL_BYTES: Final = 1 << 20  # of a file that is made in one call: they are copied together
_CLOEXEC: Final = getattr(os, "O_CLOEXEC", 0)
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL


def numbered_folders(directory: Path, kind: Literal["step", "rank", "restart"]) -> dict[int, Path]:
    """Return the subfolders named `kind` and a number, by number; links and numbers written otherwise are none."""
    found = {}
    for name, is_folder in _entries(directory):
        match = _NUMBERED.fullmatch(name)
        if match and match[1] == kind and is_folder:
            found[int(match[2])] = directory / name
    return dict(sorted(found.items()))


def foreign_entries(directory: Path, kind: Literal["step", "rank", "restart"]) -> list[str]:
    """Return names that look like a step's or rank's folder and are none: ``step00``, a link, a file."""
    ours = {path.name for path in numbered_folders(directory, kind).values()}
    return sorted(name for name, _ in _entries(directory) if _looks_numbered(name, kind) and name not in ours)


def _entries(directory: Path) -> list[tuple[str, bool]]:
    """Return what a folder holds, by name: is it a folder, and no link?"""
    if isinstance(directory, UrlPath):
        return [(name, found is None) for name, found in directory.entries().items()]
    with os.scandir(directory) as entries:
        return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]


def _looks_numbered(name: str, kind: str) -> bool:
    return name.startswith(kind) and name[len(kind) :].isnumeric()


def open_folder(path: Path | str) -> int:
    """Open a folder; the names of step and rank folders at the end of `path` must be no links.

    Raises:
        FormatError: one is a link.
        OSError: as `os.open` raises it.
    """
    names: list[str] = []
    outer, name = os.path.split(path)  # texts: a Path is made and taken apart in as long as a folder is opened
    while len(names) < _LEVELS and _NUMBERED.fullmatch(name):
        names.append(name)
        path = outer or os.curdir
        outer, name = os.path.split(path)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _CLOEXEC)
    for name in reversed(names):
        try:
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | _CLOEXEC, dir_fd=fd)
        except OSError as error:
            if error.errno in _LINK_ERRORS:
                raise _not_ours(os.path.join(path, name), fd, name) from error
            raise
        finally:
            let_go(fd)
        fd, path = inner, os.path.join(path, name)
    return fd


def make_folder(path: str) -> int:
    """Make the folder of a step and rank, which must not be there, and that of the step, which may be; open it.

    Raises:
        OSError: one cannot be made, or is no folder but a link or a file.
    """
    step, name = os.path.split(path)
    if IS_COMPILED:
        with contextlib.suppress(FileNotFoundError):  # somebody has moved the dump away: nothing was made yet
            return _small_files.make_folder(os.fsencode(step), os.fsencode(name))
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | _CLOEXEC
    try:
        os.mkdir(step)
    except FileExistsError:  # another rank has made it
        pass
    except FileNotFoundError:  # somebody has moved the dump away
        os.makedirs(step, exist_ok=True)
    outer = os.open(step, flags)
    try:
        os.mkdir(name, dir_fd=outer)
        return os.open(name, flags, dir_fd=outer)
    finally:
        let_go(outer)


def open_subfolder(root: Path | str, name: str, *, make: bool = False) -> int:
    """Open a folder of a dump that is no step's or rank's, as ``control``; `make` it where there is none.

    Raises:
        FormatError: it is a link or a file.
        OSError: as `os.open` and `os.mkdir` raise it.
    """
    outer = open_folder(root)
    try:
        if make:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=outer)
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | _CLOEXEC, dir_fd=outer)
    except OSError as error:
        if error.errno in _LINK_ERRORS:
            raise _not_ours(os.path.join(root, name), outer, name) from error
        raise
    finally:
        let_go(outer)


def replace_inside(folder: int, path: Path | str, data: bytes) -> None:
    """Write a small file in an open folder of a dump, replacing the one of its name: whole, or not at all.

    Raises:
        OSError: it cannot be written; the file that was there stays.
    """
    name = os.path.basename(path)
    draft = f".{name}.{os.getpid()}-{threading.get_ident()}"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(draft, dir_fd=folder)  # of a process that was killed, or what somebody put there
    fd = open_inside(os.path.join(os.path.dirname(path), draft), os.O_WRONLY | os.O_CREAT | os.O_EXCL, folder=folder)
    try:
        with open(fd, "wb") as file:
            file.write(data)
        os.replace(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(draft, dir_fd=folder)
        raise


def open_inside(path: Path | str, flags: int = os.O_RDONLY, mode: int = 0o666, folder: int | None = None) -> int:
    """Open a regular file of a dump.

    Args:
        path: the file; its name, and those of the step and rank folders it is in, must be no links.
        flags: as for `os.open`.
        mode: of a file that is made.
        folder: what `open_folder` gave for the folder that it is in, which stays open.

    Raises:
        FormatError: it is a link, a FIFO, a device or a folder, or a folder on the way is a link.
        OSError: as `os.open` raises it.
    """
    outer, name = os.path.split(path)
    inside = open_folder(outer or os.curdir) if folder is None else folder
    try:
        fd = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | _CLOEXEC, mode, dir_fd=inside)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.EISDIR):
            raise _not_ours(path, inside, name) from error
        raise
    finally:
        if folder is None:
            let_go(inside)
    if flags & os.O_EXCL:  # we have just made it
        return fd
    kind = os.fstat(fd).st_mode
    if not stat.S_ISREG(kind):
        let_go(fd)
        raise FormatError(_sentence(path, kind))
    return fd


def write_all(fd: int, parts: Sequence[memoryview | bytes], at: int) -> None:
    """Write all parts, one behind the other, from byte `at` of a file on.

    Raises:
        OSError: they are not all written. What could be written is.
    """
    left = list(parts)
    while left:
        written = os.pwritev(fd, left, at)
        if not written and any(map(len, left)):
            raise OSError(errno.EIO, "the system writes nothing, and says no reason")
        at += written
        while left and written >= len(left[0]):
            written -= len(left.pop(0))
        if left and written:
            left[0] = memoryview(left[0])[written:]


def let_go(fd: int) -> None:
    """Close a descriptor through which nothing was written: no error of that is of interest."""
    with contextlib.suppress(OSError):
        os.close(fd)


@contextlib.contextmanager
def written(fd: int) -> Iterator[int]:
    """Give a descriptor to write to, and close it behind the block.

    Raises:
        OSError: the file cannot be closed, and what was written may be lost.
    """
    try:
        yield fd
    except BaseException:
        let_go(fd)
        raise
    os.close(fd)


class GrowingFile:
    """A file that is made when something is first written to it, and gets its name when what is in it can be read."""

    def __init__(self, path: Path | str, folder: Callable[[], int] | None = None) -> None:
        """Take the name that it is to have; until then it ends in ``.partial``.

        Its mode follows the umask. `folder` opens the folder that it is in, once for all files: see `open_inside`.
        """
        self._path = os.fspath(path)
        self._folder = folder
        self._fd = -1
        self.is_made = False  # there is such a file, open or not
        self.is_named = False

    @classmethod
    def opened(cls, fd: int) -> GrowingFile:
        """Return a file that has its name."""
        file = cls("")
        file._fd, file.is_made, file.is_named = fd, True, True
        return file

    @property
    def fd(self) -> int:
        """The open file, made now if need be; opened again where it was closed, be it by an error."""
        if self._fd < 0:
            path = self._path if self.is_named else self._path + PARTIAL
            flags = os.O_WRONLY if self.is_made else _NEW
            self._fd = open_inside(path, flags, 0o666, self._folder and self._folder())
            self.is_made = True
        return self._fd

    def give_name(self) -> None:
        """Rename it."""
        folder = self._folder and self._folder()
        name = self._path if folder is None else os.path.basename(self._path)
        os.rename(name + PARTIAL, name, src_dir_fd=folder, dst_dir_fd=folder)
        self.is_named = True

    def make_whole(self, parts: Sequence[memoryview | bytes]) -> bool:
        """Make it with all that it is to hold, name and close it, without asking for Python's lock in between.

        Returns:
            False where nothing was done: the C file is not there, the file was begun, or the bytes are many.

        Raises:
            OSError: as much was written as could be.
        """
        if not IS_COMPILED or self._folder is None or self.is_made or sum(map(len, parts)) > SMALL_BYTES:
            return False
        name = os.path.basename(self._path)
        names = os.fsencode(name + PARTIAL), os.fsencode(name)
        self._fd, number, self.is_made = _small_files.make_file(self._folder(), *names, _NEW, b"".join(parts))
        if number:
            raise OSError(number, os.strerror(number), self._path)
        self.is_named = True
        return True

    def close(self) -> None:
        """Close it as it is. Idempotent.

        Raises:
            OSError: it is closed, and what was written to it may be lost.
        """
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def size_inside(path: Path) -> int | None:
    """Return the bytes of a regular file of a dump; None where there is no such file."""
    if isinstance(path, UrlPath):
        listed = path.listed()
        return None if listed is None else listed.nbytes
    try:
        fd = open_inside(path)
    except (FileNotFoundError, FormatError):
        return None
    try:
        return os.fstat(fd).st_size
    finally:
        let_go(fd)


def _not_ours(path: Path | str, folder: int, name: str) -> FormatError:
    try:
        return FormatError(_sentence(path, os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode))
    except OSError:
        return FormatError(f"{path} changed while it was opened; try again")


def _sentence(path: Path | str, mode: int) -> str:
    kinds = (
        (stat.S_ISLNK, "a symbolic link"),
        (stat.S_ISFIFO, "a FIFO"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISREG, "a file"),
    )
    found = next((text for test, text in kinds if test(mode)), "a device")
    return (
        f"{path} is {found}: inside a dump there are folders of steps and ranks and regular files alone, and nothing "
        "else is followed or read; put what it stands for in its place, or remove it"
    )


def sync_folder(path: Path) -> None:
    """Put the names in a folder on the disk."""
    fd = open_folder(path)
    try:
        os.fsync(fd)
    finally:
        let_go(fd)
