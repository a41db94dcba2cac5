"""A checksum is that of all bytes, however they are taken in."""

from __future__ import annotations

import pytest
import xxhash

from aten_dump.store.writing.checksums import UNLOCKED_BYTES, add_to_hash
from tests.store.recording import noise


@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize(
    "size", [0, 1, UNLOCKED_BYTES - 1, UNLOCKED_BYTES, 3 * UNLOCKED_BYTES, 65_535, 65_536, 65_537, 200_000]
)
def test_the_hash_is_that_of_all_bytes(size: int, before: int) -> None:
    data = bytes(noise(size + before))
    found = xxhash.xxh3_64(data[:before])
    add_to_hash(found, memoryview(data)[before:])
    assert found.digest() == xxhash.xxh3_64_digest(data)
