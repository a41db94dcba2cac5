"""Checksums of bytes, and the hash functions that `DumpConfig.hash` may name."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from typing import Any, Final, Protocol

import xxhash

UNLOCKED_BYTES: Final = 2048  # from which on xxhash lets go of Python's lock
_SMALL_BYTES: Final = 64 << 10


def add_to_hash(hash_: Any, data: bytes | memoryview) -> None:
    """Update an xxhash with `data`.

    What is hashed in a few microseconds goes in pieces for which xxhash keeps Python's lock: a thread that has let go
    of it waits for the program, and the program then waits for the thread.
    """
    if len(data) > _SMALL_BYTES:
        hash_.update(data)
        return
    view = memoryview(data)
    for at in range(0, len(view), UNLOCKED_BYTES - 1):
        hash_.update(view[at : at + UNLOCKED_BYTES - 1])


class Hasher(Protocol):
    """Takes the hash of bytes that come in pieces."""

    def update(self, data: Any, /) -> object:
        """Take the next piece."""

    def digest(self) -> bytes:
        """Return the hash of all pieces."""


class _Crc32:
    def __init__(self) -> None:
        self._value = 0

    def update(self, data: Any) -> None:
        self._value = zlib.crc32(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(4, "big")


HASHERS: Final[dict[str, Callable[[], Hasher]]] = {
    "xxh3": xxhash.xxh3_64,
    "md5": lambda: hashlib.md5(usedforsecurity=False),
    "crc32": _Crc32,
    "sha256": hashlib.sha256,
}


def _at_once(begin: Callable[[], Hasher]) -> Callable[[Any], bytes]:
    def digest(data: Any) -> bytes:
        hasher = begin()
        hasher.update(data)
        return hasher.digest()

    return digest


# The same of all bytes at once; xxh3, which small values want by the thousand, in one call.
HASHES: Final[dict[str, Callable[[Any], bytes]]] = {
    **{name: _at_once(begin) for name, begin in HASHERS.items()},
    "xxh3": xxhash.xxh3_64_digest,
}
