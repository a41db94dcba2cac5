"""Reads an index file: what is whole, sorted by kind.

Theory of operation
    First the check records are found by their bytes alone: one that names its own position and the checksum
    of what lies between it and the check before makes all bytes up to its end good. That runs at the speed of the
    checksum, some GB/s. What follows the last good check is dropped, also records that would
    decode: nothing says that they are what was written. Of the good bytes `raw_rows` finds where each record is;
    rows are decoded when they are looked at.
"""

from __future__ import annotations

import contextlib
import gc
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import msgpack
import xxhash

from ..errors import FormatError, MissingDataError, StoreError
from .index_ends import END_BYTES, find_unproven_commit, first_records
from .objects.url_path import place_of
from .raw_rows import RawRows, split_records
from .records import COMMIT, FORMAT_VERSION, HEADER, RECORD_TYPES, Commit, Header
from .stored_files import StoredFile, open_stored
from .writing.index_writer import INDEX_FILE

# A check record: array of 3, kind 19, an int in its shortest form, 8 bytes.
_CHECK: Final = re.compile(
    rb"\x93\x13(?:([\x00-\x7f])|\xcc(.)|\xcd(.{2})|\xce(.{4})|\xcf(.{8}))\xc4\x08(.{8})", re.DOTALL
)
_CHECK_BYTES: Final = 20  # the longest check record
_HEADER_BYTES: Final = 16 << 20
_READ_BYTES: Final = 16 << 20
MOST_UNCHECKED_BYTES: Final = 128 << 20  # between two check records

Bytes: TypeAlias = bytes | bytearray


class GoodPart(NamedTuple):
    """The part of an index that its check records vouch for."""

    nbytes: int
    last_check: int  # where the last good check record starts
    problem: str | None  # of the bytes after it; None for a mere end


@dataclass(frozen=True, slots=True)
class IndexData:
    """What an index says, as raw rows: tuples of the fields in records.py, nested lists as tuples too.

    A row may be longer than its record type (a newer minor version): take ``row[:len(Type._fields)]``.
    """

    path: Path
    header: Header | None  # None: the run was cut short before anything was written
    commit: Commit | None  # None: the step is not complete
    rows: Mapping[int, RawRows]  # by kind, in order of the file; every known kind is there
    unknown: dict[int, int]  # kinds this version does not know, with their counts
    good_bytes: int
    dropped_bytes: int  # after the last good check
    last_check: int  # where the last good check record starts
    problem: str | None  # None: complete and whole
    damage: str | None = None  # why what was dropped is not what was written; None: it was never written whole
    lost_commit: Commit | None = None  # a commit record among what was dropped: it says how much there was

    @property
    def committed(self) -> bool:
        """True if the step is complete."""
        return self.commit is not None

    def records(self, kind: int) -> Iterator[Any]:
        """Yield the rows of a kind as their record type, fields of newer versions cut off."""
        record = RECORD_TYPES[kind]
        make, size = record._make, len(record._fields)  # type: ignore[attr-defined]
        for row in self.rows[kind]:
            yield make(row[:size])


@contextlib.contextmanager
def paused_gc() -> Iterator[None]:
    """Keep the garbage collector from walking millions of young objects that all stay."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def index_path(path: Path) -> Path:
    """Return the index file of a rank's folder; a path to the file stays as it is."""
    path = place_of(path)
    return path if path.name == INDEX_FILE else path / INDEX_FILE


