"""Reused host memory in which bytes wait for the writer's thread.

Theory of operation
    Memory is a few large chunks, made when first needed, never more than the queue's byte budget, and reused: a
    fresh page costs more than the copy into it. One thread at a time reserves pieces (the Writer's store
    lock sees to that); the writer's thread releases them. A chunk is refilled from its start as soon as
    all its pieces are released; when there is none to fill, `reserve` waits and the time is counted. It holds no lock
    while it waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ..shards import ALIGNMENT
from ..threads.bell import Bell

CHUNK_BYTES: Final = 16 << 20
LEAST_QUEUE_BYTES: Final = 4096
_LOOK_SECONDS: Final = 0.1  # between looks whether there is a chunk: a backstop, the bell is rung

Allocate = Callable[[int], "NDArray[np.uint8]"]
Waiting = Callable[[], AbstractContextManager[Callable[[], None]]]


class Chunk:
    """A stretch of memory, its data 64-byte aligned."""

    __slots__ = ("address", "outstanding", "size", "used", "view")

    def __init__(self, size: int, allocate: Allocate) -> None:
        array = allocate(size + ALIGNMENT)
        shift = -array.ctypes.data % ALIGNMENT
        self.address: int = array.ctypes.data + shift
        self.view = array.data[shift : shift + size]
        self.size = size
        self.used = 0  # touched by the reserving thread only
        self.outstanding = 0  # pieces not yet released; under the arena's lock


def fresh_memory(nbytes: int) -> NDArray[np.uint8]:
    """Allocate pageable memory."""
    return np.empty(nbytes, np.uint8)


class Arena:
    """Gives out pieces of chunks, at most `queue_bytes` in all."""

    def __init__(self, queue_bytes: int, waiting: Waiting, allocate: Allocate | None = None) -> None:
        """Make an empty arena.

        Args:
            queue_bytes: most bytes that it takes.
            waiting: a block to wait in; the function that it gives wakes the writer, or raises when waiting is no use.
            allocate: makes its memory.
        """
        self._chunk_bytes = min(CHUNK_BYTES, queue_bytes // 4 // ALIGNMENT * ALIGNMENT)
        self._most_chunks = queue_bytes // (self._chunk_bytes + ALIGNMENT)
        self._allocate = allocate or fresh_memory
        self._waiting = waiting
        self._chunks = 0
        self._free: list[Chunk] = []
        self._current: Chunk | None = None
        self._lock = threading.Lock()  # of the chunks; held for microseconds
        self._room = Bell()
        self.waited_seconds = 0.0

    @property
    def chunk_bytes(self) -> int:
        """Bytes of one chunk: the longest piece."""
        return self._chunk_bytes

    @property
    def allocated_bytes(self) -> int:
        """Bytes of memory held; never above queue_bytes."""
        return self._chunks * (self._chunk_bytes + ALIGNMENT)

    def reserve(self, wanted: int) -> tuple[Chunk, int, int]:
        """Return (chunk, start, nbytes) with nbytes <= wanted; less than wanted at the end of a chunk.

        The piece counts as outstanding until `release`.
        """
        piece = self._cut(wanted)
        if piece is not None:
            return piece
        begun = time.perf_counter()
        try:
            with self._waiting() as look:
                while piece is None:
                    look()
                    self._room.wait(_LOOK_SECONDS)
                    piece = self._cut(wanted)
            return piece
        finally:
            self.waited_seconds += time.perf_counter() - begun

    def release(self, chunks: list[Chunk]) -> None:
        """Give back one piece of each chunk listed."""
        with self._lock:
            for chunk in chunks:
                chunk.outstanding -= 1
                if chunk.outstanding == 0 and chunk is not self._current:
                    self._free.append(chunk)
        self._room.ring()

    def wake_waiting(self) -> None:
        """Let a waiting `reserve` look again."""
        self._room.ring()

    def _cut(self, wanted: int) -> tuple[Chunk, int, int] | None:
        """Cut a piece off the current chunk, or off the next one; None when there is none now."""
        with self._lock:
            chunk = self._current
            if chunk is not None and chunk.outstanding == 0:
                chunk.used = 0
            left = chunk.size - chunk.used if chunk is not None else 0
            # A small rest is not worth cutting a blob in two.
            if chunk is None or left == 0 or (left < wanted and left < self._chunk_bytes // 8):
                chunk = self._next_chunk()
                if chunk is None:
                    return None
                left = chunk.size
            start = chunk.used
            nbytes = min(wanted, left)
            chunk.used = min(start + -(-nbytes // ALIGNMENT) * ALIGNMENT, chunk.size)
            chunk.outstanding += 1
            return chunk, start, nbytes

    def _next_chunk(self) -> Chunk | None:
        """Retire the current chunk and return an empty one; None when there is none. Called with the lock held."""
        retired, self._current = self._current, None
        if retired is not None and retired.outstanding == 0:
            self._free.append(retired)
        if self._free:
            chunk = self._free.pop()
            chunk.used = 0
        elif self._chunks < self._most_chunks:
            chunk = Chunk(self._chunk_bytes, self._allocate)
            self._chunks += 1
        else:
            return None
        self._current = chunk
        return chunk
