"""Takes bytes into a checksum."""

from __future__ import annotations

from typing import Any, Final

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
