"""Makes an interrupted dump a normal one.

Theory of operation
    The index is the journal: what its check records vouch for is kept, and all else follows from it. A
    shard that was growing gets the header that the Blob records call for and its final name; the index
    loses its torn tail and gains a Note, a Commit and a Check. Shards come first and each step can
    be repeated, so `recover` may itself be interrupted and run again. On a complete dump it does nothing.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ..errors import AtenDumpError, MissingDataError, StoreError
from .checking.references import check_shards
from .index_reader import IndexData, index_path, read_open_index
from .rank_lock import RankLock, lock_file
from .records import BLOB, CALL, COMMIT, DAMAGED, NOTE, RECOVERED, SHARD, VALUE, Blob, Commit, Header, Note, Shard
from .regular_files import GrowingFile, open_folder, open_inside, size_inside
from .shards import encode_header, header_entries, partial_name, shard_name
from .writing.index_writer import IndexWriter

_NBYTES: Final = Blob._fields.index("nbytes")
_PARTIAL: Final = re.compile(r"shard-([0-9]{5,18})\.safetensors\.partial")


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What `recover` found and did."""

    path: Path
    changed: bool
    committed: bool  # the dump is complete now
    dropped_index_bytes: int = 0
    completed_shards: list[int] = field(default_factory=list)
    missing_shards: list[int] = field(default_factory=list)
    lost_blobs: list[int] = field(default_factory=list)  # journaled, but their bytes are not all there
    message: str = ""


def recover(directory: Path) -> RecoveryReport:
    """Complete the dump of one step and rank as far as its journal reaches.

    Args:
        directory: the folder ``step*/rank*``.

    Raises:
        StoreError: another process is still writing it, or the disk refuses.
        FormatError, MissingDataError: there is no index of ours.
    """
    path = index_path(directory)
    directory = path.parent
    try:
        with _opened(path) as fd:
            data = read_open_index(fd, path)
            if data.header is None:
                message = "cut short before its first record: nothing to recover"
                return RecoveryReport(directory, False, False, message=message)
            if data.problem is None:
                return RecoveryReport(directory, False, True, message="complete: nothing to do")
        return _recover_locked(path, data.header)
    except OSError as error:
        if isinstance(error, AtenDumpError):
            raise
        message = f"cannot recover {directory}: {error.strerror}; nothing journaled was lost, run it again"
        raise StoreError(error.errno, message) from error


@contextmanager
def _opened(path: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    try:
        fd = open_inside(path, flags)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MissingDataError(f"{path} does not exist: this step or rank was not recorded") from error
    try:
        yield fd
    finally:
        os.close(fd)


def _recover_locked(path: Path, header: Header) -> RecoveryReport:
    lock = RankLock.take(path.parent)
    if lock is None:
        raise StoreError(
            f"{path} is still being written by process {header.pid}, or recovered by another; wait until that has ended"
        )
    try:
        with _opened(path, os.O_RDWR | os.O_APPEND) as fd:
            if not lock_file(fd):  # a writer of an older version, which has no file for its lock
                raise StoreError(f"{path} is still being written by process {header.pid}; wait until that has ended")
            # Read again, and from the file that is locked: its writer, or another recovery, may just have ended.
            data = read_open_index(fd, path)
            if data.problem is None:
                return RecoveryReport(path.parent, False, True, message="complete: nothing to do")
            return _complete(fd, path.parent, data)
    finally:
        lock.release()


def _complete(fd: int, directory: Path, data: IndexData) -> RecoveryReport:
    check_shards(data.rows[SHARD], str(data.path))
    blobs: defaultdict[int, list[Blob]] = defaultdict(list)
    for blob in data.records(BLOB):
        blobs[blob.shard].append(blob)
    sizes: list[int] = []
    completed, missing, lost = [], [], []
    for shard in data.records(SHARD):
        result = _complete_shard(directory, shard, blobs[shard.number])
        sizes.append(result.nbytes)
        lost += result.lost
        if result.completed:
            completed.append(shard.number)
        if result.missing:
            missing.append(shard.number)
    _remove_unjournaled(directory, len(sizes))
    begin = "cut short" if data.damage is None else "damaged"
    message = f"{begin}; {data.dropped_bytes} bytes of the index and {len(lost)} blobs were lost"
    if lost:
        message += f": {lost[:100]}"
    _complete_index(fd, data, sizes, message)
    return RecoveryReport(directory, True, True, data.dropped_bytes, completed, missing, lost, message)


@dataclass(frozen=True, slots=True)
class _ShardResult:
    nbytes: int
    completed: bool
    missing: bool
    lost: list[int]


def _complete_shard(directory: Path, shard: Shard, blobs: list[Blob]) -> _ShardResult:
    """Write the header of a shard that was growing and give it its name."""
    finished, partial = directory / shard_name(shard.number), directory / partial_name(shard.number)
    size = size_inside(finished)
    is_partial = size is None and size_inside(partial) is not None
    if is_partial:
        size = size_inside(partial)
    if size is None:  # where nothing of it is journaled, nothing was to be written to it
        return _ShardResult(0, False, bool(blobs), [blob.id for blob in blobs])
    available = max(size - shard.header_bytes, 0)
    whole = [blob for blob in blobs if blob.offset + blob.nbytes <= available]
    lost = [blob.id for blob in blobs if blob.offset + blob.nbytes > available]
    if is_partial:
        entries, end = header_entries(whole)
        header = encode_header(entries, shard.header_bytes)
        size = shard.header_bytes + end
        with _opened(partial, os.O_RDWR) as fd:
            os.pwrite(fd, header, 0)
            os.ftruncate(fd, size)
        os.rename(partial, finished)
    return _ShardResult(size, is_partial, False, lost)


def _remove_unjournaled(directory: Path, shards: int) -> None:
    """Remove a shard that was begun but never journaled: nothing says what its bytes are."""
    fd = open_folder(directory)
    try:
        for name in os.listdir(fd):
            match = _PARTIAL.fullmatch(name)
            if match and int(match[1]) >= shards:
                os.unlink(name, dir_fd=fd)
    finally:
        os.close(fd)


def _complete_index(fd: int, data: IndexData, sizes: list[int], message: str) -> None:
    """Cut off the torn tail; append Note, Commit and Check, or nothing if the commit is there already."""
    os.ftruncate(fd, data.good_bytes)
    if data.committed:
        return
    last_check = os.pread(fd, data.good_bytes - data.last_check, data.last_check)
    index = IndexWriter(GrowingFile.opened(fd), data.good_bytes, last_check)
    blob_bytes = int(data.rows[BLOB].column(_NBYTES).sum())
    calls, values, blobs = (len(data.rows[kind]) for kind in (CALL, VALUE, BLOB))
    notes = [Note(NOTE, RECOVERED, message, 1)]
    if data.damage is not None:
        had = "" if data.lost_commit is None else f" of {data.lost_commit.calls}"
        notes.append(Note(NOTE, DAMAGED, f"{calls}{had} calls were left: {data.damage}", 1))
    index.add([*notes, Commit(COMMIT, calls, values, blobs, blob_bytes, sizes, {})])
    index.flush()
