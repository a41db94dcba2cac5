"""Writes one shard file as its bytes come, and knows how long headers should be.

Bytes are queued as views on arena memory. `flush`, which may run on a thread beside the writer's, takes their checksums
and writes them, a MiB at a time, which is in a cache for both; the views' chunks are released after that.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import xxhash

from ...errors import StoreError
from ..records import BLOB, SHARD, Blob, Shard
from ..regular_files import SMALL_BYTES, GrowingFile, write_all
from ..shards import (
    ALIGNMENT,
    DTYPE_BITS,
    HEADER_END,
    HEADER_START,
    MAX_HEADER_BYTES,
    encode_header,
    header_entry,
    pad_entry,
    shard_name,
)
from .arena import Chunk
from .checksums import add_to_hash

WRITE_BYTES: Final = 1 << 20  # of data per write
WRITE_PIECES: Final = 512  # IOV_MAX is 1024
FIRST_HEADER_BYTES: Final = 64 << 10
LEAST_HEADER_BYTES: Final = 16 << 10
FREE_MARGIN_BYTES: Final = 16 << 20  # left for the index, other ranks and the program's own files
PLENTY_BYTES: Final = 8 << 30  # more than is written in TRUSTED_SECONDS
TRUSTED_SECONDS: Final = 1.0
_ZEROS: Final = bytes(64)


class HeaderBudget:
    """How many bytes to reserve for the next shard's header, learnt from the shards before, across steps."""

    def __init__(self) -> None:
        self._reserve = FIRST_HEADER_BYTES
        self._largest = 0
        self._overflowed = False

    def reserve(self, entry_bytes: int) -> int:
        """Return the header bytes of a new shard, room for one entry of `entry_bytes` at least."""
        return _rounded(max(self._reserve, entry_bytes + 1024))

    def overflowed(self) -> None:
        """Note that a header was full before its shard."""
        self._overflowed = True
        self._reserve = min(self._reserve * 4, MAX_HEADER_BYTES)

    def used(self, nbytes: int) -> None:
        """Note what the header of a finished shard needed."""
        self._largest = max(self._largest, nbytes)

    def end_step(self) -> None:
        """Choose for the next step: what this one needed and a quarter more; shrink slowly."""
        if not self._overflowed and self._largest:
            needed = self._largest + self._largest // 4 + 1024
            self._reserve = min(max(needed, self._reserve // 4, LEAST_HEADER_BYTES), MAX_HEADER_BYTES)
        self._largest = 0
        self._overflowed = False


def _rounded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class FreeSpace:
    """Room on the disk: where there is plenty, it is asked for once a second."""

    def __init__(self) -> None:
        self._trusted_until = 0.0

    def check(self, folder: Path, nbytes: int) -> None:
        """Refuse to begin a shard when the disk of `folder` has not `nbytes` and a margin left.

        A folder that somebody has moved away is made again by whoever writes to it: it is not asked for here.

        Raises:
            StoreError: in time, while other files of the program can still be written.
        """
        now = time.monotonic()
        if now < self._trusted_until and nbytes < PLENTY_BYTES // 2:
            return
        try:
            free = shutil.disk_usage(folder).free
        except FileNotFoundError:
            return
        if free < nbytes + FREE_MARGIN_BYTES:
            raise StoreError(
                errno.ENOSPC,
                f"no room for the next shard: {free:,} bytes are free, {nbytes + FREE_MARGIN_BYTES:,} are needed "
                f"({FREE_MARGIN_BYTES:,} of them as a margin for other files); set max_bytes to keep within what "
                "there is",
            )
        self._trusted_until = now + TRUSTED_SECONDS if free >= PLENTY_BYTES else 0.0


class WrittenBlob(NamedTuple):
    """The journal record of a blob, and the value whose xxh3 hash is its checksum; 0 for none."""

    record: Blob
    hash_of: int


class _Checked(NamedTuple):
    """Bytes of a blob whose checksum is known."""

    view: memoryview


class _End(NamedTuple):
    """The end of a blob among its bytes: its record, its checksum where that is known before, and `hash_of`."""

    number: int
    start: int
    nbytes: int
    dtype: str
    shape: list[int]
    checksum: bytes
    hash_of: int


def _written(blobs: list[WrittenBlob], file: GrowingFile, nbytes: int) -> list[WrittenBlob]:
    """Return the blobs whose bytes are all among the first so many of a shard's data."""
    if not file.is_made:  # it could not be made: a blob of no bytes is not there
        return []
    return [blob for blob in blobs if blob.record.offset + blob.record.nbytes <= nbytes]


def _end_of(blobs: list[WrittenBlob], end: int) -> int:
    """Return where the last of some blobs ends in the data; `end` where there are none."""
    return blobs[-1].record.offset + blobs[-1].record.nbytes if blobs else end


class ShardWriter:
    """One growing shard."""

    def __init__(
        self,
        directory: Path,
        number: int,
        header_bytes: int,
        release: Callable[[list[Chunk]], None],
        folder: Callable[[], int] | None = None,
    ) -> None:
        """Begin a shard, whose file is made when something is written to it.

        Args:
            directory: the folder that it is in.
            number: of the shard.
            header_bytes: room for its header.
            release: is given chunks of the arena when they are written.
            folder: see `GrowingFile`.
        """
        self.record = Shard(SHARD, number, header_bytes)  # of the journal: says that this shard was begun
        self._release = release
        self._entries: list[str] = []
        self._header_used = 8 + len(HEADER_START) + len(HEADER_END)
        self._end = 0  # of the blobs that are complete, in the data
        self._start = 0  # of the blob that is being added
        self._position = 0  # of the next byte
        self._written = 0  # bytes handed to the file
        self._taken = 0  # bytes of blobs that `take_written` has returned
        self._longest = 0  # most bytes of the file so far
        self._hash = xxhash.xxh3_64()
        # Bytes of blobs (views), those whose checksums are known, pads between them (bytes), and the ends of blobs.
        self._queue: list[memoryview | _Checked | bytes | _End] = []
        self._chunks: list[Chunk] = []
        self._blobs: list[WrittenBlob] = []  # whose checksums are taken
        self._file = GrowingFile(os.path.join(directory, shard_name(number)), folder)

    @property
    def is_empty(self) -> bool:
        """True if it has no blobs yet."""
        return not self._entries

    @property
    def data_bytes(self) -> int:
        """Bytes of data so far, pads included."""
        return self._end

    @property
    def header_used(self) -> int:
        """Bytes of the header that are needed so far."""
        return self._header_used

    @property
    def is_inside_blob(self) -> bool:
        """True if a blob was begun and not ended."""
        return self._position != self._end

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait for `flush`."""
        return self._position - self._written

    def has_header_room(self, entry_bytes: int) -> bool:
        """Return True if an entry and the pad before it still fit in the header."""
        return self._header_used + entry_bytes + 100 <= self.record.header_bytes

    def begin(self, dtype: str) -> None:
        """Start a blob at the next offset that its dtype allows."""
        itemsize = max(DTYPE_BITS[dtype] // 8, 1)
        pad = -self._end % itemsize
        if pad:
            self._queue.append(_ZEROS[:pad])
        self._start = self._position = self._end + pad

    def add(self, chunk: Chunk | None, view: memoryview, is_checked: bool = False) -> None:
        """Queue bytes of the blob, which are all of it if `is_checked`; `chunk` is given back by `flush`."""
        self._queue.append(_Checked(view) if is_checked else view)
        if chunk is not None:
            self._chunks.append(chunk)
        self._position += len(view)

    def end(self, number: int, dtype: str, shape: list[int], hash_of: int = 0, checksum: bytes = b"") -> None:
        """Complete the blob; `take_written` has its record after the next `flush`. Its checksum is that of the bytes
        that were added, and is taken of them unless it is known.
        """
        start, end = self._start, self._position
        pads = (pad_entry(self._end, start),) if start > self._end else ()
        for entry in (*pads, header_entry(str(number), dtype, shape, start, end)):
            self._entries.append(entry)
            self._header_used += len(entry)
        self._end = end
        self._queue.append(_End(number, start, end - start, dtype, shape, checksum, hash_of))

    def rewind(self) -> None:
        """Forget the blob that was begun but not ended."""
        self.flush()
        self._hash.reset()
        self._position = self._written = self._start = self._end

    def flush(self) -> None:
        """Take the checksums of what is queued, write it, and give back its chunks."""
        parts: list[memoryview | bytes] = []
        nbytes = 0
        for part in self._checked():
            parts.append(part)
            nbytes += len(part)
            if nbytes >= WRITE_BYTES or len(parts) == WRITE_PIECES:
                self._write(parts)
                parts, nbytes = [], 0
        if parts or not self._file.is_made:  # what the index journals is there, be it a blob of no bytes
            self._write(parts)
        self._give_back()

    def take_written(self) -> list[WrittenBlob]:
        """Return the blobs whose bytes have all come to the file since the last call, with their checksums.

        After an error these are all that there will be.
        """
        written, self._blobs = _written(self._blobs, self._file, self._written), []
        self._taken = _end_of(written, self._taken)
        return written

    def cut_off(self, are_all: bool) -> None:
        """After an error: give back the room of a blob that is not whole, or of all that were not taken yet."""
        self._blobs = [] if are_all else _written(self._blobs, self._file, self._written)
        nbytes = self.record.header_bytes + _end_of(self._blobs, self._taken)
        if self._file.is_made and os.fstat(self._file.fd).st_size > nbytes:
            os.ftruncate(self._file.fd, nbytes)

    def sync(self) -> None:
        """Put what was written on the disk."""
        os.fsync(self._file.fd)

    def finish(self, to_disk: bool = False) -> int:
        """Write what is queued and the header, give the file its name; return the file's bytes."""
        header = encode_header(self._entries, self.record.header_bytes)
        nbytes = self.record.header_bytes + self._end
        if not self._file.is_made and self.queued_bytes <= SMALL_BYTES and len(self._queue) <= WRITE_PIECES:
            is_whole = self._write([header, *self._checked()], len(header), not to_disk and not self.is_inside_blob)
            self._give_back()
            if is_whole:
                return nbytes
        else:
            self.flush()
            write_all(self._file.fd, [header], 0)
        if self._longest > nbytes:
            os.ftruncate(self._file.fd, nbytes)
        if to_disk:
            self.sync()
        self.close()
        self._file.give_name()
        return nbytes

    def close(self) -> None:
        """Close the file as it is. Idempotent."""
        self._file.close()

    def _checked(self) -> Iterator[memoryview | bytes]:
        """Yield what is queued, at most WRITE_BYTES at a time; checksums that are not known are taken."""
        queue, self._queue = self._queue, []
        for one in queue:
            if isinstance(one, _End):
                number, start, nbytes, dtype, shape, checksum, hash_of = one
                if not checksum:
                    checksum = self._hash.digest()
                    self._hash.reset()
                record = Blob(BLOB, number, self.record.number, start, nbytes, dtype, shape, checksum)
                self._blobs.append(WrittenBlob(record, hash_of))
            elif isinstance(one, bytes):
                yield one
            else:
                view = one.view if isinstance(one, _Checked) else one
                for start in range(0, len(view), WRITE_BYTES):
                    part = view[start : start + WRITE_BYTES]
                    if view is one:
                        add_to_hash(self._hash, part)
                    yield part

    def _write(self, parts: list[memoryview | bytes], header_bytes: int = 0, are_all: bool = False) -> bool:
        """Write the next parts, of which the first are so many bytes of the header.

        With `are_all` nothing comes after them; returns whether the file then has its name and is closed already.
        """
        start = self.record.header_bytes + self._written
        nbytes = sum(map(len, parts)) - header_bytes
        try:
            is_whole = are_all and self._file.make_whole(parts)
            if not is_whole:
                write_all(self._file.fd, parts, start - header_bytes)
        except OSError:
            if self._file.is_made and self._longest <= start:  # else the file is longer than what is good of it
                self._written = max(os.fstat(self._file.fd).st_size - self.record.header_bytes, self._written)
            raise
        self._written += nbytes
        self._longest = max(self._longest, start + nbytes)
        return is_whole

    def _give_back(self) -> None:
        chunks, self._chunks = self._chunks, []
        if chunks:
            self._release(chunks)
