"""Makes an interrupted dump a normal one.

Theory of operation
    The index is the journal: what its check records vouch for is kept, and all else follows from it. A
    shard that was growing gets the header that the Blob records call for and its final name; the index
    loses its torn tail and gains a Note, a Commit and a Check. Shards come first and each step can
    be repeated, so `recover` may itself be interrupted, or find the disk full, and run again.

    A shard that has its name is not trusted: its header must open with safetensors and hold what is journaled, or it is
    written anew, also in a step that is complete. Only where the bytes behind it are those of the journal: what else
    has that name is no shard of this step, and stays as it is.
"""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import xxhash
from safetensors import SafetensorError, safe_open

from ..errors import AtenDumpError, FormatError, MissingDataError, StoreError
from .checking.references import check_shards
from .index_reader import IndexData, index_path, read_open_index
from .rank_lock import RankLock, lock_file
from .records import BLOB, CALL, COMMIT, DAMAGED, NOTE, RECOVERED, SHARD, VALUE, Blob, Commit, Header, Note, Shard
from .regular_files import GrowingFile, let_go, open_folder, open_inside, size_inside, write_all, written
from .shards import encode_header, header_entries, partial_name, read_header, shard_name
from .stored_files import LocalFile
from .writing.index_writer import IndexWriter

