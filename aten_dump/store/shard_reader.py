"""Reads bytes of blobs back, and sees that they are those that were written.

Theory of operation
    A blob is checked against its checksum when bytes of it are read for the first time: piece by piece, so that the
    hash finds in the cache what has just been copied. It is taken of the copy: what the reader is given is what was
    checked, and hashing pages of the file first, then copying them, costs twice as much. Later reads are copies alone.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from ..errors import FormatError, MissingDataError, StoreError
from .records import Blob, Shard
from .regular_files import open_inside
from .shards import partial_name, shard_name

PIECE_BYTES: Final = 1 << 20  # what is still in the cache when it is hashed
_MAPPED_BYTES: Final = 8 << 20  # read through maps before they are dropped: their pages count as memory of the process


class ShardReader:
    """Reads blobs of one step and rank, from finished shards and ``.partial`` ones alike.

    Maps are private: a write to a returned array changes neither the file nor other processes.
    """

    def __init__(self, directory: Path, shards: Iterable[Sequence[Any]], verify: bool = True) -> None:
        """Take the shards of an index.

        Args:
            directory: the folder of the step and rank.
            shards: Shard records, typed or raw rows.
            verify: compare each blob with its checksum when it is first read.
        """
        self._directory = Path(directory)
        self._header_bytes: dict[int, int] = {}
        for row in shards:
            shard = Shard._make(row[:3])
            self._header_bytes[shard.number] = shard.header_bytes
        self._maps: dict[int, NDArray[np.uint8]] = {}
        self._verify = verify
        self._verified: set[int] = set()
        self._passed_bytes = 0  # since the maps were made

    def read(self, blob: Sequence[Any], start: int = 0, stop: int | None = None) -> NDArray[np.uint8]:
        """Return bytes [start, stop) of a Blob record (typed or a raw row), in memory of their own.

        Raises:
            MissingDataError: the shard or its last bytes are not there (interrupted, moved, cut off).
            FormatError: the record or the shard is not what docs/format.md describes, or the blob's bytes have changed.
        """
        item = Blob._make(blob[:8])
        mapped = self.blob(item)
        stop = item.nbytes if stop is None else stop
        if not 0 <= start <= stop <= item.nbytes:
            raise FormatError(
                f"bytes {start} to {stop} are asked for of blob {item.id} in {self._directory}, which has "
                f"{item.nbytes}: the index is damaged; run `aten-dump verify`"
            )
        found = np.empty(stop - start, np.uint8)
        if not self._verify or item.id in self._verified:
            found[:] = mapped[start:stop]
            self._passed(stop - start)
        else:
            is_whole = len(found) == item.nbytes
            self._compare(item, _digest(mapped, found) if is_whole else self._digest_of(item))
            if not is_whole:
                found[:] = mapped[start:stop]
            self._passed(item.nbytes)
        return found

    def verify(self, blob: Blob) -> None:
        """Compare a blob with its checksum.

        Raises:
            FormatError: they are other bytes.
        """
        self._compare(blob, self._digest_of(blob))
        self._passed(blob.nbytes)

    def _digest_of(self, blob: Blob) -> bytes:
        """Return the checksum of a blob as it is; a long one does not pass through a map."""
        mapped = self.blob(blob)
        if len(mapped) <= _MAPPED_BYTES:
            return _digest(mapped)
        digest = xxhash.xxh3_64()
        fd, _ = self._open(blob.shard)
        with open(fd, "rb", buffering=0) as file:
            file.seek(self._header_bytes[blob.shard] + blob.offset)
            left = blob.nbytes
            buffer = bytearray(PIECE_BYTES)
            while left and (got := file.readinto(memoryview(buffer)[: min(left, PIECE_BYTES)])):
                digest.update(memoryview(buffer)[:got])
                left -= got
        return digest.digest()

    def _passed(self, nbytes: int) -> None:
        """Let go of the maps now and then: what was read through them counts as memory of the process."""
        self._passed_bytes += nbytes
        if self._passed_bytes > _MAPPED_BYTES:
            self.close()
            self._passed_bytes = 0

    def _compare(self, blob: Blob, digest: bytes) -> None:
        if digest != blob.checksum:
            raise FormatError(
                f"blob {blob.id}, {blob.nbytes} bytes at {blob.offset} of {self._directory / shard_name(blob.shard)}, "
                f"has checksum {digest.hex()}, {blob.checksum.hex()} was recorded: these are not the bytes that were "
                "written. Copy the shard anew, or see them as they are with open_dump(path, verify=False)"
            )
        self._verified.add(blob.id)

    def blob(self, blob: Sequence[Any]) -> NDArray[np.uint8]:
        """Return the bytes of a Blob record as an array over the file, as they are; raises as `read` does."""
        item = self._checked(blob)
        if item.nbytes == 0:
            return np.empty(0, np.uint8)
        data = self._maps.get(item.shard)
        end = self._header_bytes[item.shard] + item.offset + item.nbytes
        if data is None or len(data) < end:  # a shard that still grows is mapped again
            data = self._maps[item.shard] = self._map(item.shard)
        if len(data) < end:
            raise _cut_off(item, self._directory, len(data))
        return data[end - item.nbytes : end]

    def close(self) -> None:
        """Let go of the maps; arrays already returned stay valid."""
        self._maps.clear()

    def _checked(self, blob: Sequence[Any]) -> Blob:
        item = Blob._make(blob[:8])
        where = f"blob {item.id} in {self._directory}"
        if item.offset < 0 or item.nbytes < 0:
            raise FormatError(f"{where} has offset {item.offset} and {item.nbytes} bytes; neither may be negative")
        if item.shard not in self._header_bytes:
            raise FormatError(f"{where} names shard {item.shard}, which has no Shard record")
        return item

    def _open(self, number: int) -> tuple[int, Path]:
        """Open a shard, whichever name it has, and see that its data begin where the index says."""
        finished = self._directory / shard_name(number)
        # The finished name twice: a growing shard may be renamed between the first look and the second.
        for path in (finished, self._directory / partial_name(number), finished):
            try:
                fd = open_inside(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise StoreError(error.errno, f"cannot read {path}: {error.strerror}") from error
            start = int.from_bytes(os.pread(fd, 8, 0), "little") + 8
            if path is finished and start != self._header_bytes[number]:
                os.close(fd)
                expected = self._header_bytes[number]
                raise FormatError(f"{path} has {start} bytes before its data, the index says {expected}")
            return fd, path
        raise MissingDataError(f"{finished} does not exist, nor its .partial: copy it next to the index it belongs to")

    def _map(self, number: int) -> NDArray[np.uint8]:
        fd, path = self._open(number)
        try:
            if os.fstat(fd).st_size == 0:
                return np.empty(0, np.uint8)
            return np.frombuffer(mmap.mmap(fd, 0, access=mmap.ACCESS_COPY), np.uint8)
        except OSError as error:
            raise StoreError(error.errno, f"cannot read {path}: {error.strerror}") from error
        finally:
            os.close(fd)


def _digest(source: NDArray[np.uint8], into: NDArray[np.uint8] | None = None) -> bytes:
    """Return the checksum of some bytes; where `into` is given, copy them there and return that of the copy."""
    if len(source) <= PIECE_BYTES:
        if into is not None:
            into[:] = source
            source = into
        return xxhash.xxh3_64_digest(source.data)
    digest = xxhash.xxh3_64()
    for start in range(0, len(source), PIECE_BYTES):
        piece = source[start : start + PIECE_BYTES]
        if into is not None:
            copied = into[start : start + PIECE_BYTES]
            copied[:] = piece
            piece = copied
        digest.update(piece.data)
    return digest.digest()


def _cut_off(blob: Blob, directory: Path, there: int) -> MissingDataError:
    return MissingDataError(
        f"blob {blob.id} in {directory} has {blob.nbytes} bytes at {blob.offset} of the data of shard {blob.shard}, "
        f"whose file ends at byte {there}: they were lost when the run or its machine was cut short"
    )
