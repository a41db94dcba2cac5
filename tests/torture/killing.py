"""Programs that are killed at any moment while they write a dump: what was committed stays, what was begun can be read."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

from aten_dump.store import records as r
from aten_dump.store.checking.verification import verify
from aten_dump.store.index_reader import read_index
from aten_dump.store.recovery import recover
from aten_dump.store.shard_reader import ShardReader
from tests.checkout import ROOT
from tests.store.recording import noise

PROGRAM = """
import sys
from pathlib import Path
from tests.store.recording import *
sink = writer(Path(sys.argv[1]), queue_bytes=1 << 20, shard_bytes=1 << 18)
print("running", flush=True)
for step in range(10_000):
    begin(sink, step)
    for number in range(1, 30):
        sink.emit(bare_value(number))
        blob = store(sink, noise(1 + number * 7919 % 20_000, number + step), "U8")
        sink.emit(r.Data(r.DATA, number, blob, 0, 0))
        sink.emit(call(number, args=[[0, number]]))
    sink.end_step(29, 29, {})
"""


def kill_one(folder: Path, random: random.Random) -> tuple[int, int]:
    """Kill a program; return how many tensors were read, and how many of them were wrong."""
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(folder)], cwd=ROOT, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(random.random() * random.choice((0.01, 0.1, 0.5)))
    process.kill()
    process.wait()
    process.stdout.close()
    read = wrong = 0
    for rank in sorted(folder.glob("step*/rank0"), key=lambda path: int(path.parent.name[4:])):
        if not (rank / "index.msgpack").exists():
            assert not list(rank.glob("shard-*")), "bytes without an index"
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
