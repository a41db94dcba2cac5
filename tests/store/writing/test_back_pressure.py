"""What waits for the disk is bounded: in records, in bytes, and so in what a kill can take."""

from __future__ import annotations

import mmap
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from aten_dump.errors import StoreError
from aten_dump.store import records as r
from aten_dump.store.index_reader import read_index
from aten_dump.store.writing.step_files import QUEUED_BYTES
from aten_dump.store.writing.writer_thread import WAITING_RECORDS
from tests.checkout import ROOT
from tests.store.recording import RANK, call, header, small_step, writer

EVERY = 1024  # records between two calls of wait_for_room


def test_records_wait_for_room_while_the_disk_is_slow_and_the_seconds_are_counted(tmp_path: Path) -> None:
    gate = threading.Event()
    sink = writer(tmp_path)
    sink.begin_step(header())
    sink.store("U8", [64], 64, lambda offset, address, nbytes: gate.wait)  # the writer's thread stands still here
    emitted: list[int] = []

    def emit() -> None:
        for number in range(1, 3 * WAITING_RECORDS + 1):
            sink.emit(call(number))
            emitted.append(number)
            if number % EVERY == 0:
                sink.wait_for_room()

    thread = threading.Thread(target=emit)
    thread.start()
    while len(emitted) < WAITING_RECORDS:
        time.sleep(0.01)
    time.sleep(0.3)
    assert thread.is_alive()
    assert WAITING_RECORDS <= len(emitted) <= WAITING_RECORDS + EVERY
    assert sink.waiting_records == len(emitted) + 1, "the header, too"
    gate.set()
    thread.join(60)
    assert not thread.is_alive()
    sink.end_step(len(emitted), 0, {})
    sink.close()
    assert sink.waiting_records == 0
    data = read_index(tmp_path / RANK)
    assert [row[1] for row in data.rows[r.CALL]] == emitted
    assert data.commit is not None
    assert data.commit.seconds["wait"] > 0.1, "of the 0.3 for which it stood still, or less where it came to it late"


def test_the_wait_belongs_to_its_step(tmp_path: Path) -> None:
    sink = writer(tmp_path)
    sink.begin_step(header())
    gate = threading.Event()
    sink.store("U8", [64], 64, lambda offset, address, nbytes: gate.wait)  # the writer's thread stands still here
    for number in range(1, WAITING_RECORDS + 1024):
        sink.emit(call(number))
    threading.Timer(0.1, gate.set).start()
    sink.wait_for_room()
    assert sink.waiting_records <= WAITING_RECORDS // 2
    sink.end_step(0, 0, {})
    small_step(sink, step=1)
    sink.close()
    first, second = (read_index(tmp_path / f"step{step}/rank0").commit for step in (0, 1))
    assert first is not None and second is not None
    assert first.seconds["wait"] > 0
    assert second.seconds["wait"] == 0


def test_an_error_of_the_disk_is_raised_instead_of_waiting(tmp_path: Path) -> None:
    sink = writer(tmp_path)
    (tmp_path / "step0").write_text("a file where a folder must be")
    sink.begin_step(header())
    with pytest.raises(StoreError, match="cannot write step 0 of rank 0"):  # noqa: PT012
        while True:
            for number in range(EVERY):
                sink.emit(call(number))
            sink.wait_for_room()
    sink.close()


AT_FULL_SPEED = """
import mmap, struct, sys
from pathlib import Path
from tests.store.recording import *
sink = writer(Path(sys.argv[1]) / "dump", queue_bytes=16 << 20)
with open(sys.argv[1] + "/handed_over", "r+b") as file:
    handed_over = mmap.mmap(file.fileno(), 16)  # stays as it is when the process is killed
array = noise(int(sys.argv[2]))
pack, number, nbytes = struct.Struct("qq").pack_into, 0, 0
sink.begin_step(header())
while True:
    number += 1
    if array.nbytes:
        store(sink, array, "U8")
        nbytes += array.nbytes
    sink.emit((r.CALL, number, 0, 1, number, 0, 0, 0, number * 10, 5, number, 7, 3, 0, [[0, number], [0, number + 1]]))
    pack(handed_over, 0, number, nbytes)
    if number % 1024 == 0:
        sink.wait_for_room()
"""


@pytest.mark.parametrize(("blob_bytes", "least"), [(0, 4 * WAITING_RECORDS), (300_000, 500)])
def test_kill_9_at_full_speed_takes_no_more_than_may_wait(tmp_path: Path, blob_bytes: int, least: int) -> None:
    progress = tmp_path / "handed_over"
    progress.write_bytes(bytes(16))
    process = subprocess.Popen([sys.executable, "-c", AT_FULL_SPEED, str(tmp_path), str(blob_bytes)], cwd=ROOT)
    with open(progress, "r+b") as file, mmap.mmap(file.fileno(), 16) as handed_over:
        while struct.unpack("qq", handed_over[:])[0] < least:
            assert process.poll() is None
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        number, nbytes = struct.unpack("qq", handed_over[:])
    data = read_index(tmp_path / "dump" / RANK)
    on_file = len(data.rows[r.CALL])
    assert [row[1] for row in data.rows[r.CALL]] == list(range(1, on_file + 1))
    bytes_on_file = sum(row[4] for row in data.rows[r.BLOB])
    record_bytes = data.good_bytes / on_file
    # What waits, what came since the last look, and what the writer's thread has in its hands.
    assert number - on_file <= WAITING_RECORDS + EVERY + 1024 + 1
    assert nbytes - bytes_on_file <= (16 << 20) + QUEUED_BYTES + 2 * blob_bytes
    assert nbytes - bytes_on_file + (number - on_file) * record_bytes <= 64 << 20
    print(f"lost {number - on_file} of {number} records, {nbytes - bytes_on_file} of {nbytes} bytes")
