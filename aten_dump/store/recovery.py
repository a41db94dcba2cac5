"""Makes an interrupted dump a normal one, and checks every byte of one.

Theory of operation
    The index is the journal: what its check records vouch for is kept, and all else follows from it. A
    shard that was growing gets the header that the Blob records call for and its final name; the index
    loses its torn tail and gains a Note, a Commit and a Check. Shards come first and each step can
    be repeated, so `recover` may itself be interrupted and run again. On a complete dump it does nothing.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import xxhash
from safetensors import SafetensorError, safe_open

from ..errors import AtenDumpError, FormatError, StoreError
from .index_reader import IndexData, index_path, read_index
from .records import BLOB, CALL, COMMIT, NOTE, SHARD, VALUE, Blob, Commit, Note, Shard
from .shards import ShardReader, encode_header, header_entries, partial_name, read_header, shard_name
from .writing.index_writer import IndexWriter, lock_file

RECOVERED: Final = "recovered"
_NBYTES: Final = Blob._fields.index("nbytes")
_HASH_BYTES: Final = 64 << 20

Progress = Callable[[int, int], None]  # bytes done, bytes in all


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
    directory = index_path(directory).parent
    data = read_index(directory)
    if data.header is None:
        return RecoveryReport(directory, False, False, message="cut short before its first record: nothing to recover")
    if data.problem is None:
        return RecoveryReport(directory, False, True, message="complete: nothing to do")
    try:
        return _recover(directory, data)
    except OSError as error:
        if isinstance(error, AtenDumpError):
            raise
        message = f"cannot recover {directory}: {error.strerror}; nothing journaled was lost, run it again"
        raise StoreError(error.errno, message) from error


def _recover(directory: Path, data: IndexData) -> RecoveryReport:
    fd = os.open(data.path, os.O_RDWR | os.O_APPEND)
    try:
        if not lock_file(fd):
            assert data.header is not None
            raise StoreError(
                f"{data.path} is still being written by process {data.header.pid}; wait until it has ended"
            )
        # What the writer did between the first look and the lock must not be cut off.
        data = read_index(directory)
        lock_file(fd)  # again: closing the file that was read gave the process's lock away
        blobs: defaultdict[int, list[Blob]] = defaultdict(list)
        for blob in data.records(BLOB):
            blobs[blob.shard].append(blob)
        sizes: list[int] = []
        completed, missing, lost = [], [], []
        for shard in data.records(SHARD):
            result = _complete_shard(directory, shard, blobs[shard.number])
            sizes += [0] * (shard.number - len(sizes)) + [result.nbytes]
            lost += result.lost
            if result.completed:
                completed.append(shard.number)
            if result.missing:
                missing.append(shard.number)
        _remove_unjournaled(directory, len(sizes))
        message = f"cut short; {data.dropped_bytes} bytes of the index and {len(lost)} blobs were lost"
        if lost:
            message += f": {lost[:100]}"
        _complete_index(fd, data, sizes, message)
    finally:
        os.close(fd)
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
    is_partial = partial.exists() and not finished.exists()
    path = partial if is_partial else finished
    if not path.exists():
        return _ShardResult(0, False, True, [blob.id for blob in blobs])
    available = max(path.stat().st_size - shard.header_bytes, 0)
    whole = [blob for blob in blobs if blob.offset + blob.nbytes <= available]
    lost = [blob.id for blob in blobs if blob.offset + blob.nbytes > available]
    if is_partial:
        entries, end = header_entries(whole)
        with open(path, "r+b") as file:
            file.write(encode_header(entries, shard.header_bytes))
            file.truncate(shard.header_bytes + end)
        os.rename(partial, finished)
    return _ShardResult(finished.stat().st_size, is_partial, False, lost)


def _remove_unjournaled(directory: Path, shards: int) -> None:
    """Remove a shard that was begun but never journaled: nothing says what its bytes are."""
    for path in directory.glob("shard-*.safetensors.partial"):
        number = path.name.removeprefix("shard-").split(".")[0]
        if number.isdecimal() and int(number) >= shards:
            path.unlink()


def _complete_index(fd: int, data: IndexData, sizes: list[int], message: str) -> None:
    """Cut off the torn tail; append Note, Commit and Check, or nothing if the commit is there already."""
    os.ftruncate(fd, data.good_bytes)
    if data.committed:
        return
    last_check = os.pread(fd, data.good_bytes - data.last_check, data.last_check)
    index = IndexWriter(fd, data.good_bytes, last_check)
    blob_bytes = int(data.rows[BLOB].column(_NBYTES).sum())
    calls, values, blobs = (len(data.rows[kind]) for kind in (CALL, VALUE, BLOB))
    index.add([Note(NOTE, RECOVERED, message, 1), Commit(COMMIT, calls, values, blobs, blob_bytes, sizes, {})])
    index.flush()


def verify(directory: Path, progress: Progress | None = None) -> list[str]:
    """Check every byte of a step and rank; return the problems found, each a sentence.

    Args:
        directory: the folder ``step*/rank*``.
        progress: called with (bytes done, bytes in all) now and then.
    """
    directory = index_path(directory).parent
    try:
        data = read_index(directory)
    except AtenDumpError as error:
        return [str(error)]
    problems = [data.problem] if data.problem else []
    problems += [f"{data.path}: has no Header record"] if data.header is None else []
    problems += _sizes(directory, data)
    problems += _headers(directory, data)
    problems += _checksums(directory, data, progress)
    return problems


def _sizes(directory: Path, data: IndexData) -> Iterable[str]:
    """Compare the counts and file sizes in the commit with what is there."""
    if data.commit is None:
        return
    for number, expected in enumerate(data.commit.shards):
        path = directory / shard_name(number)
        if not path.exists():
            yield f"{path} does not exist"
        elif path.stat().st_size != expected:
            yield f"{path} has {path.stat().st_size} bytes, the commit record says {expected}"
    for name, kind, expected in (("calls", CALL, data.commit.calls), ("blobs", BLOB, data.commit.blobs)):
        if len(data.rows[kind]) != expected:
            yield f"{data.path} has {len(data.rows[kind])} {name}, the commit record says {expected}"


def _headers(directory: Path, data: IndexData) -> Iterable[str]:
    """Open each finished shard with stock safetensors and compare its header with the journal."""
    blobs: defaultdict[int, list[Blob]] = defaultdict(list)
    for blob in data.records(BLOB):
        blobs[blob.shard].append(blob)
    is_recovered = any(row[1] == RECOVERED for row in data.rows[NOTE])
    for shard in data.records(SHARD):
        path = directory / shard_name(shard.number)
        if not path.exists():
            continue  # still growing, or said by _sizes
        try:
            with safe_open(path, "np") as file:
                file.keys()
            size = path.stat().st_size - shard.header_bytes
            entries, _ = header_entries(blob for blob in blobs[shard.number] if blob.offset + blob.nbytes <= size)
            expected = json.loads(encode_header(entries, shard.header_bytes)[8:])
            header_bytes, header = read_header(path)
        except (SafetensorError, FormatError, OSError) as error:
            yield f"{path}: {error}"
            continue
        # An index that lost its tail, recovered, may know less than a shard that was finished before.
        is_same = header == expected or (is_recovered and header.items() >= expected.items())
        if header_bytes != shard.header_bytes or not is_same:
            yield f"{path}: its header is not the one that the Blob records call for"


def _checksums(directory: Path, data: IndexData, progress: Progress | None) -> Iterable[str]:
    """Read every blob and compare its checksum."""
    reader = ShardReader(directory, data.rows[SHARD])
    total, done = int(data.rows[BLOB].column(_NBYTES).sum()), 0
    for blob in data.records(BLOB):
        try:
            found = reader.blob(blob)
        except AtenDumpError as error:
            yield str(error)
            continue
        digest = xxhash.xxh3_64()
        for start in range(0, blob.nbytes, _HASH_BYTES):
            digest.update(found[start : start + _HASH_BYTES].data)
            done += min(_HASH_BYTES, blob.nbytes - start)
            if progress is not None:
                progress(done, total)
        if digest.digest() != blob.checksum:
            place = f"blob {blob.id}, {blob.nbytes} bytes at {blob.offset} of {directory / shard_name(blob.shard)},"
            yield f"{place} has checksum {digest.hexdigest()}, {blob.checksum.hex()} was recorded"
    reader.close()
