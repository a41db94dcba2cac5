"""Jobs for the writer's thread: in order, bounded, and with ticks for what waits elsewhere."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import xxhash

from aten_dump.errors import StoreError
from aten_dump.store import records as r
from aten_dump.store.index_reader import read_index
from aten_dump.store.sink import Sink
from aten_dump.store.writing.writer_thread import JOB_BYTES
from tests.store.memory_sink import MemorySink
from tests.store.recording import RANK, fill_from, header, noise, store, writer


def say(sink: Sink, number: int) -> None:
    sink.emit(r.Text(r.TEXT, number, str(number)))


def test_records_of_a_job_stand_where_it_was_said(tmp_path: Path) -> None:
    """Files and memory have the same records in the same order."""
    sink, memory = writer(tmp_path), MemorySink()
    for target in (sink, memory):
        target.begin_step(header())
        say(target, 1)
        target.later(lambda: [r.Text(r.TEXT, 2, "2"), r.Text(r.TEXT, 3, "3")], 10)
        say(target, 4)
        blob = target.store_bytes("U8", [5], 5, lambda: b"hello")
        target.later(lambda blob=blob: [r.Data(r.DATA, 9, blob, 0, 0)], 0)  # type: ignore[misc]
        target.end_step(0, 0, {})
        target.close()
    data = read_index(tmp_path / RANK)
    assert [row[1] for row in data.rows[r.TEXT]] == [1, 2, 3, 4]
    assert list(data.rows[r.DATA]) == [tuple(record) for record in memory.of(r.DATA)] == [(r.DATA, 9, 1, 0, 0)]
    assert memory.blobs == {1: b"hello"}
    assert data.commit is not None and data.commit.blob_bytes == 5


def test_hash_of_stored_bytes_is_their_checksum(tmp_path: Path) -> None:

    array = noise(3 << 20)
    for sink in (writer(tmp_path), memory := MemorySink()):
        sink.begin_step(header())

        sink.store("U8", [array.nbytes], array.nbytes, fill_from(array), 7)
        store(sink, array, "U8")
        sink.end_step(0, 0, {})
        sink.close()
    expected = (r.HASH, 7, xxhash.xxh3_64_digest(array.tobytes()))
    assert list(read_index(tmp_path / RANK).rows[r.HASH]) == [expected]
    assert [tuple(record) for record in memory.of(r.HASH)] == [expected]


def test_bytes_count_against_the_budget(tmp_path: Path) -> None:
    sink = writer(tmp_path, max_bytes=10)
    sink.begin_step(header())
    assert [sink.store_bytes("U8", [6], 6, lambda: b"abcdef") for _ in range(2)] == [1, 0]
    sink.end_step(0, 0, {})
    sink.close()
    (note,) = read_index(tmp_path / RANK).rows[r.NOTE]
    assert note[1] == "max_bytes"


def test_jobs_that_hold_too_much_make_their_thread_wait(tmp_path: Path) -> None:
    sink = writer(tmp_path)
    sink.begin_step(header())
    go = threading.Event()
    ran: list[int] = []

    def job(number: int) -> list[r.Text]:
        go.wait(30)
        ran.append(number)
        return []

    sink.later(lambda: job(0), JOB_BYTES + 1)
    said = threading.Event()

    def more() -> None:
        sink.later(lambda: job(1), 1)
        said.set()

    thread = threading.Thread(target=more)
    thread.start()
    assert not said.wait(0.3)
    go.set()
    thread.join(30)
    assert said.is_set() and ran[0] == 0
    sink.end_step(0, 0, {})
    sink.close()
    assert ran == [0, 1]
    commit = read_index(tmp_path / RANK).commit
    assert commit is not None and commit.seconds["wait"] > 0.2 and "later" in commit.seconds


def test_a_job_that_fails_is_a_store_error(tmp_path: Path) -> None:
    sink = writer(tmp_path)
    sink.begin_step(header())
    sink.later(lambda: [][0], 0)
    sink.end_step(0, 0, {})
    with pytest.raises(StoreError, match="IndexError"):
        sink.close()


def test_ticks_only_while_a_step_is_open(tmp_path: Path) -> None:
    sink = writer(tmp_path)
    ticks: list[str] = []

    def tick() -> None:
        ticks.append(threading.current_thread().name)
        if len(ticks) == 1:
            sink.store_bytes("U8", [3], 3, lambda: b"abc")
            sink.later(lambda: [r.Text(r.TEXT, 1, "ticked")], 3)

    sink.on_tick(tick)
    time.sleep(0.2)
    assert not ticks
    sink.begin_step(header())
    deadline = time.monotonic() + 20
    while len(ticks) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    sink.on_tick(None)
    sink.end_step(0, 0, {})
    sink.close()
    assert set(ticks) == {"aten_dump-writer-0"}
    data = read_index(tmp_path / RANK)
    assert [row[2] for row in data.rows[r.TEXT]] == ["ticked"]
    assert data.commit is not None and data.commit.blobs == 1


def test_a_tick_and_a_thread_that_waits_for_room_do_not_wait_for_each_other(tmp_path: Path) -> None:
    """store waits for the writer's thread with the lock held that a tick's store_bytes takes."""
    sink = writer(tmp_path, queue_bytes=1 << 16)
    sink.begin_step(header())
    sink.on_tick(lambda: sink.store_bytes("U8", [3], 3, lambda: b"abc") and None)
    array = noise(1 << 20)
    for _ in range(40):
        store(sink, array, "U8")
    sink.on_tick(None)
    sink.end_step(0, 0, {})
    sink.close()
    commit = read_index(tmp_path / RANK).commit
    assert commit is not None and commit.blobs >= 40


def test_a_record_of_a_job_that_cannot_be_packed_does_not_take_the_others_along(tmp_path: Path) -> None:
    sink = writer(tmp_path)
    sink.begin_step(header())
    sink.later(lambda: [(r.TEXT, 1, "a"), (r.TEXT, 2, 1 << 70), (r.TEXT, 3, "c")], 0)
    sink.end_step(0, 0, {})
    sink.close()
    data = read_index(tmp_path / RANK)
    assert [row[1] for row in data.rows[r.TEXT]] == [1, 3]
    assert [note.code for note in data.records(r.NOTE)] == ["unwritable_record"]
