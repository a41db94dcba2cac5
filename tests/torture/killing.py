"""Programs that are killed at any moment while they write a dump: what was committed stays, what was begun can be read."""

from __future__ import annotations

import random
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

from aten_dump.store import records as r
from aten_dump.store.checking.verification import verify
from aten_dump.store.index_reader import read_index
from aten_dump.store.recovery import recover
from aten_dump.store.shard_reader import ShardReader
from tests.forked import FORKS
from tests.store.recording import bare_value, begin, call, noise, store, writer


def record_for_ever(folder: Path, told: Connection) -> None:
    """Write steps until somebody kills this process."""
    sink = writer(folder, queue_bytes=1 << 20, shard_bytes=1 << 18)
    told.send("running")
    for step in range(10_000):
        begin(sink, step)
        for number in range(1, 30):
            sink.emit(bare_value(number))
            blob = store(sink, noise(1 + number * 7919 % 20_000, number + step), "U8")
            sink.emit(r.Data(r.DATA, number, blob, 0, 0))
            sink.emit(call(number, args=[[0, number]]))
        sink.end_step(29, 29, {})


def kill_one(folder: Path, random: random.Random) -> tuple[int, int]:
    """Kill a program; return how many tensors were read, and how many of them were wrong."""
    told, tells = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=record_for_ever, args=(folder, tells))
    process.start()
    assert told.recv() == "running"
    clock = (~(process.pid or 0) << 3) | 2  # of the time that the process has run, as clock_getcpuclockid(3) makes it
    end = time.clock_gettime(clock) + random.random() * random.choice((0.01, 0.1, 0.5))
    while time.clock_gettime(clock) < end and process.is_alive():
        time.sleep(0.001)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL, "it ended before"
    for end in (told, tells, process):
        end.close()
    read = wrong = 0
    ranks = sorted(folder.glob("step*/rank0"), key=lambda path: int(path.parent.name[4:]))
    for rank in ranks:
        if not (rank / "index.msgpack").exists():  # a short step is written whole at its end, its index last
            assert rank == ranks[-1] or not list(rank.glob("shard-*")), "bytes without an index"
            continue
        before = read_index(rank)
        count, bad = _tensors(rank)
        if before.committed:
            assert count == 29, f"{rank} is committed and has {count} tensors"
        report = recover(rank)
        assert report.committed and not report.lost_blobs, report.message
        assert verify(rank) == []
        assert _tensors(rank) == (count, bad)
        read, wrong = read + count, wrong + bad
    return read, wrong


def _tensors(rank: Path) -> tuple[int, int]:
    data = read_index(rank)
    step = int(rank.parent.name[4:])
    reader = ShardReader(rank, data.rows[r.SHARD])
    blobs = {blob.id: blob for blob in data.records(r.BLOB)}
    found = [(record.value, blobs[record.blob]) for record in data.records(r.DATA) if record.blob in blobs]
    expected = (noise(1 + value * 7919 % 20_000, value + step) for value, _ in found)
    return len(found), sum(
        reader.read(blob).tobytes() != right.tobytes() for (_, blob), right in zip(found, expected, strict=True)
    )
