"""Sizes that cannot work are refused when they are said."""

from __future__ import annotations

import pytest

from aten_dump.errors import StoreError
from aten_dump.store.writing.arena import LEAST_QUEUE_BYTES
from aten_dump.store.writing.settings import WriterSettings


@pytest.mark.parametrize(
    ("queue_bytes", "shard_bytes", "named"),
    [(LEAST_QUEUE_BYTES - 1, 1, "queue_bytes is 4095"), (LEAST_QUEUE_BYTES, 0, "shard_bytes is 0")],
)
def test_sizes_that_are_too_small(queue_bytes: int, shard_bytes: int, named: str) -> None:
    WriterSettings(queue_bytes=LEAST_QUEUE_BYTES, shard_bytes=1)
    with pytest.raises(StoreError, match=named):
        WriterSettings(queue_bytes=queue_bytes, shard_bytes=shard_bytes)
