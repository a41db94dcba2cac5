"""The records that a rank has settled are on file, however its process ends, and whatever bytes wait."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from aten_dump.store import records as r
from aten_dump.store.index_reader import read_index
from tests.checkout import ROOT

_PROGRAM = """
import os, sys, time
from pathlib import Path
from aten_dump.store import records as r
from aten_dump.store.writing.host_bytes import HostBytes
from aten_dump.store.writing import writer as writing
from aten_dump.store.writing.settings import WriterSettings
from aten_dump.store.writing.shard_writer import ShardWriter
from aten_dump.store.writing.writer import Writer
writing.SETTLE_SECONDS = 5  # this machine may be busy
root, has_bytes = Path(sys.argv[1]), sys.argv[2] == "slow"
if has_bytes:
    ShardWriter.flush = lambda shard: time.sleep(60)  # a disk that takes its time for them
for number in range(10):
    if os.fork() == 0:
        writer = Writer(root / str(number), 0, WriterSettings(queue_bytes=64 << 20, shard_bytes=1 << 30))
        writer.begin_step(r.Header(r.HEADER, r.FORMAT_VERSION, 0, 0, 1, 0, 0, {}))
        if has_bytes:
            writer.store("U8", [1000], 1000, HostBytes.of(bytes(1000)))
        writer.emit((r.NOTE, "begun", "a collective", 1))
        writer.settle(wait=True)
        os._exit(1)
    os.wait()
"""


@pytest.mark.parametrize(("bytes_are", "least"), [("none", 10), ("slow", 1)])  # a busy machine may begin with the bytes
def test_what_was_settled_is_not_lost_with_the_process(tmp_path: Path, bytes_are: str, least: int) -> None:
    subprocess.run([sys.executable, "-c", _PROGRAM, tmp_path, bytes_are], check=True, cwd=ROOT, timeout=120)
    folders = [tmp_path / str(number) / "step0" / "rank0" for number in range(10)]
    indexes = [read_index(folder) for folder in folders if (folder / "index.msgpack").exists()]
    settled = [index for index in indexes if [note.code for note in index.records(r.NOTE)] == ["begun"]]
    assert len(settled) >= least
