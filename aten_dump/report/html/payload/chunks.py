"""How calls and values are cut into sections that the page loads when it needs them."""

from __future__ import annotations

from typing import Final

CHUNK: Final = 4096


def chunk_count(n: int) -> int:
    """Return into how many chunks n calls or values go."""
    return -(-n // CHUNK)


def chunk_range(chunk: int, n: int) -> range:
    """Return the positions of a chunk."""
    return range(chunk * CHUNK, min((chunk + 1) * CHUNK, n))
