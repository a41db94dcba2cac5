"""Writes one shard file as its bytes come, and knows how long headers should be.

Used on the writer's thread alone. Bytes are queued as views on arena memory and go out in one vectored
write of some MiB; the views' chunks are released after that.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgpack
import xxhash

from ...errors import StoreError
from ..records import BLOB, SHARD, Blob, Shard
from ..regular_files import GrowingFile
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
from .packed_records import kind_of

WRITE_BYTES: Final = 4 << 20  # of data per write
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


def write_vector(fd: int, parts: list[memoryview | bytes], offset: int) -> None:
    """Write all parts at `offset`; os.pwritev may write a part of them."""
    while parts:
        written = os.pwritev(fd, parts, offset)
        offset += written
        while parts and written >= len(parts[0]):
            written -= len(parts.pop(0))
        if parts and written:
            parts[0] = memoryview(parts[0])[written:]


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
        self._number = number
        self._release = release
        self._header_bytes = header_bytes
        self._entries: list[str] = []
        self._header_used = 8 + len(HEADER_START) + len(HEADER_END)
        self._end = 0  # of the blobs that are complete, in the data
        self._start = 0  # of the blob that is being added
        self._position = 0  # of the next byte
        self._written = 0  # bytes handed to the file
        self._longest = 0  # most bytes of the file so far
        self._hash = xxhash.xxh3_64()
        self._parts: list[memoryview | bytes] = []
        self._chunks: list[Chunk] = []
        self._file = GrowingFile(os.path.join(directory, shard_name(number)), folder)

    @property
    def record(self) -> Shard:
        """The journal record that says this shard was begun."""
        return Shard(SHARD, self._number, self._header_bytes)

    @property
    def is_empty(self) -> bool:
        """Whether it has no blobs yet."""
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
        """Whether a blob was begun and not ended."""
        return self._position != self._end

    @property
    def is_full_vector(self) -> bool:
        """Whether enough is queued for a write."""
        return self._position - self._written >= WRITE_BYTES or len(self._parts) >= WRITE_PIECES

    def has_header_room(self, entry_bytes: int) -> bool:
        """Tell whether an entry and the pad before it still fit in the header."""
        return self._header_used + entry_bytes + 100 <= self._header_bytes

    def begin(self, dtype: str) -> None:
        """Start a blob at the next offset that its dtype allows."""
        itemsize = max(DTYPE_BITS[dtype] // 8, 1)
        pad = -self._end % itemsize
        if pad:
            self._parts.append(_ZEROS[:pad])
        self._start = self._position = self._end + pad
        self._hash.reset()

    def add(self, chunk: Chunk | None, view: memoryview) -> None:
        """Queue bytes of the blob; `chunk` is given back by `flush`."""
        add_to_hash(self._hash, view)
        self._parts.append(view)
        if chunk is not None:
            self._chunks.append(chunk)
        self._position += len(view)

    def end(self, number: int, dtype: str, shape: list[int]) -> Blob:
        """Complete the blob; return its journal record, to be written after the next `flush`."""
        if self._start > self._end:
            self._enter(pad_entry(self._end, self._start))
        self._enter(header_entry(str(number), dtype, shape, self._start, self._position))
        self._end = self._position
        nbytes = self._position - self._start
        return Blob(BLOB, number, self._number, self._start, nbytes, dtype, shape, self._hash.digest())

    def rewind(self) -> None:
        """Forget the blob that was begun but not ended."""
        self.flush()
        self._position = self._written = self._start = self._end

    def flush(self) -> None:
        """Write what is queued, and give back its chunks."""
        if self._parts or not self._file.is_made:  # what the index journals is there, be it a blob of no bytes
            self._write([], self._header_bytes + self._written)

    def sync(self) -> None:
        """Have what was written on the disk."""
        os.fsync(self._file.fd)

    def finish(self, to_disk: bool = False) -> int:
        """Write what is queued and the header, give the file its name; return the file's bytes."""
        header = encode_header(self._entries, self._header_bytes)
        nbytes = self._header_bytes + self._end
        if not to_disk and not self.is_inside_blob and self._file.make_whole([header, *self._parts]):
            self._parts.clear()
            self._give_back()
            return nbytes
        if self._written:
            self.flush()
            os.pwrite(self._file.fd, header, 0)
        else:
            self._write([header], 0)
        if self._longest > nbytes:
            os.ftruncate(self._file.fd, nbytes)
        if to_disk:
            self.sync()
        self.close()
        self._file.give_name()
        return nbytes

    def lacks_bytes_of(self, record: bytes) -> bool:
        """Tell whether a packed record is of a blob here whose bytes are not all in the file."""
        if kind_of(record) != BLOB:
            return False
        blob = Blob._make(msgpack.unpackb(record))
        length = os.fstat(self._file.fd).st_size if self._file.is_made else 0
        return blob.shard == self._number and self._header_bytes + blob.offset + blob.nbytes > length

    def close(self) -> None:
        """Close the file as it is. Idempotent."""
        self._file.close()

    def _write(self, first: list[memoryview | bytes], offset: int) -> None:
        """Write `first` and what is queued."""
        parts, self._parts = first + self._parts, []
        write_vector(self._file.fd, parts, offset)
        self._written = self._position
        self._longest = max(self._longest, self._header_bytes + self._written)
        self._give_back()

    def _give_back(self) -> None:
        chunks, self._chunks = self._chunks, []
        if chunks:
            self._release(chunks)

    def _enter(self, entry: str) -> None:
        self._entries.append(entry)
        self._header_used += len(entry)
