"""The hash functions that `DumpConfig.hash` may name."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from typing import Any, Final

import xxhash

HASHES: Final[dict[str, Callable[[Any], bytes]]] = {
    "xxh3": xxhash.xxh3_64_digest,
    "md5": lambda data: hashlib.md5(data, usedforsecurity=False).digest(),
    "crc32": lambda data: zlib.crc32(data).to_bytes(4, "big"),
    "sha256": lambda data: hashlib.sha256(data).digest(),
}