_NBYTES: Final = Blob._fields.index("nbytes")
_PIECE_BYTES: Final = 1 << 20
_FINE: Final = "complete: nothing to do"
_PARTIAL: Final = re.compile(r"shard-([0-9]{5,18})\.safetensors\.partial")


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What `recover` found and did."""

    path: Path
    changed: bool
    committed: bool  # the dump is complete now
    dropped_index_bytes: int = 0
    completed_shards: list[int] = field(default_factory=list)  # whose headers were written
    missing_shards: list[int] = field(default_factory=list)
    lost_blobs: list[int] = field(default_factory=list)  # journaled, but their bytes are not all there
    message: str = ""


def recover(directory: Path, elsewhere: Mapping[int, int] | None = None) -> RecoveryReport:
    """Complete the dump of one step and rank as far as its journal reaches.

    Args:
        directory: the folder ``step*/rank*``.
        elsewhere: finished shards that are kept in another place, and their bytes.

    Raises:
        StoreError: another process is still writing it, or the disk refuses.
        FormatError, MissingDataError: there is no index, or none of aten_dump.
    """
    path = index_path(directory)
    directory = path.parent
    try:
        with _opened(path) as fd:
            data = read_open_index(LocalFile(fd, path, is_lent=True))
            if data.header is None:
                message = "cut short before its first record: nothing to recover"
                return RecoveryReport(directory, False, False, message=message)
            if _is_fine(data, directory):
                return RecoveryReport(directory, False, True, message=_FINE)
        return _recover_locked(path, data.header, elsewhere or {})
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
    with written(fd):
        yield fd


def _recover_locked(path: Path, header: Header, elsewhere: Mapping[int, int]) -> RecoveryReport:
    lock = RankLock.take(path.parent)
    if lock is None:
        raise StoreError(
            f"{path} is still being written by process {header.pid}, or recovered by another; wait until that has ended"
        )
    try:
        with _opened(path, os.O_RDWR) as fd:
            if not lock_file(fd):  # a writer of an older version, which has no file for its lock
                raise StoreError(f"{path} is still being written by process {header.pid}; wait until that has ended")
            # Read again, and from the file that is locked: its writer, or another recovery, may just have ended.
            data = read_open_index(LocalFile(fd, path, is_lent=True))
            if _is_fine(data, path.parent):
                return RecoveryReport(path.parent, False, True, message=_FINE)
            return _complete(fd, path.parent, data, elsewhere)
    finally:
        lock.release()


def _is_fine(data: IndexData, directory: Path) -> bool:
    """True if nothing is to be done: the step is complete, and so are the headers of its shards."""
    if data.problem is not None:
        return False
    check_shards(data.rows[SHARD], str(data.path))
    blobs = _blobs_of_shards(data)
    return not any(_needs_header(directory, shard, blobs[shard.number]) for shard in data.records(SHARD))


def _complete(fd: int, directory: Path, data: IndexData, elsewhere: Mapping[int, int]) -> RecoveryReport:
    check_shards(data.rows[SHARD], str(data.path))
    blobs = _blobs_of_shards(data)
    sizes: list[int] = []
    completed, missing, lost = [], [], []
    for shard in data.records(SHARD):
        if shard.number in elsewhere:
            sizes.append(elsewhere[shard.number])
            continue
        result = _complete_shard(directory, shard, blobs[shard.number])
        sizes.append(result.nbytes)
        lost += result.lost
        if result.completed:
            completed.append(shard.number)
        if result.missing:
            missing.append(shard.number)
    _remove_unjournaled(directory, len(sizes))
    if data.problem is None:
        message = f"complete; headers of shards were damaged and are written anew: {completed[:100]}"
    else:
        begin = "cut short" if data.damage is None else "damaged"
        message = f"{begin}; {data.dropped_bytes} bytes of the index and {len(lost)} blobs were lost"
    if lost:
        message += f": {lost[:100]}"
    _complete_index(fd, data, sizes, message)
    return RecoveryReport(directory, True, True, data.dropped_bytes, completed, missing, lost, message)


def _blobs_of_shards(data: IndexData) -> defaultdict[int, list[Blob]]:
    blobs: defaultdict[int, list[Blob]] = defaultdict(list)
    for blob in data.records(BLOB):
        blobs[blob.shard].append(blob)
    return blobs


@dataclass(frozen=True, slots=True)
class _ShardResult:
    nbytes: int
    completed: bool
    missing: bool
    lost: list[int]


def _complete_shard(directory: Path, shard: Shard, blobs: list[Blob]) -> _ShardResult:
    """Write the header of a shard that was growing, or whose header is damaged, and give it its name."""
    finished, partial = directory / shard_name(shard.number), directory / partial_name(shard.number)
    size = size_inside(finished)
    is_partial = size is None and size_inside(partial) is not None
    if is_partial:
        size = size_inside(partial)
    if size is None:  # where nothing of it is journaled, nothing was to be written to it
        return _ShardResult(0, False, bool(blobs), [blob.id for blob in blobs])
    whole = _whole(shard, blobs, size)
    kept = {blob.id for blob in whole}
    lost = [blob.id for blob in blobs if blob.id not in kept]
    is_written = is_partial or _needs_header(directory, shard, blobs)
    if is_written:
        entries, end = header_entries(whole)
        header = encode_header(entries, shard.header_bytes)
        size = shard.header_bytes + end
        with _opened(partial if is_partial else finished, os.O_RDWR) as fd:
            write_all(fd, [header], 0)
            os.ftruncate(fd, size)
    if is_partial:
        os.rename(partial, finished)
    return _ShardResult(size, is_written, False, lost)


def _whole(shard: Shard, blobs: list[Blob], size: int) -> list[Blob]:
    """Return the blobs whose bytes are all in a file of so many bytes."""
    return [blob for blob in blobs if blob.offset + blob.nbytes <= max(size - shard.header_bytes, 0)]


def _needs_header(directory: Path, shard: Shard, blobs: list[Blob]) -> bool:
    """True if a shard that has its name has a header that cannot be read, and bytes of the journal behind it."""
    path = directory / shard_name(shard.number)
    size = size_inside(path)
    if size is None:
        return False
    whole = _whole(shard, blobs, size)
    entries, _ = header_entries(whole)
    expected = json.loads(encode_header(entries, shard.header_bytes)[8:])
    try:
        with safe_open(path, "np") as file:  # which compares the header with the file's bytes
            file.keys()
        header_bytes, header = read_header(path)
    except (SafetensorError, FormatError):
        return _holds_any(path, shard, whole)
    # An index that lost its tail may know less than a shard that was finished before.
    is_right = header_bytes == shard.header_bytes and header.items() >= expected.items()
    return not is_right and _holds_any(path, shard, whole)


def _holds_any(path: Path, shard: Shard, blobs: list[Blob]) -> bool:
    """True if bytes of a blob, or of one of several, are where the journal says."""
    with _opened(path) as fd:
        return any(_digest(fd, shard.header_bytes + blob.offset, blob.nbytes) == blob.checksum for blob in blobs)


def _digest(fd: int, at: int, nbytes: int) -> bytes:
    digest = xxhash.xxh3_64()
    while nbytes and (piece := os.pread(fd, min(nbytes, _PIECE_BYTES), at)):
        digest.update(piece)
        at, nbytes = at + len(piece), nbytes - len(piece)
    return digest.digest()


def _remove_unjournaled(directory: Path, shards: int) -> None:
    """Remove a shard that was begun but never journaled: nothing says what its bytes are."""
    fd = open_folder(directory)
    try:
        for name in os.listdir(fd):
            match = _PARTIAL.fullmatch(name)
            if match and int(match[1]) >= shards:
                os.unlink(name, dir_fd=fd)
    finally:
        let_go(fd)


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
