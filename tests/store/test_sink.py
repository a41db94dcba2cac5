"""MemorySink keeps what a Writer would."""

from __future__ import annotations

from aten_dump.store import records as r
from aten_dump.store.sink import Sink, named
from tests.store.memory_sink import MemorySink
from tests.store.recording import header, noise, small_step, store


def test_a_step_in_memory() -> None:
    sink = MemorySink()
    as_sink: Sink = sink
    small_step(as_sink, calls=2)
    assert [record[0] for record in sink.records] == [
        r.HEADER, r.TEXT, r.TEXT, r.OP,
        r.STORAGE, r.VALUE, r.BLOB, r.DATA, r.CALL,
        r.STORAGE, r.VALUE, r.BLOB, r.DATA, r.CALL,
        r.COMMIT,
    ]  # fmt: skip
    assert sink.of(r.COMMIT)[0][1:5] == (2, 2, 2, 12)
    assert {k: len(v) for k, v in sink.blobs.items()} == {1: 4, 2: 8}
    sink.close()
    assert sink.closed


def test_pieces_and_budget() -> None:
    sink = MemorySink(max_bytes=1000, piece_bytes=64)
    sink.begin_step(header())
    assert store(sink, noise(999), "U8") == 1
    assert sink.blobs[1] == noise(999).tobytes()
    assert store(sink, noise(2), "U8") == 0
    assert store(sink, noise(1), "U8") == 0


def test_a_bare_tuple_gets_the_names_of_its_fields() -> None:
    bare = (r.STORAGE, 3, 64, 1)
    assert named(bare) == r.Storage(*bare)
    assert named(bare).nbytes == 64
    assert named(note := r.Note(r.NOTE, "code", "text", 1)) is note
    assert named(unknown := (99, 1)) is unknown
