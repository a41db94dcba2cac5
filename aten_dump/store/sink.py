"""What capture needs from whoever keeps its records: one small protocol.

`store.writing.writer.Writer` keeps them in files; `tests.store.memory_sink.MemorySink` in lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from .records import RECORD_TYPES, Header

# fill(offset, address, nbytes): copy bytes [offset, offset + nbytes) of the blob to host memory at
# `address`, on the calling thread. It may return a function that the writer calls, on its own thread,
# to wait until the copy is complete (an accelerator's event); None when it is complete already.
# `offset` and `address` are multiples of 64; so is `nbytes`, except in the last piece of a blob.
Fill = Callable[[int, int, int], "Callable[[], None] | None"]
Emit = Callable[[tuple[Any, ...]], None]  # keeps one record, which may be the bare tuple of its fields
# Returns records. It is called once, on the writer's thread where the sink has one.
Job = Callable[[], "Iterable[tuple[Any, ...]]"]


def named(record: tuple[Any, ...]) -> Any:
    """Return a record as its NamedTuple: those made for each op are the bare tuples of their fields."""
    kind = RECORD_TYPES.get(record[0])
    return record if kind is None or type(record) is kind else kind(*record)


class Sink(Protocol):
    """Keeper of records and bytes. All methods may be called from several threads.

    Any method may raise StoreError, also for an earlier failure on the writer's own thread.
    """

    def begin_step(self, header: Header) -> None:
        """Start a step; nothing is created on disk before its first record."""

    def emit(self, record: tuple[Any, ...]) -> None:
        """Keep one record, as it is now; never waits for a file."""

    def wait_for_room(self) -> None:
        """Wait while too many records wait to be written; to be called every thousand calls or so."""

    def store(self, dtype: str, shape: list[int], nbytes: int, fill: Fill, hash_of: int = 0) -> int:
        """Keep `nbytes` bytes and return the blob's id; 0 when the byte budget is spent.

        With `hash_of`, a value whose elements in row-major order are these bytes, its Hash record is kept too, of
        their xxh3, which is taken anyway. Calls `fill` for consecutive pieces before it returns; waits when the queue
        is full. Zero bytes are allowed: a blob of nbytes 0 is kept and `fill` is not called.
        """

    def store_bytes(self, dtype: str, shape: list[int], nbytes: int, get: Callable[[], bytes]) -> int:
        """Keep bytes that are in host memory already, and stay as they are until `get` is called, as a `Job` is."""

    def later(self, job: Job, nbytes: int) -> None:
        """Keep the records that `job` returns, which holds `nbytes` bytes of memory until it was called.

        They come behind everything said before. May wait while the jobs hold too much.
        """

    def on_tick(self, tick: Callable[[], None] | None) -> None:
        """Call `tick` now and then while a step is open: it may send what waits elsewhere, and never waits."""

    def end_step(self, calls: int, values: int, seconds: dict[str, float]) -> None:
        """Complete the step; the files are finished in the background."""

    def drop_step(self) -> None:
        """End a step in which nothing was recorded, and leave no trace of it where none is on file."""

    def settle(self, *, wait: bool) -> None:
        """Start writing what was passed on; `wait` for the records too, where the disk is not too slow for that."""

    def flush(self) -> None:
        """Wait until all that was said is on file."""

    def close(self) -> None:
        """Wait until everything is on file; let go of files and threads. Idempotent."""
