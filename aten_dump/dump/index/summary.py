"""What one step and rank holds, read from the two ends of its index: quick also for thousands of them."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ...errors import StoreError
from ...store import records
from ...store.index_ends import END_BYTES, find_commit, read_header
from ...store.stored_files import open_stored, sizes_in
from ...store.writing.index_writer import INDEX_FILE

_HEAD_BYTES: Final = 1 << 16
_TAIL_BYTES: Final = (1 << 10, END_BYTES)  # tried in turn: most commit records are short


@dataclass(frozen=True, slots=True)
class Summary:
    """Sizes of one step and rank; `commit` is None when the step is not complete."""

    header: records.Header | None
    commit: records.Commit | None
    index_bytes: int
    shard_bytes: int
    shards: int


def summarize(directory: Path) -> Summary:
    """Read the header and the commit record of an index, and the sizes of the files.

    Raises:
        StoreError: a file cannot be read.
    """
    path = directory / INDEX_FILE
    try:
        with contextlib.closing(open_stored(path)) as file:
            size = file.size
            head = bytes(file.read(_HEAD_BYTES, 0))
            commit = None
            for nbytes in _TAIL_BYTES:
                start = max(0, size - nbytes)
                commit = commit or find_commit(bytes(file.read(size - start, start)), start)
        sizes = shard_sizes(directory)
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise StoreError(error.errno, f"cannot read {path}: {error.strerror}") from error
    return Summary(read_header(head), commit, size, sum(sizes), len(sizes))


def shard_sizes(directory: Path) -> list[int]:
    """Return the bytes of each shard of a step and rank."""
    return [nbytes for name, nbytes in sizes_in(directory).items() if name.startswith("shard-")]
