"""Errors of the disk and of the user: what, where, what to do; nothing hangs, nothing written is lost."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest

from aten_dump.errors import StoreError
from aten_dump.store import records as r
from aten_dump.store.checking.verification import verify
from aten_dump.store.index_reader import read_index
from aten_dump.store.recovery import recover
from aten_dump.store.run_json import write_run
from aten_dump.store.shard_reader import ShardReader
from tests.store.recording import RANK, begin, call, header, noise, small_step, store, writer


def fill_the_disk(path: Path, **options: int) -> tuple[StoreError, float]:
    """Store blobs of 1 MiB until an error comes; return it and the seconds of the longest call."""
    sink = writer(path / "dump", queue_bytes=4 << 20, **options)
    begin(sink)
    longest = 0.0
    with pytest.raises(StoreError) as caught:  # noqa: PT012
        for number in range(1, 100):
            begun = time.monotonic()
            store(sink, noise(1 << 20, number), "U8")
            longest = max(longest, time.monotonic() - begun)
            sink.emit(call(number))
    threads = threading.active_count()
    sink.close()
    assert threading.active_count() == threads - 1
    return caught.value, longest


def test_a_full_disk_is_an_error_that_names_it_and_what_was_written_stays(small_disk: Path) -> None:
    error, longest = fill_the_disk(small_disk)
    assert error.errno == errno.ENOSPC
    assert "step 0 of rank 0" in str(error) and str(small_disk) in str(error) and "free space" in str(error)
    assert longest < 20
    folder = small_disk / "dump" / RANK
    data = read_index(folder)
    assert not data.committed
    blobs = list(data.records(r.BLOB))
    assert len(blobs) >= 10
    reader = ShardReader(folder, data.rows[r.SHARD])
    assert all(reader.read(blob).tobytes() == noise(1 << 20, blob.id).tobytes() for blob in blobs)
    saved = shutil.copytree(folder, small_disk.parent / "saved")
    assert recover(saved).committed
    assert verify(saved) == []


def test_a_disk_that_will_not_hold_the_next_shard_is_refused_in_time(small_disk: Path) -> None:
    error, _ = fill_the_disk(small_disk, shard_bytes=2 << 20)
    assert error.errno == errno.ENOSPC
    assert "are free" in str(error) and "are needed" in str(error)
    assert shutil.disk_usage(small_disk).free > 10 << 20  # the program's own files still fit


def test_an_error_of_the_writer_is_raised_by_each_call_once_it_is_known(tmp_path: Path) -> None:
    sink = writer(tmp_path)
    sink.begin_step(header())
    (tmp_path / "step0").write_text("in the way")
    sink.emit(call(1))
    deadline = time.monotonic() + 10
    with pytest.raises(StoreError, match=r"step 0 of rank 0"):  # noqa: PT012
        while time.monotonic() < deadline:
            store(sink, noise(10), "U8")
            time.sleep(0.01)
    for action in (
        lambda: store(sink, noise(10), "U8"),
        lambda: sink.end_step(0, 0, {}),
        lambda: sink.begin_step(header(1)),
    ):
        with pytest.raises(StoreError):
            action()
    sink.emit(call(2))
    sink.close()  # it was said already
    sink.close()


def test_an_error_that_no_call_has_raised_is_raised_by_close(tmp_path: Path) -> None:
    sink = writer(tmp_path)
    sink.begin_step(header())
    (tmp_path / "step0").write_text("in the way")
    sink.emit(call(1))
    with pytest.raises(StoreError, match=r"File exists|Not a directory"):
        sink.close()
    sink.close()


def test_a_store_that_waits_for_room_is_woken_by_the_error(tmp_path: Path) -> None:
    sink = writer(tmp_path, queue_bytes=4096)
    sink.begin_step(header())

    def fill(offset: int, address: int, nbytes: int) -> object:
        def ready() -> None:
            time.sleep(0.2)
            raise RuntimeError("the device is gone")

        return ready

    begun = time.monotonic()
    with pytest.raises(StoreError, match="the device is gone"):
        sink.store("U8", [1 << 20], 1 << 20, fill)
    assert time.monotonic() - begun < 5
    sink.close()


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/aten_dump", "/dev/full"])
def test_a_path_that_cannot_be_written_is_refused_at_once(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="choose another path") as caught:
        writer(tmp_path / place)
    assert str(tmp_path / place) in str(caught.value)
    assert caught.value.errno in (errno.EEXIST, errno.ENOTDIR, errno.ENOENT)
    with pytest.raises(StoreError):
        write_run(tmp_path / place, {})


def test_a_read_only_file_system_is_refused_at_once(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(StoreError) as caught:
        writer(small_disk / "dump")
    assert caught.value.errno == errno.EROFS
    with pytest.raises(StoreError, match="no permission"):
        writer(small_disk)


def test_an_existing_dump_is_refused_and_named(tmp_path: Path) -> None:
    sink = writer(tmp_path)
    small_step(sink)
    sink.close()
    before = (tmp_path / RANK / "index.msgpack").read_bytes()
    threads = threading.active_count()
    with pytest.raises(StoreError, match=r"overwrite=True.*another path") as caught:
        writer(tmp_path)
    assert str(tmp_path) in str(caught.value) and "step0/rank0" in str(caught.value)
    assert (tmp_path / RANK / "index.msgpack").read_bytes() == before
    assert threading.active_count() == threads


def ranks_on_disk(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.glob("step*/rank*")}


def test_overwrite_removes_what_is_ours_and_of_this_rank(tmp_path: Path) -> None:
    for rank in range(3):
        sink = writer(tmp_path, rank=rank, recording=range(3))
        small_step(sink, step=0)
        small_step(sink, step=7)
        sink.close()
    write_run(tmp_path, {"world_size": 3})
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "step0" / "mine.txt").write_text("mine")
    writer(tmp_path, rank=1, recording=range(3), overwrite=True).close()
    assert ranks_on_disk(tmp_path) == {"step0/rank0", "step0/rank2", "step7/rank0", "step7/rank2"}
    assert (tmp_path / "run.json").exists()
    writer(tmp_path, rank=1, recording=range(3)).close()  # rank 0 and 2 are not its concern
    with pytest.raises(StoreError):
        writer(tmp_path, rank=0, recording=range(3))
    writer(tmp_path, rank=0, recording=range(1), overwrite=True).close()
    assert ranks_on_disk(tmp_path) == set()
    assert not (tmp_path / "run.json").exists()
    assert not (tmp_path / "step7").exists()
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.txt")) == [
        "notes.txt",
        "step0/mine.txt",
    ]


def test_one_process_refuses_the_ranks_of_a_larger_run(tmp_path: Path) -> None:
    sink = writer(tmp_path, rank=1, recording=range(2))
    small_step(sink)
    sink.close()
    with pytest.raises(StoreError, match="step0/rank1"):
        writer(tmp_path, rank=0, recording=range(1))
    writer(tmp_path, rank=0, recording=range(2)).close()


def test_overwrite_removes_nothing_where_files_of_others_are(tmp_path: Path) -> None:
    sink = writer(tmp_path)
    small_step(sink)
    sink.close()
    (tmp_path / RANK / "thesis.tex").write_text("mine")
    with pytest.raises(StoreError, match=r"thesis\.tex"):
        writer(tmp_path, overwrite=True)
    assert read_index(tmp_path / RANK).committed


def test_a_step_that_was_written_before_is_an_error(tmp_path: Path) -> None:
    sink = writer(tmp_path)
    small_step(sink, step=0)

    def again() -> None:  # whichever call comes after the failure says so
        small_step(sink, step=0)
        sink.close()

    with pytest.raises(StoreError, match="step 0 of rank 0") as caught:
        again()
    assert caught.value.errno == errno.EEXIST
    assert read_index(tmp_path / RANK).committed


def test_relative_paths_do_not_follow_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sink = writer(Path("dump"))
    (tmp_path / "elsewhere").mkdir()
    os.chdir(tmp_path / "elsewhere")
    small_step(sink)
    sink.close()
    assert read_index(tmp_path / "dump" / RANK).committed
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("options", [{"queue_bytes": 100}, {"shard_bytes": 0}])
def test_sizes_that_cannot_work_are_refused(tmp_path: Path, options: dict[str, int]) -> None:
    with pytest.raises(StoreError, match=f"{next(iter(options))} is"):
        writer(tmp_path, **options)
