"""The one place where the reader meets the store: records of an index and bytes of shards of one step and rank."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from ...store import records
from ...store.index_reader import read_index
from ...store.raw_rows import split_records
from ...store.regular_files import size_inside
from ...store.shard_reader import ShardReader
from ...store.shards import partial_name, shard_name
from .tables import Tables


class Source:
    """The files of one step and rank."""

    def __init__(self, directory: Path, verify: bool = True) -> None:
        """Take a folder; with `verify`, bytes are compared with their checksums when they are first read."""
        self.directory = directory
        self.verify = verify
        self.like: Tables | None = None  # of an index that may say the same, as that of the step before
        self._shards: ShardReader | None = None

    def tables(self, where: str) -> Tables:
        """Read the index; `where` names it in errors."""
        data = read_index(self.directory)
        repeated = None if self.like is None else self.like.repeated_by(data, where)
        return repeated or Tables(data, where)

    def changed_tables(self, where: str, changed: Iterable[tuple[Any, ...]], kinds: Iterable[int]) -> Tables:
        """Read the index with other records instead of those of some kinds."""
        data = read_index(self.directory)
        packed = b"".join(msgpack.packb(tuple(record)) for record in changed)
        rows, _ = split_records(packed, where)
        return Tables(replace(data, rows={**data.rows, **{kind: rows[kind] for kind in kinds}}), where)

    def read(self, tables: Tables, blob: records.Blob, start: int, stop: int) -> NDArray[np.uint8]:
        """Read bytes [start, stop) of a blob, into memory of their own."""
        if self._shards is None:
            self._shards = ShardReader(self.directory, tables.shards.values(), self.verify)
        return self._shards.read(blob, start, stop)

    def lost_blobs(self, tables: Tables) -> frozenset[int]:
        """Return the ids of blobs that reach beyond the end of their shard."""
        ends = {shard.number: self._size(shard.number) - shard.header_bytes for shard in tables.shards.records()}
        blobs = tables.blobs.records()
        return frozenset(blob.id for blob in blobs if blob.offset + blob.nbytes > ends.get(blob.shard, -1))

    def _size(self, number: int) -> int:
        finished = size_inside(self.directory / shard_name(number))
        return finished if finished is not None else size_inside(self.directory / partial_name(number)) or 0
