"""Calls and values are cut into chunks: all of them, none twice."""

from __future__ import annotations

import pytest

from aten_dump.report.html.payload.chunks import CHUNK, chunk_count, chunk_range


@pytest.mark.parametrize(("n", "count"), [(0, 0), (1, 1), (CHUNK, 1), (CHUNK + 1, 2), (3 * CHUNK, 3)])
def test_chunks_are_as_many_as_needed_and_hold_each_position_once(n: int, count: int) -> None:
    assert chunk_count(n) == count
    assert [at for chunk in range(count) for at in chunk_range(chunk, n)] == list(range(n))
    assert all(0 < len(chunk_range(chunk, n)) <= CHUNK for chunk in range(count))


def test_a_chunk_behind_the_last_is_empty() -> None:
    assert len(chunk_range(1, CHUNK)) == 0
