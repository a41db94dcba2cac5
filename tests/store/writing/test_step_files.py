"""The files of one step: whole where it ended before it was flushed, else an index that grows under a lock."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aten_dump.errors import MissingDataError, StoreError
from aten_dump.store import records as r
from aten_dump.store.checking.verification import verify
from aten_dump.store.index_reader import read_index
from aten_dump.store.rank_lock import LOCK_FILE, RankLock
from aten_dump.store.recovery import recover
from aten_dump.store.shards import partial_name, shard_name
from aten_dump.store.writing import shard_writer
from aten_dump.store.writing import step_files as step_files_module
from aten_dump.store.writing.packed_records import packed
from aten_dump.store.writing.settings import WriterSettings
from aten_dump.store.writing.shard_writer import FreeSpace, HeaderBudget
from aten_dump.store.writing.step_files import LANE_BYTES, BlobStart, HandedOn, Piece, StepEnd, StepFiles
from tests.checkout import ROOT
from tests.store.recording import RANK, blobs_of, call, header


def step_files(root: Path, shard_bytes: int = 1 << 20, queue_bytes: int = 1 << 30) -> StepFiles:
    settings = WriterSettings(queue_bytes=queue_bytes, shard_bytes=shard_bytes)
    files = StepFiles(root / RANK, header(), settings, HandedOn(HeaderBudget(), FreeSpace(), lambda chunks: None))
    files.records(packed([r.Op(r.OP, 1, 0, "aten::relu", "Aten", "relu", ["self"])]))  # that of `call`
    return files


def blob(files: StepFiles, number: int, content: bytes) -> None:
    start = BlobStart(number, "U8", [len(content)], len(content))
    files.piece(Piece(start, None, 0, len(content), True, True, None, lambda: content))


@contextmanager
def locks_taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    taken: list[Path] = []
    take = RankLock.take

    def counted(directory: Path, folder: int | None = None) -> RankLock | None:
        taken.append(directory)
        return take(directory, folder)

    with monkeypatch.context() as patch:
        patch.setattr(RankLock, "take", counted)
        yield taken


def test_a_step_that_ends_at_once_is_made_at_its_end_and_without_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = step_files(tmp_path)
    with locks_taken(monkeypatch) as taken:
        for number in (1, 2):
            files.records(packed([call(number)]))
            blob(files, number, b"abc")
        assert list(tmp_path.iterdir()) == []
        files.finish(StepEnd(2, 0, {}, []))
    assert taken == []
    assert sorted(path.name for path in (tmp_path / RANK).iterdir()) == ["index.msgpack", "shard-00000.safetensors"]
    assert read_index(tmp_path / RANK).committed and verify(tmp_path / RANK) == []
    assert blobs_of(tmp_path / RANK) == {1: b"abc", 2: b"abc"}


def test_a_step_that_is_flushed_before_its_end_is_locked_until_then(tmp_path: Path) -> None:
    files = step_files(tmp_path)
    files.records(packed([call(1)]))
    blob(files, 1, b"abc")
    files.flush()
    assert (tmp_path / RANK / LOCK_FILE).exists()
    assert not read_index(tmp_path / RANK).committed and blobs_of(tmp_path / RANK) == {1: b"abc"}
    with pytest.raises(StoreError, match="still being written"):
        recover(tmp_path / RANK)
    blob(files, 2, b"de")
    files.finish(StepEnd(1, 0, {}, []))
    assert not (tmp_path / RANK / LOCK_FILE).exists()
    assert verify(tmp_path / RANK) == [] and blobs_of(tmp_path / RANK) == {1: b"abc", 2: b"de"}


def test_blobs_go_side_by_side_where_much_waits(tmp_path: Path) -> None:
    """To two shards; each is written by a thread of its own, and all blobs are there."""
    files = step_files(tmp_path, shard_bytes=1 << 30)
    contents = {number: bytes([number]) * (LANE_BYTES // 2 + number) for number in range(1, 12)}
    for number, content in contents.items():
        blob(files, number, content)
    files.flush()
    assert sorted(path.name for path in (tmp_path / RANK).glob("shard*")) == [partial_name(0), partial_name(1)]
    assert blobs_of(tmp_path / RANK) == contents, "what is flushed is journaled"
    sizes = [path.stat().st_size for path in (tmp_path / RANK).glob("shard*")]
    assert max(sizes) - min(sizes) <= 2 * LANE_BYTES
    blob(files, 12, b"abc")
    files.finish(StepEnd(0, 0, {}, []))
    data = read_index(tmp_path / RANK)
    assert data.commit is not None and verify(tmp_path / RANK) == []
    assert list(data.commit.shards) == [(tmp_path / RANK / shard_name(n)).stat().st_size for n in (0, 1)]
    assert blobs_of(tmp_path / RANK) == contents | {12: b"abc"}


def test_bytes_that_wait_keep_to_half_of_a_small_queue(tmp_path: Path) -> None:
    files, longest = step_files(tmp_path, queue_bytes=1 << 20), 0
    for number in range(1, 201):
        blob(files, number, bytes(40_000))
        longest = max(longest, files.queued_bytes)
    files.finish(StepEnd(0, 0, {}, []))
    assert 1 << 18 < longest < 1 << 19
    assert len(blobs_of(tmp_path / RANK)) == 200


def test_a_shard_that_is_full_makes_room_in_its_lane_alone(tmp_path: Path) -> None:
    files = step_files(tmp_path, shard_bytes=3 * LANE_BYTES)
    contents = {number: bytes([number]) * LANE_BYTES for number in range(1, 16)}
    for number, content in contents.items():
        blob(files, number, content)
    files.finish(StepEnd(0, 0, {}, []))
    assert verify(tmp_path / RANK) == [] and blobs_of(tmp_path / RANK) == contents
    assert len(list((tmp_path / RANK).glob("shard*"))) in (5, 6)


def test_a_blob_that_was_not_ended_is_forgotten_whichever_lane_comes_next(tmp_path: Path) -> None:
    files = step_files(tmp_path, shard_bytes=1 << 30)
    contents = {number: bytes([number]) * LANE_BYTES for number in range(1, 6)}
    for number, content in contents.items():
        half = BlobStart(100 + number, "U8", [2 * LANE_BYTES], 2 * LANE_BYTES)
        files.piece(Piece(half, None, 0, LANE_BYTES, True, False, None, lambda: bytes(LANE_BYTES)))
        blob(files, number, content)
    files.finish(StepEnd(0, 0, {}, []))
    assert verify(tmp_path / RANK) == [] and blobs_of(tmp_path / RANK) == contents


def test_an_error_in_one_lane_leaves_what_the_other_has_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = step_files(tmp_path, shard_bytes=1 << 30)
    contents = {number: bytes([number]) * LANE_BYTES for number in range(1, 5)}
    for number, content in contents.items():
        blob(files, number, content)
    real = shard_writer.write_all

    def failing(fd: int, parts: list[bytes], offset: int) -> None:
        if bytes(parts[0][:1]) in (b"\2", b"\4"):
            raise OSError(28, "No space left on device")
        real(fd, parts, offset)

    monkeypatch.setattr(shard_writer, "write_all", failing)
    with pytest.raises(OSError, match="No space"):
        files.flush()
    files.abandon()
    recover(tmp_path / RANK)
    assert verify(tmp_path / RANK) == []
    assert blobs_of(tmp_path / RANK) == {number: contents[number] for number in (1, 3)}


def test_after_an_error_there_is_what_came_before_and_no_blob_without_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = step_files(tmp_path)
    for number in (1, 2, 3):
        files.records(packed([call(number)]))
        blob(files, number, b"abc")

    def cut_off(fd: int, parts: list[bytes], offset: int) -> None:
        shard_writer.os.pwrite(fd, b"".join(map(bytes, parts))[:-1], offset)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shard_writer, "write_all", cut_off)
    with pytest.raises(OSError, match="No space"):
        files.finish(StepEnd(3, 0, {}, []))
    files.abandon()
    data = read_index(tmp_path / RANK)
    assert not data.committed and len(data.rows[r.CALL]) == 3
    assert blobs_of(tmp_path / RANK) == {1: b"abc", 2: b"abc"}
    assert recover(tmp_path / RANK).committed and verify(tmp_path / RANK) == []


@pytest.mark.parametrize("free_bytes", [100, 10 << 10, 1 << 30])
def test_on_a_full_disk_records_have_room_before_what_is_not_journaled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_bytes: int
) -> None:
    """Bytes are many and the records few that say what they are: without room for these, those are for nothing."""
    files = step_files(tmp_path)
    files.records(packed([call(1)]))
    blob(files, 1, b"abc")
    files.flush()
    blob(files, 2, bytes(2 * LANE_BYTES))
    blob(files, 3, bytes(2 * LANE_BYTES))
    real = shard_writer.write_all

    def full(fd: int, parts: list[bytes], offset: int) -> None:
        if offset > LANE_BYTES:
            real(fd, [part[:100] for part in parts], offset)
            raise OSError(28, "No space left on device")
        real(fd, parts, offset)

    monkeypatch.setattr(shard_writer, "write_all", full)
    with pytest.raises(OSError, match="No space"):
        files.flush()
    sizes = {path.name: path.stat().st_size for path in (tmp_path / RANK).glob("*.partial")}
    usage = type(step_files_module.shutil.disk_usage(tmp_path))(1 << 30, 0, free_bytes)
    monkeypatch.setattr(step_files_module.shutil, "disk_usage", lambda _: usage)
    files.abandon()
    for path in (tmp_path / RANK).glob("*.partial"):
        assert (path.stat().st_size < sizes[path.name]) == (free_bytes < 1 << 20)
    recover(tmp_path / RANK)
    assert verify(tmp_path / RANK) == [] and blobs_of(tmp_path / RANK) == {1: b"abc"}


def test_a_blob_of_no_bytes_is_not_there_without_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = step_files(tmp_path)
    blob(files, 1, b"")
    monkeypatch.setattr(
        shard_writer.GrowingFile, "fd", property(lambda file: (_ for _ in ()).throw(OSError(28, "full")))
    )
    with pytest.raises(OSError, match="full"):
        files._lanes[0].flush()  # type: ignore[union-attr]
    monkeypatch.undo()
    files.abandon()
    assert not read_index(tmp_path / RANK).rows[r.BLOB]


KILL_AT_EACH_CALL = """
import os, sys
from pathlib import Path
from tests.store.recording import *
calls = 0
def dying(real, at):
    def call(*args, **options):
        global calls
        calls += 1
        if calls == at:
            os.kill(os.getpid(), 9)
        return real(*args, **options)
    return call
for at in range(1, 40):
    child = os.fork()
    if not child:
        sink = writer(Path(sys.argv[1]) / str(at))
        for name in ("mkdir", "open", "pwritev", "pwrite", "write", "rename", "close", "ftruncate", "unlink"):
            setattr(os, name, dying(getattr(os, name), at))
        small_step(sink)
        sink.close()
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        break
print(at)
"""


def test_killed_between_any_two_calls_of_the_system_a_step_is_whole_or_not_there(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILL_AT_EACH_CALL, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    last = int(done.stdout)
    assert 5 < last < 39
    whole = 0
    for at in range(1, last + 1):
        folder = tmp_path / str(at) / RANK
        try:
            data = read_index(folder)
        except MissingDataError:
            with pytest.raises(MissingDataError):
                recover(folder)
            continue
        if data.committed:
            whole += 1
        recover(folder)
        assert verify(folder) == [] and len(read_index(folder).rows[r.CALL]) == 5
    assert whole >= 1
