"""A live step is told from a dead one whatever is read meanwhile, and one recovery at a time works on it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from aten_dump import open_dump
from aten_dump.errors import StoreError
from aten_dump.store import rank_lock
from aten_dump.store.checking.verification import verify
from aten_dump.store.index_reader import read_index
from aten_dump.store.rank_lock import LOCK_FILE, RankLock
from aten_dump.store.recovery import recover
from tests.checkout import ROOT
from tests.sampling import one_in
from tests.store.recording import RANK, begin, call, noise, store, writer

RECOVER = """
import sys, time
from pathlib import Path
from aten_dump.errors import StoreError
from aten_dump.store.recovery import recover
while time.time() < float(sys.argv[2]):  # all of them at the same moment
    pass
try:
    print(recover(Path(sys.argv[1])).message)
except StoreError as error:
    print("refused:", error)
"""
WRITE_AND_DIE = """
import os, sys
from pathlib import Path
from tests.store.recording import *
sink = writer(Path(sys.argv[1]), shard_bytes=1 << 20)
begin(sink)
for number in range(1, 400):
    sink.emit(bare_value(number))
    blob = store(sink, noise(20_000, number), "U8")
    sink.emit(r.Data(r.DATA, number, blob, 0, 0))
    sink.emit(call(number, args=[[0, number]]))
import time
deadline = time.monotonic() + 60
while not (Path(sys.argv[1]) / RANK / "index.msgpack").exists() and time.monotonic() < deadline:
    time.sleep(0.01)
os.kill(os.getpid(), 9)
"""


def python(script: str, *args: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", script, *map(str, args)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def recovered_elsewhere(rank: Path) -> str:
    return python(RECOVER, rank, 0).communicate(timeout=60)[0]


def test_reading_in_the_process_that_writes_leaves_the_step_its_own(tmp_path: Path) -> None:
    sink = writer(tmp_path)
    begin(sink)
    store(sink, noise(100), "U8")
    sink.emit(call(1))
    while not (tmp_path / RANK / "index.msgpack").exists() or not len(read_index(tmp_path / RANK).rows[15]):
        sink.wait_for_room()
    assert len(open_dump(tmp_path).rank(0, 0).calls) == 1
    assert verify(tmp_path / RANK)
    shutil.copytree(tmp_path, tmp_path.parent / f"{tmp_path.name} copied")  # opens and closes all of its files
    assert "still being written" in recovered_elsewhere(tmp_path / RANK)
    with pytest.raises(StoreError, match="still being written"):
        recover(tmp_path / RANK)
    assert "still being written" in recovered_elsewhere(tmp_path / RANK)
    sink.emit(call(2))
    sink.end_step(2, 0, {})
    sink.close()
    data = read_index(tmp_path / RANK)
    assert data.committed and len(data.rows[15]) == 2
    assert not (tmp_path / RANK / LOCK_FILE).exists()


@pytest.mark.parametrize("attempt", one_in(3, range(3)))
def test_recoveries_at_once_make_one_whole_step(tmp_path: Path, attempt: int) -> None:
    import time

    python(WRITE_AND_DIE, tmp_path).wait(60)
    start = time.time() + 6
    running = [python(RECOVER, tmp_path / RANK, start) for _ in range(4)]
    said = [process.communicate(timeout=60)[0] for process in running]
    assert sum(text.startswith("cut short") for text in said) == 1, said
    assert all(text.startswith(("cut short", "complete", "refused")) for text in said), said
    assert verify(tmp_path / RANK) == []
    assert len(read_index(tmp_path / RANK).rows[20]) == 1


def test_a_step_that_another_recovery_completes_meanwhile_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the first look at the index and the lock."""
    sink = writer(tmp_path)
    begin(sink)
    sink.emit(call(1))
    sink.close()
    take = RankLock.take

    def after_the_other(directory: Path) -> RankLock | None:
        monkeypatch.setattr(RankLock, "take", take)
        assert recover(directory).changed
        return take(directory)

    monkeypatch.setattr(RankLock, "take", after_the_other)
    report = recover(tmp_path / RANK)
    assert (report.changed, report.committed) == (False, True)
    assert len(read_index(tmp_path / RANK).rows[20]) == 1


def test_a_lock_is_a_file_like_others(tmp_path: Path) -> None:
    before = os.umask(0)
    lock = RankLock.take(tmp_path)
    os.umask(before)
    assert lock is not None
    assert (tmp_path / LOCK_FILE).stat().st_mode & 0o777 == 0o666
    lock.release()


def test_a_lock_is_had_once(tmp_path: Path) -> None:
    lock = RankLock.take(tmp_path)
    assert lock is not None
    assert RankLock.take(tmp_path) is None
    lock.release()
    lock.release()
    again = RankLock.take(tmp_path)
    assert again is not None
    again.release()
    assert list(tmp_path.iterdir()) == []


def test_the_lock_of_a_dead_process_is_free(tmp_path: Path) -> None:
    python(WRITE_AND_DIE, tmp_path).wait(60)
    assert (tmp_path / RANK / LOCK_FILE).exists()
    assert recover(tmp_path / RANK).committed
    assert not (tmp_path / RANK / LOCK_FILE).exists()


def test_a_forked_child_that_outlives_the_holder_does_not_hold_it(tmp_path: Path) -> None:
    script = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from aten_dump.store.rank_lock import RankLock\n"
        "lock = RankLock.take(Path(sys.argv[1]))\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    lock.release()  # as a finalizer may\n"
        "    print(os.getpid(), flush=True)\n"
        "    time.sleep(600)\n"
        "time.sleep(600)\n"
    )
    holder = python(script, tmp_path)
    assert holder.stdout is not None
    child = int(holder.stdout.readline())
    try:
        assert (tmp_path / LOCK_FILE).exists() and RankLock.take(tmp_path) is None
        holder.kill()
        holder.wait(60)
        lock = RankLock.take(tmp_path)
        assert lock is not None
        lock.release()
    finally:
        os.kill(child, signal.SIGKILL)


def test_an_index_has_its_name_only_with_a_header(tmp_path: Path) -> None:
    """Killed between any two system calls at the begin, a step has a whole header or no index."""
    script = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from tests.store.recording import *\n"
        "from aten_dump.store.writing import index_writer\n"
        "index_writer.write_all = lambda fd, parts, at: os.kill(os.getpid(), 9)\n"
        "sink = writer(Path(sys.argv[1]))\n"
        "begin(sink)\n"
        "sink.end_step(0, 0, {})\n"
        "sink.close()\n"
    )
    assert python(script, tmp_path).wait(60) == -9
    assert not (tmp_path / RANK / "index.msgpack").exists()
    assert (tmp_path / RANK / "index.msgpack.partial").exists()
    sink = writer(tmp_path, overwrite=True)
    sink.close()


def test_a_step_may_be_taken_away_while_its_lock_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = RankLock.take(tmp_path)
    assert lock is not None
    is_at = rank_lock._is_at

    def looked(path: str, fd: int) -> bool:
        found = is_at(path, fd)
        (tmp_path / LOCK_FILE).unlink()  # by a program that has seen the commit and needs the step no more
        return found

    monkeypatch.setattr(rank_lock, "_is_at", looked)
    lock.release()
    monkeypatch.undo()
    assert RankLock.take(tmp_path) is not None, "it is free"
