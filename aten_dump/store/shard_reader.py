"""Reads bytes of blobs back, and sees that they are those that were written.

Theory of operation
    Bytes are read straight into the memory that is handed out. A map of the file in between would cost a page fault for
    every 64 KiB, count as memory of the process, and end it where somebody cuts the file off meanwhile (SIGBUS).

    A blob is checked against its checksum when bytes of it are read for the first time: piece by piece, so that the
    hash finds in the cache what has just been read. It is taken of the memory that is handed out: what the reader is
    given is what was checked. Later reads are copies alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from ..errors import FormatError, MissingDataError, StoreError
from .damage_seen import note_damage
from .objects.url_path import place_of
from .records import Blob, Shard
from .shards import partial_name, shard_name
from .stored_files import StoredFile, open_stored

PIECE_BYTES: Final = 512 << 10  # still in the cache when it is hashed, beside the pages that it was copied from
_MOST_OPEN: Final = 4  # shards: there are readers of many ranks at a time, and a process may have 1024 files open


class ShardReader:
    """Reads blobs of one step and rank, from finished shards and ``.partial`` ones alike."""

    def __init__(self, directory: Path, shards: Iterable[Sequence[Any]], verify: bool = True) -> None:
        """Take the shards of an index.

        Args:
            directory: the folder of the step and rank.
            shards: Shard records, typed or raw rows.
            verify: compare each blob with its checksum when it is first read.
        """
        self._directory = place_of(directory)
        self._header_bytes: dict[int, int] = {}
        for row in shards:
            shard = Shard._make(row[:3])
            self._header_bytes[shard.number] = shard.header_bytes
        self._files: dict[int, StoredFile] = {}
        self._verify = verify
        self._verified: set[int] = set()

    def read(self, blob: Sequence[Any], start: int = 0, stop: int | None = None) -> NDArray[np.uint8]:
        """Return bytes [start, stop) of a Blob record (typed or a raw row), in memory of their own.

        Raises:
            MissingDataError: the shard or its last bytes are not there (interrupted, moved, cut off).
            FormatError: the record or the shard is not what docs/format.md describes, or the blob's bytes have changed.
        """
        item = self._checked(blob)
        stop = item.nbytes if stop is None else stop
        if not 0 <= start <= stop <= item.nbytes:
            raise FormatError(
                f"bytes {start} to {stop} are asked for of blob {item.id} in {self._directory}, which has "
                f"{item.nbytes}: the index is damaged; run `aten-dump verify`"
            )
        if item.nbytes:
            self._file_of(item)  # before memory is taken for bytes that a damaged index only claims
        found = np.empty(stop - start, np.uint8)
        if self._verify and item.id not in self._verified:
            if len(found) == item.nbytes:
                self._compare(item, self._digest(item, found.data))
                return found
            self.verify(item)
        self._fill(item, found.data, start)
        return found

    def verify(self, blob: Blob) -> None:
        """Compare a blob with its checksum; raises as `read` does."""
        self._compare(blob, self._digest(self._checked(blob)))

    def close(self) -> None:
        """Let go of the files; the next read opens what it needs."""
        self._files.clear()

    def _digest(self, blob: Blob, into: memoryview | None = None) -> bytes:
        """Return the checksum of a blob as it is read; `into` takes its bytes, of which nothing is kept without."""
        digest = xxhash.xxh3_64()
        room = np.empty(min(blob.nbytes, PIECE_BYTES), np.uint8).data if into is None else into
        for start in range(0, blob.nbytes, PIECE_BYTES):
            size = min(PIECE_BYTES, blob.nbytes - start)
            piece = room[:size] if into is None else room[start : start + size]
            self._fill(blob, piece, start)
            digest.update(piece)
        return digest.digest()

    def _fill(self, blob: Blob, room: memoryview, start: int) -> None:
        """Read bytes of a blob, from `start` on, until `room` is full."""
        at = self._header_bytes[blob.shard] + blob.offset + start
        while room:
            file = self._file_of(blob)
            try:
                got = file.read_into(room, at)
            except OSError as error:
                raise StoreError(error.errno, f"cannot read {file.path}: {error.strerror}") from error
            if not got:  # cut off since it was opened
                raise _cut_off(blob, self._directory, at)
            room, at = room[got:], at + got

    def _compare(self, blob: Blob, digest: bytes) -> None:
        if digest != blob.checksum:
            note_damage(f"blob {blob.id} of {self._directory / shard_name(blob.shard)} does not have its checksum")
            raise FormatError(
                f"blob {blob.id}, {blob.nbytes} bytes at {blob.offset} of {self._directory / shard_name(blob.shard)}, "
                f"has checksum {digest.hex()}, {blob.checksum.hex()} was recorded: these are not the bytes that were "
                "written. Copy the shard anew, or see them as they are with open_dump(path, verify=False)"
            )
        self._verified.add(blob.id)

    def _checked(self, blob: Sequence[Any]) -> Blob:
        item = Blob._make(blob[:8])
        if item.offset < 0 or item.nbytes < 0:
            raise FormatError(
                f"blob {item.id} in {self._directory} has offset {item.offset} and {item.nbytes} bytes; neither may be "
                "negative"
            )
        if item.shard not in self._header_bytes:
            raise FormatError(
                f"blob {item.id} in {self._directory} names shard {item.shard}, which has no Shard record"
            )
        return item

    def _file_of(self, blob: Blob) -> StoredFile:
        """Return the shard that a blob is in, which reaches as far as the blob."""
        end = self._header_bytes[blob.shard] + blob.offset + blob.nbytes
        file = self._files.get(blob.shard)
        if file is None or file.size < end:  # a shard that still grows is opened again
            if len(self._files) >= _MOST_OPEN:
                self.close()
            file = self._files[blob.shard] = self._open(blob.shard)
        if file.size < end:
            raise _cut_off(blob, self._directory, file.size)
        return file

    def _open(self, number: int) -> StoredFile:
        """Open a shard, whichever name it has, and see that its data begin where the index says."""
        finished = self._directory / shard_name(number)
        # The finished name twice: a growing shard may be renamed between the first look and the second.
        for path in (finished, self._directory / partial_name(number), finished):
            try:
                file = open_stored(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise StoreError(error.errno, f"cannot read {path}: {error.strerror}") from error
            start = int.from_bytes(file.read(8, 0), "little") + 8
            if path is finished and start != self._header_bytes[number]:
                expected = self._header_bytes[number]
                note_damage(f"{path} has another header than it was written with")
                raise FormatError(f"{path} has {start} bytes before its data, the index says {expected}")
            return file
        note_damage(f"{finished} does not exist")
        raise MissingDataError(f"{finished} does not exist, nor its .partial: copy it next to the index it belongs to")


def _cut_off(blob: Blob, directory: Path, there: int) -> MissingDataError:
    note_damage(f"bytes of shard {blob.shard} in {directory} from {there} on are lost")
    return MissingDataError(
        f"blob {blob.id} in {directory} has {blob.nbytes} bytes at {blob.offset} of the data of shard {blob.shard}, "
        f"whose file ends at byte {there}: they were lost when the run or its machine was cut short"
    )