def read_index(path: Path) -> IndexData:
    """Read an index, complete or not, also while it is being written.

    Args:
        path: the index file, or the folder ``step*/rank*`` it is in.

    Raises:
        MissingDataError: there is no such file.
        FormatError: it is no index, or of a newer major version.
    """
    path = index_path(path)
    try:
        file = open_stored(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MissingDataError(
            f"{path} does not exist: this step or rank was not recorded, or was not copied"
        ) from error
    except OSError as error:
        raise StoreError(error.errno, f"cannot read {path}: {error.strerror}") from error
    try:
        return read_open_index(file)
    finally:
        file.close()


def read_open_index(file: StoredFile) -> IndexData:
    """Read an index that is open."""
    path = file.path
    try:
        data, good = _read_good(file)
        size = max(file.size, good.nbytes)
        tail = bytes(file.read(END_BYTES, max(good.nbytes, size - END_BYTES)))
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise StoreError(error.errno, f"cannot read {path}: {error.strerror}") from error
    return index_of(path, data, good, size, tail)


def _read_good(file: StoredFile) -> tuple[bytearray, GoodPart]:
    """Read as far as check records vouch for what comes; a hole of a terabyte at the end is not read."""
    data = bytearray()
    checks = _Checks()
    while chunk := file.read(_READ_BYTES, len(data)):
        is_first = not data
        data += chunk
        if is_first:
            _refuse_foreign(file.path, data)
        checks.find(data)
        if checks.problem is not None or len(data) - checks.good > MOST_UNCHECKED_BYTES:
            break
    del data[checks.good :]
    return data, checks.part


def index_of(path: Path, data: Bytes, good: GoodPart, size: int | None = None, tail: bytes = b"") -> IndexData:
    """Read the good part of the bytes of an index.

    Args:
        path: names them in errors.
        data: the bytes, or as many of them as hold the good part.
        good: the good part.
        size: how many there are, where `data` are not all.
        tail: the last of the bytes after the good part, where `data` are not all.
    """
    rows, unknown = split_records(memoryview(data)[: good.nbytes], str(path))
    header = Header._make(rows[HEADER][0][:8]) if rows[HEADER] else None
    commit = Commit._make(rows[COMMIT][-1][:7]) if rows[COMMIT] else None
    dropped = (len(data) if size is None else size) - good.nbytes
    lost_commit = (
        _lost_commit(tail or bytes(data[good.nbytes :][-END_BYTES:]), good.nbytes + dropped) if dropped else None
    )
    damage = good.problem
    if damage is None and dropped and (commit is not None or lost_commit is not None):
        damage = f"the last {dropped} bytes are not what was written"
    return IndexData(
        path=path,
        header=header,
        commit=commit,
        rows=rows,
        unknown=unknown,
        good_bytes=good.nbytes,
        dropped_bytes=dropped,
        last_check=good.last_check,
        problem=_problem(path, commit is not None, dropped, damage),
        damage=damage,
        lost_commit=lost_commit,
    )


def _lost_commit(tail: bytes, size: int) -> Commit | None:
    return find_unproven_commit(tail, size - len(tail))


class _Checks:
    """Finds check records one after the other, in bytes that may grow meanwhile."""

    def __init__(self) -> None:
        self.good = 0  # bytes that the checks vouch for
        self.problem: str | None = None
        self._start = 0  # of the last good check, from which the range of the next one begins
        self._position = 0  # where to look on

    @property
    def part(self) -> GoodPart:
        """What was found so far."""
        return GoodPart(self.good, self._start, self.problem)

    def find(self, data: Bytes) -> None:
        """Go on with all bytes so far."""
        while match := _CHECK.search(data, self._position):
            at, end = match.start(), match.end()
            if int.from_bytes(match[1] or match[2] or match[3] or match[4] or match[5], "big") != at:
                self._position = at + 1  # these bytes are in the middle of another record
                continue
            # The range starts with the check before, its own bytes included.
            with memoryview(data) as view, view[self._start : at] as covered:
                if xxhash.xxh3_64_digest(covered) != match[6]:
                    self.problem = f"the bytes {self.good}-{at} do not have the checksum recorded for them"
                    return
            self.good, self._start, self._position = end, at, end
        self._position = max(self._position, len(data) - _CHECK_BYTES)


def _refuse_foreign(path: Path, data: Bytes) -> None:
    """Raise unless the file begins like an index of a version that this code reads."""
    if len(data) >= 2 and not (0x90 <= data[0] <= 0x9F and data[1] == HEADER):
        begin = bytes(data[:8]).hex(" ")
        raise FormatError(f"{path} is not an index of aten_dump: it begins with {begin}, not with a Header record")
    try:
        headers = first_records(data[:_HEADER_BYTES], 1)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise FormatError(f"{path} begins with a damaged Header record: {error!r}") from error
    if not headers:
        return  # cut short within its first record
    header = headers[0]
    if not isinstance(header, tuple) or len(header) < 2 or not isinstance(header[1], int) or header[1] < 1:
        raise FormatError(f"{path} begins with a damaged Header record: {header!r:.200}")
    if header[1] > FORMAT_VERSION:
        raise FormatError(
            f"{path} has format version {header[1]}, this aten_dump reads up to {FORMAT_VERSION}; "
            "update aten_dump where you read the dump"
        )


def _problem(path: Path, committed: bool, dropped: int, damage: str | None) -> str | None:
    if committed and not dropped:
        return None
    if committed:
        state = "the step is complete"
    elif damage:
        state = "the index is damaged"
    else:
        state = "the step was cut short, it has no commit record"
    parts = [f"{path}: {state}"]
    if dropped:
        parts.append(f"{dropped} bytes after the last good check record are dropped")
    if damage:
        parts.append(damage)
    return "; ".join(parts)
