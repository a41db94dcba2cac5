"""Reads an index file: what is whole, sorted by kind.

Theory of operation
    First the check records are found by their bytes alone: one that names its own position and the checksum
    of what lies between it and the check before makes all bytes up to its end good. That runs at the speed of the
    checksum, some GB/s. What follows the last good check is dropped, also records that would
    decode: nothing says that they are what was written. Of the good bytes `raw_rows` finds where each record is;
    rows are decoded when they are looked at.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgpack
import xxhash

from ..errors import FormatError, MissingDataError, StoreError
from .raw_rows import RawRows, split_records
from .records import COMMIT, FORMAT_VERSION, HEADER, RECORD_TYPES, Commit, Header
from .writing.index_writer import INDEX_FILE

# A check record: array of 3, kind 19, an int in its shortest form, 8 bytes.
_CHECK: Final = re.compile(
    rb"\x93\x13(?:([\x00-\x7f])|\xcc(.)|\xcd(.{2})|\xce(.{4})|\xcf(.{8}))\xc4\x08(.{8})", re.DOTALL
)
_HEADER_BYTES: Final = 16 << 20


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

    @property
    def committed(self) -> bool:
        """Whether the step is complete."""
        return self.commit is not None

    def records(self, kind: int) -> Iterator[Any]:
        """Yield the rows of a kind as their record type, fields of newer versions cut off."""
        record = RECORD_TYPES[kind]
        make, size = record._make, len(record._fields)  # type: ignore[attr-defined]
        for row in self.rows[kind]:
            yield make(row[:size])


@contextmanager
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
    path = Path(path)
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
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MissingDataError(
            f"{path} does not exist: this step or rank was not recorded, or was not copied"
        ) from error
    except OSError as error:
        raise StoreError(error.errno, f"cannot read {path}: {error.strerror}") from error
    _refuse_foreign(path, data)
    good = good_part(data)
    return index_of(path, data, good)


def index_of(path: Path, data: bytes, good: GoodPart) -> IndexData:
    """Read the good part of the bytes of an index; `path` names them in errors."""
    rows, unknown = split_records(memoryview(data)[: good.nbytes], str(path))
    header = Header._make(rows[HEADER][0][:8]) if rows[HEADER] else None
    commit = Commit._make(rows[COMMIT][-1][:7]) if rows[COMMIT] else None
    dropped = len(data) - good.nbytes
    return IndexData(
        path=path,
        header=header,
        commit=commit,
        rows=rows,
        unknown=unknown,
        good_bytes=good.nbytes,
        dropped_bytes=dropped,
        last_check=good.last_check,
        problem=_problem(path, commit is not None, dropped, good.problem),
    )


def good_part(data: bytes) -> GoodPart:
    """Find the last check record up to which all bytes are good."""
    view = memoryview(data)
    good, start, position = 0, 0, 0
    while match := _CHECK.search(data, position):
        at = match.start()
        if int.from_bytes(match[1] or match[2] or match[3] or match[4] or match[5], "big") != at:
            position = at + 1  # these bytes are in the middle of another record
            continue
        # The range starts with the check before, its own bytes included.
        if xxhash.xxh3_64_digest(view[start:at]) != match[6]:
            return GoodPart(good, start, f"the bytes {good}-{at} do not have the checksum recorded for them")
        good, start, position = match.end(), at, match.end()
    return GoodPart(good, start, None)


def _refuse_foreign(path: Path, data: bytes) -> None:
    """Raise unless the file begins like an index of a version that this code reads."""
    if len(data) >= 2 and not (0x90 <= data[0] <= 0x9F and data[1] == HEADER):
        raise FormatError(
            f"{path} is not an index of aten_dump: it begins with {data[:8].hex(' ')}, not with a Header record"
        )
    unpacker = msgpack.Unpacker(use_list=False, strict_map_key=False, max_buffer_size=0)
    unpacker.feed(data[:_HEADER_BYTES])
    try:
        header = unpacker.unpack()
    except msgpack.OutOfData:
        return  # cut short within its first record
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise FormatError(f"{path} begins with a damaged Header record: {error!r}") from error
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
    parts = [f"{path}:"]
    parts.append("the step is complete" if committed else "the step was cut short, it has no commit record")
    if dropped:
        parts.append(f"; {dropped} bytes after the last good check record are dropped")
    if damage:
        parts.append(f"; {damage}")
    return " ".join(parts).replace(" ;", ";")
