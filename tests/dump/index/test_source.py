"""Where the reader meets the store: tables of an index, bytes of shards."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from aten_dump.dump.index.source import Source
from aten_dump.errors import MissingDataError
from aten_dump.store import records as r
from tests.dump.building import Builder, value


def opened(builder: Builder, **options: object) -> Source:
    builder.finish(**options)  # type: ignore[arg-type]
    return Source(builder.directory)


def test_bytes_of_a_blob(builder: Builder) -> None:
    builder.blob(b"before")
    number = builder.blob(bytes(range(10)))
    source = opened(builder)
    tables = source.tables("here")
    found = source.read(tables, tables.blobs[number], 2, 5)
    assert (bytes(found), type(found)) == (bytes([2, 3, 4]), np.ndarray)
    found[0] = 99
    assert bytes(source.read(tables, tables.blobs[number], 2, 3)) == bytes([2]), "what is read is a copy"


def test_lost_blobs_reach_beyond_the_end_of_their_shard(builder: Builder) -> None:
    for _ in range(3):
        builder.blob(b"12345678")
    source = opened(builder, commit=False, lose_bytes=0)
    assert len(source.lost_blobs(source.tables("here"))) == 0
    source = opened(builder, commit=False, lose_bytes=1)
    assert len(source.lost_blobs(source.tables("here"))) == 1
    source = opened(builder, commit=False, lose_bytes=9)
    assert len(source.lost_blobs(source.tables("here"))) == 2
    for shard in builder.directory.glob("shard-*"):
        shard.unlink()
    assert len(source.lost_blobs(source.tables("here"))) == 3


def test_an_empty_blob_of_a_shard_that_is_gone_is_lost(builder: Builder) -> None:
    builder.blob(b"")
    source = opened(builder)
    assert len(source.lost_blobs(source.tables("here"))) == 0
    (builder.directory / "shard-00000.safetensors").unlink()
    assert len(source.lost_blobs(source.tables("here"))) == 1


def test_records_of_some_kinds_in_place_of_others(builder: Builder) -> None:
    x = builder.value(torch.zeros(2))
    builder.call(builder.op("aten", "aten::exp", "Aten", "exp"), args=[value(x)])
    source = opened(builder)
    call = source.tables("here").calls[0]
    changed = source.changed_tables("there", [call._replace(n=5, args=())], [r.CALL, r.VALUE, r.DATA])
    assert [one.n for one in changed.calls] == [5]
    assert (len(changed.values), len(changed.ops), changed.where) == (0, 1, "there")


def test_no_index(builder: Builder) -> None:
    with pytest.raises(MissingDataError, match=r"index\.msgpack does not exist"):
        Source(builder.directory).tables("here")
