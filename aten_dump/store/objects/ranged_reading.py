"""Reads parts of objects through a bounded cache, several at a time.

Theory of operation
    An object of a dump never changes once it is there: its tag says that it is still the same. So it is fetched in
    blocks of BLOCK_BYTES, which are kept while there is room for them, in memory. A request takes some 50 ms whatever
    it fetches, and tensors lie in the order in which a program made them: whoever reads blocks one after the other has
    the next ones fetched meanwhile, the more of them the longer it goes on so. The same goes for the indexes of steps
    and ranks that are opened in order, as commands do that go through a dump.
"""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from .object_store import Listed
from .url_path import UrlPath

BLOCK_BYTES: Final = 4 << 20
CACHE_VARIABLE: Final = "ATEN_DUMP_CACHE_BYTES"
_CACHE_BYTES: Final = 256 << 20
_LEAST_CACHE_BYTES: Final = 16 * BLOCK_BYTES
_AHEAD: Final = 8  # blocks
_AT_ONCE: Final = 16

_Key = tuple[str, str | None, int, int]  # URL, tag, number of the block, its bytes
_Place = tuple[int, int]  # step, rank
_INDEX: Final = re.compile(r"(?P<root>.+/step)(?P<step>\d+)/rank(?P<rank>\d+)/index\.msgpack")


class RemoteFile:
    """An object that is open for reading."""

    def __init__(self, path: UrlPath) -> None:
        """Take an object.

        Raises:
            FileNotFoundError: there is none.
            ObjectStoreError: the store does not say.
        """
        listed = path.listed()
        if listed is None:
            raise FileNotFoundError(f"{path} does not exist")
        self.path = path
        self.size = listed.nbytes
        self.listed: Listed = listed

    def read_into(self, room: memoryview, at: int) -> int:
        """Read bytes from `at` on into `room`; returns how many, 0 at the end."""
        if at >= self.size:
            return 0
        number, start = divmod(at, BLOCK_BYTES)
        part = _cache().block(self, number)[start : start + len(room)]
        room[: len(part)] = part
        return len(part)

    def read(self, nbytes: int, at: int) -> bytearray:
        """Return so many bytes from `at` on, fewer at the end."""
        data = bytearray(max(0, min(nbytes, self.size - at)))
        room = memoryview(data)
        if room:
            _cache().begin(self, range(at // BLOCK_BYTES, (at + len(room) - 1) // BLOCK_BYTES + 1))
        while room:
            got = self.read_into(room, at)
            room, at = room[got:], at + got
        return data

    def close(self) -> None:
        """Do nothing: there is no connection of its own."""


class _Cache:
    """Blocks that were fetched or are on their way, the ones used last at the end."""

    def __init__(self) -> None:
        asked = os.environ.get(CACHE_VARIABLE, "")
        self._room = max(int(asked) if asked.isdecimal() else _CACHE_BYTES, _LEAST_CACHE_BYTES)
        self._bytes = 0  # of the blocks below
        self._walk = _Walk()
        self._blocks: OrderedDict[_Key, Future[memoryview]] = OrderedDict()
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(_AT_ONCE, "aten_dump-fetch")

    def block(self, file: RemoteFile, number: int) -> memoryview:
        """Return a block, and begin to fetch the next ones if those before it were read."""
        before = 0
        with self._lock:
            while before < _AHEAD and _key(file, number - before - 1) in self._blocks:
                before += 1
        self.begin(file, range(number, number + before + 1))
        if number == 0:
            for path in self._walk.next_after(file.path):
                if path.listed() is not None:
                    self.begin(RemoteFile(path), range(1))
        with self._lock:
            found = self._blocks.get(_key(file, number)) or self._begin(file, number)
        try:
            return found.result()
        except BaseException:
            with self._lock:
                if self._blocks.pop(_key(file, number), None) is not None:  # the next read tries again
                    self._bytes -= _nbytes(file, number)
            raise

    def begin(self, file: RemoteFile, numbers: range) -> None:
        """Begin to fetch blocks of a file, as many as half the cache has room for."""
        last = (file.size - 1) // BLOCK_BYTES
        with self._lock:
            for number in numbers[: self._room // BLOCK_BYTES // 2]:
                if number <= last:
                    self._begin(file, number)

    def _begin(self, file: RemoteFile, number: int) -> Future[memoryview]:
        key = _key(file, number)
        found = self._blocks.get(key)
        if found is None:
            nbytes = _nbytes(file, number)
            while self._blocks and self._bytes + nbytes > self._room:
                self._bytes -= self._blocks.popitem(last=False)[0][3]
            self._bytes += nbytes
            found = self._blocks[key] = self._threads.submit(_fetch, file, number)
        self._blocks.move_to_end(key)
        return found


def _key(file: RemoteFile, number: int) -> _Key:
    return str(file.path), file.listed.tag, number, _nbytes(file, number)


def _nbytes(file: RemoteFile, number: int) -> int:
    return min(BLOCK_BYTES, file.size - number * BLOCK_BYTES)


def _fetch(file: RemoteFile, number: int) -> memoryview:
    start = number * BLOCK_BYTES
    return file.path.store.get(file.listed.key, start, start + _nbytes(file, number), file.listed.tag)


class _Walk:
    """Guesses from the indexes that were opened which come next."""

    def __init__(self) -> None:
        self._last: _Place = (0, 0)
        self._moved: _Place = (0, 0)  # from the one before to the last
        self._times = 0  # in a row

    def next_after(self, path: UrlPath) -> list[UrlPath]:
        """Return the next ones: none until the same move was made twice, then one more with each."""
        match = _INDEX.fullmatch(str(path))
        if match is None:
            return []
        step, rank = int(match["step"]), int(match["rank"])
        moved = step - self._last[0], rank - self._last[1]
        if moved == (0, 0):
            return []
        self._times = min(self._times + 1, _AHEAD) if moved == self._moved else 0
        self._last, self._moved = (step, rank), moved
        places = [(step + n * moved[0], rank + n * moved[1]) for n in range(1, self._times + 1)]
        return [UrlPath(f"{match['root']}{s}/rank{r}/index.msgpack") for s, r in places if s >= 0 and r >= 0]


_made: list[_Cache] = []  # one, or none: a forked child has no threads of its parent's
_made_lock: Final = threading.Lock()
os.register_at_fork(after_in_child=_made.clear)


def _cache() -> _Cache:
    with _made_lock:
        if not _made:
            _made.append(_Cache())
        return _made[0]
