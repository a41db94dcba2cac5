"""The files of one step and rank while they are written; used on the writer's thread alone.

Theory of operation
    Order on file: the bytes of a blob, then its Blob record, then the check record over it. A shard is finished
    only when the index journals all of it, the commit is written only when all shards are finished.

    Each call of the system makes this thread hand Python's lock to the program and wait for it again, and the program
    wait for this thread. So nothing is made before there is something to write, and a step that ends before its first
    `flush` is written whole: its shard, then its index, which has its name when it is complete. So nobody can take it
    for one that was cut short, and it needs no lock.

    The system copies the bytes of one file on one core, whoever writes them. So where much waits, blobs go to LANES
    shards that grow side by side, and a thread for each writes what waits for it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from ..rank_lock import RankLock
from ..records import COMMIT, HASH, NOTE, Commit, Hash, Header, Note
from ..regular_files import let_go, make_folder, sync_folder
from ..shards import most_entry_bytes, shard_name
from ..threads.side_by_side import side_by_side
from .arena import Chunk
from .index_writer import INDEX_FILE, IndexWriter
from .settings import WriterSettings
from .shard_writer import FreeSpace, HeaderBudget, ShardWriter

INDEX_WRITE_BYTES: Final = 1 << 20  # of records that wait
QUEUED_BYTES: Final = 32 << 20  # of data that wait to be written together
INDEX_ROOM_BYTES: Final = 64 << 10  # for records that are not made yet when a disk is full
LANES: Final = 2
LANE_BYTES: Final = 1 << 20  # that wait for one shard before the next blob goes to another


class BlobStart(NamedTuple):
    """What is known of a blob before its bytes."""

    id: int
    dtype: str
    shape: list[int]
    nbytes: int
    hash_of: int = 0  # value whose xxh3 hash is that of the bytes


class Piece(NamedTuple):
    """Consecutive bytes of a blob in arena memory; `chunk` is None for a blob of no bytes."""

    blob: BlobStart
    chunk: Chunk | None
    start: int  # in the chunk
    nbytes: int
    is_first: bool
    is_last: bool
    ready: Callable[[], None] | None
    get: Callable[[], bytes] | None = None  # all bytes of the blob, where they are not in arena memory
    checksum: bytes = b""  # of all bytes of the blob, where that is known


@dataclass(frozen=True, slots=True)
class StepEnd:
    """What the training thread says of a step when it ends."""

    calls: int
    values: int
    seconds: dict[str, float]
    notes: list[Note]


@dataclass(frozen=True, slots=True)
class HandedOn:
    """What steps hand on to the next, and what they give back to.

    Args:
        header_budget: how long headers should be.
        free_space: room on the disk.
        release: takes chunks of the arena back.
    """

    header_budget: HeaderBudget
    free_space: FreeSpace
    release: Callable[[list[Chunk]], None]


class StepFiles:
    """Index and shards of one step and rank.

    It has more than twenty methods: each kind of record has its way to the index, the shards or both.
    """

    def __init__(self, directory: Path, header: Header, settings: WriterSettings, handed_on: HandedOn) -> None:
        self._directory = directory
        self._settings = settings
        self._handed_on = handed_on
        self._lanes: list[ShardWriter | None] = [None] * LANES
        self._storing: ShardWriter | None = None  # what the last blob goes to
        self._shard_sizes: dict[int, int] = {}
        self._blobs = 0
        self._blob_bytes = 0
        self.queued_bytes = 0  # of blobs, that wait for `flush`
        self.flushed = time.monotonic()
        self._write_seconds = 0.0
        self._folder = -1
        self._lock: RankLock | None = None
        self._index = IndexWriter.create(os.path.join(directory, INDEX_FILE), self._open_folder)
        self._index.add_first([header])
        self._is_begun = False  # whether the index is on file, without a commit

    @property
    def waiting_records(self) -> int:
        """Records that are not yet in the index. Any thread may ask."""
        return self._index.waiting_records

    def records(self, batch: list[bytes]) -> None:
        """Write packed records; where those are few, they wait."""
        self._index.add_packed(batch)
        if self._index.waiting_bytes >= INDEX_WRITE_BYTES:
            self.flush()

    def piece(self, piece: Piece) -> None:
        """Write a piece of a blob, and the blob's record after the last one."""
        if piece.ready is not None:
            piece.ready()
        blob = piece.blob
        if piece.is_first:
            self._storing = self._shard_for(blob)
        shard = self._storing
        assert shard is not None, "a blob's first piece opens a shard"
        if piece.chunk is not None:
            view = piece.chunk.view[piece.start : piece.start + piece.nbytes]
            shard.add(piece.chunk, view, is_checked=bool(piece.checksum))
        elif piece.get is not None:
            shard.add(None, memoryview(piece.get()))
        self.queued_bytes += piece.nbytes
        if piece.is_last:
            shard.end(blob.id, blob.dtype, blob.shape, blob.hash_of, piece.checksum)
            self._blobs += 1
            self._blob_bytes += blob.nbytes
        if self.queued_bytes >= min(QUEUED_BYTES, self._settings.queue_bytes // 2):
            self.flush()

    def flush(self) -> None:
        """Write all that came so far: bytes first, then the records that journal them."""
        self._begin()
        begun = time.perf_counter()
        shards = self._shards
        busy = [shard for shard in shards if shard.queued_bytes >= LANE_BYTES]
        for shard in shards:
            if shard not in busy:
                shard.flush()
        side_by_side([shard.flush for shard in busy])
        for shard in shards:
            self._journal(shard)
        self._index.flush()
        self._write_seconds += time.perf_counter() - begun
        self.queued_bytes = 0
        self.flushed = time.monotonic()

    def flush_records(self) -> None:
        """Write the records that came so far, ahead of bytes that they may name."""
        self._begin()
        self._index.flush()

    def sync(self) -> None:
        """Put what was written on the disk: the files, then the names that they have in their folders."""
        for shard in self._shards:
            shard.sync()
        self._index.sync()
        for folder in (self._directory, self._directory.parent, self._directory.parent.parent):
            sync_folder(folder)

    def finish(self, end: StepEnd) -> None:
        """Finish the shards, then commit."""
        self._index.add(end.notes)
        if self._is_begun:
            self.flush()
        begun = time.perf_counter()
        self._open_folder()
        self._write_seconds += time.perf_counter() - begun
        self._finish_shards()
        self._handed_on.header_budget.end_step()
        seconds = dict(end.seconds)
        seconds["write"] = seconds.get("write", 0.0) + self._write_seconds
        sizes = [size for _, size in sorted(self._shard_sizes.items())]
        commit = Commit(COMMIT, end.calls, end.values, self._blobs, self._blob_bytes, sizes, seconds)
        self._index.add([commit])
        self._index.flush(is_last=not self._settings.to_disk)
        if self._settings.to_disk:
            self.sync()
        self._close()
        self._settings.say_finished(self._directory / INDEX_FILE)

    def interrupt(self) -> None:
        """Finish the shards of a step that never ended; without a commit."""
        self._index.add([Note(NOTE, "interrupted", "the dump was closed before this step ended", 1)])
        self.flush()
        self._finish_shards()
        self._close()
        self._settings.say_finished(self._directory / INDEX_FILE)

    def abandon(self) -> None:
        """Close the files as they are, after an error. The records that came are written, if they can be."""

        def write_records() -> None:
            self._begin()
            for shard in self._shards:
                self._journal(shard)
            self._index.flush()

        for action in (self._make_room, write_records, *[shard.close for shard in self._shards], self._close):
            with contextlib.suppress(Exception):  # the error before it is reported
                action()

    def _make_room(self) -> None:
        """Where the disk is full, give back what is not journaled, as far as records need its room."""
        for are_all in (False, True):
            for shard in self._shards:
                needed = self._index.waiting_bytes + INDEX_ROOM_BYTES
                if shutil.disk_usage(self._directory.parent.parent).free < needed:
                    shard.cut_off(are_all)

    def _open_folder(self) -> int:
        """Return the folder, open; it is made if need be."""
        if self._folder < 0:
            self._folder = make_folder(os.fspath(self._directory))
        return self._folder

    def _begin(self) -> None:
        """Make an index that may stay without a commit: locked, so that nobody takes it for one that will."""
        if not self._is_begun:
            self._lock = self._lock or RankLock.take(self._directory, self._open_folder())
            self._index.begin()
            self._is_begun = True

    def _close(self) -> None:
        try:
            self._index.close()
        finally:
            if self._lock is not None:
                self._lock.release()
            folder, self._folder = self._folder, -1
            if folder >= 0:
                let_go(folder)

    @property
    def _shards(self) -> list[ShardWriter]:
        """Those that grow."""
        return [shard for shard in self._lanes if shard is not None]

    def _shard_for(self, blob: BlobStart) -> ShardWriter:
        """Return the shard that takes the blob, a new one if need be."""
        entry_bytes = most_entry_bytes(blob.dtype, blob.shape)
        if self._storing is not None and self._storing.is_inside_blob:  # its fill raised: the last piece never came
            self._storing.rewind()
        lane = self._shortest_lane()
        shard = self._lanes[lane]
        if shard is not None and not shard.is_empty:
            is_header_full = not shard.has_header_room(entry_bytes)
            if is_header_full:
                self._handed_on.header_budget.overflowed()
            if is_header_full or shard.data_bytes + blob.nbytes > self._settings.shard_bytes:
                self.flush()
                self._finish(lane)
                shard = None
        if shard is None:
            shard = self._lanes[lane] = self._begin_shard(entry_bytes, blob.nbytes)
        shard.begin(blob.dtype)
        return shard

    def _shortest_lane(self) -> int:
        """Return the lane for which the fewest bytes wait; the first one where it has little to do."""
        first = self._lanes[0]
        if first is None or first.queued_bytes < LANE_BYTES:
            return 0
        waiting = [shard.queued_bytes if shard is not None else 0 for shard in self._lanes]
        return waiting.index(min(waiting))

    def _begin_shard(self, entry_bytes: int, nbytes: int) -> ShardWriter:
        if self._settings.room is not None:
            self._settings.room(nbytes)
        self._handed_on.free_space.check(self._directory.parent.parent, nbytes)
        number = len(self._shard_sizes) + len(self._shards)
        header_bytes = self._handed_on.header_budget.reserve(entry_bytes)
        shard = ShardWriter(self._directory, number, header_bytes, self._handed_on.release, self._open_folder)
        self._index.add_first([shard.record])
        return shard

    def _finish(self, lane: int) -> None:
        """Finish a shard of which all is journaled, or will be with the whole index."""
        shard, self._lanes[lane] = self._lanes[lane], None
        assert shard is not None, "a lane has a shard while it is finished"
        begun = time.perf_counter()
        self._handed_on.header_budget.used(shard.header_used)
        try:
            self._shard_sizes[shard.record.number] = shard.finish(self._settings.to_disk)
        except BaseException:
            self._lanes[lane] = shard  # for `abandon`
            raise
        self._journal(shard)
        self._write_seconds += time.perf_counter() - begun
        self._settings.say_finished(self._directory / shard_name(shard.record.number))

    def _finish_shards(self) -> None:
        for lane, shard in enumerate(self._lanes):
            if shard is not None:
                self._finish(lane)

    def _journal(self, shard: ShardWriter) -> None:
        """Add the records of blobs whose bytes are written: before those of their data, which came meanwhile."""
        blobs = shard.take_written()
        self._index.add_first(blob.record for blob in blobs)
        self._index.add(Hash(HASH, blob.hash_of, blob.record.checksum) for blob in blobs if blob.hash_of)
