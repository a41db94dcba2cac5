"""What a rank has settled is on file, however its process ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from aten_dump.store import records as r
from aten_dump.store.index_reader import read_index
from tests.checkout import ROOT

_PROGRAM = """
import os, sys
from pathlib import Path
from aten_dump.store import records as r
from aten_dump.store.writing.settings import WriterSettings
from aten_dump.store.writing.writer import Writer
for number in range(10):
    if os.fork() == 0:
        writer = Writer(Path(sys.argv[1]) / str(number), 0, WriterSettings(queue_bytes=64 << 20, shard_bytes=1 << 30))
        writer.begin_step(r.Header(r.HEADER, r.FORMAT_VERSION, 0, 0, 1, 0, 0, {}))
        writer.emit((r.NOTE, "begun", "a collective", 1))
        writer.settle(wait=True)
        os._exit(1)
    os.wait()
"""


def test_what_was_settled_is_not_lost_with_the_process(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", _PROGRAM, tmp_path], check=True, cwd=ROOT, timeout=120)
    for number in range(10):
        index = read_index(tmp_path / str(number) / "step0" / "rank0")
        assert [note.code for note in index.records(r.NOTE)] == ["begun"], number
