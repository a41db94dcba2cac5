"""Promise 4: an interrupted dump is readable, and recovery makes it a normal one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgpack
import pytest
from safetensors import safe_open

from aten_dump.errors import MissingDataError, StoreError
from aten_dump.store import records as r
from aten_dump.store.checking.verification import verify
from aten_dump.store.index_reader import read_index
from aten_dump.store.recovery import recover
from aten_dump.store.shard_reader import ShardReader
from aten_dump.store.shards import shard_name
from aten_dump.store.writing.index_writer import IndexWriter
from tests.checkout import ROOT
from tests.store.recording import RANK, begin, call, header, noise, small_step, store, writer

ENDLESS = """
import sys
from pathlib import Path
from tests.store.recording import *
sink = writer(Path(sys.argv[1]), queue_bytes=1 << 20, shard_bytes=3 << 20)
begin(sink)
number = 0
while True:
    number += 1
    sink.emit(r.Value(r.VALUE, number, 0, 0, 0, 0, [], [], 0, None))
    size = 1 + number * 7919 % 60_000
    blob = store(sink, noise(size, number), "U8")
    sink.emit(r.Data(r.DATA, number, blob, 0, 0))
    sink.emit(call(number, args=[[0, number]]))
    if number == 100:
        print("running", flush=True)
"""


def several_checks(path: Path, batches: int = 6) -> list[int]:
    """Write an index with a check after each of some batches; return where the good parts end."""
    index = IndexWriter.create(path)
    ends = [0]
    for batch in range(batches):
        index.add([header()] if batch == 0 else [call(batch * 10 + k, args=["x" * batch]) for k in range(batch)])
        index.flush()
        ends.append(path.stat().st_size)
    index.close()
    return ends


def test_a_tail_torn_at_every_byte_is_dropped_at_the_last_check(tmp_path: Path) -> None:
    whole, torn = tmp_path / "whole", tmp_path / "index.msgpack"
    ends = several_checks(whole)
    data = whole.read_bytes()
    unpacker = msgpack.Unpacker(use_list=False)
    unpacker.feed(data)
    rows = list(unpacker)
    for length in range(len(data) + 1):
        for tail in (b"", b"\0" * 40, b"\x93\x13\xff"):
            torn.write_bytes(data[:length] + tail)
            good = max(end for end in ends if end <= length)
            if tail and not good:
                continue  # not even the first record is whole: see test_index.py
            found = read_index(torn)
            assert (found.good_bytes, found.dropped_bytes) == (good, length - good + len(tail))
            expected = rows[: sum(b + 1 if b else 2 for b in range(ends.index(good)))]  # records and a check each
            assert sum(map(len, found.rows.values())) == len(expected)
            assert list(found.rows[r.CALL]) == [tuple(r.Call(*row)) for row in expected if row[0] == r.CALL]
            assert (found.header is None) == (good == 0)
            assert not found.committed
            assert found.problem is not None


def test_a_flipped_byte_is_found_wherever_it_is(tmp_path: Path) -> None:
    path = tmp_path / "index.msgpack"
    ends = several_checks(path)
    data = path.read_bytes()
    for position in range(ends[1], len(data)):
        path.write_bytes(data[:position] + bytes([data[position] ^ 0x41]) + data[position + 1 :])
        found = read_index(path)
        assert found.good_bytes == max(end for end in ends if end <= position)
        assert found.dropped_bytes


def test_recovery_of_a_step_torn_at_every_byte(tmp_path: Path) -> None:
    sink = writer(tmp_path / "whole")
    small_step(sink, calls=3)
    sink.close()
    whole = tmp_path / "whole" / RANK
    data = (whole / "index.msgpack").read_bytes()
    folder = tmp_path / "torn"
    for length in range(2, len(data)):
        shutil.copytree(whole, folder)
        (folder / "index.msgpack").write_bytes(data[:length])
        before = read_index(folder)
        report = recover(folder)
        if before.header is None:
            assert not report.changed
        else:
            after = read_index(folder)
            assert report.committed and after.problem is None
            assert list(after.rows[r.CALL]) == list(before.rows[r.CALL])
            assert list(after.rows[r.BLOB]) == list(before.rows[r.BLOB])
            assert verify(folder) == []
            assert not recover(folder).changed
        shutil.rmtree(folder)


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A dump whose process was killed with SIGKILL in the middle of its work."""
    process = subprocess.Popen(
        [sys.executable, "-c", ENDLESS, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    deadline = time.monotonic() + 60
    while not list((tmp_path / RANK).glob("shard-00002*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.3)  # so that it is anywhere between two shards
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    return tmp_path / RANK


def check_contents(folder: Path) -> int:
    data = read_index(folder)
    reader = ShardReader(folder, data.rows[r.SHARD])
    blobs = {blob.id: blob for blob in data.records(r.BLOB)}
    for row in data.rows[r.DATA]:
        assert reader.read(blobs[row[2]]).tobytes() == noise(1 + row[1] * 7919 % 60_000, row[1]).tobytes()
    assert [row[1] for row in data.rows[r.CALL]] == list(range(1, len(data.rows[r.CALL]) + 1))
    return len(data.rows[r.DATA])


def test_after_kill_9_all_that_was_journaled_is_readable(killed: Path) -> None:
    data = read_index(killed)
    assert not data.committed
    begun = {
        shard_name(row[1]) + ".partial" for row in data.rows[r.SHARD]
    }  # what was made later is not journaled: removed
    growing = len(begun & {path.name for path in killed.iterdir()})  # none in the moment between two shards
    count = check_contents(killed)
    assert count >= 50
    assert len(data.rows[r.SHARD]) > 1

    report = recover(killed)
    assert report.committed and report.changed
    assert len(report.completed_shards) == growing <= 1
    assert (report.missing_shards, report.lost_blobs) == ([], [])
    assert check_contents(killed) == count
    assert not list(killed.glob("*.partial"))
    assert verify(killed) == []
    after = read_index(killed)
    assert after.problem is None
    assert [note.code for note in after.records(r.NOTE)] == ["recovered"]
    for number in range(len(after.rows[r.SHARD])):
        with safe_open(killed / shard_name(number), "np") as file:
            for row in after.rows[r.BLOB]:
                if row[2] == number:
                    assert file.get_tensor(str(row[1])).tobytes() == noise(1 + row[1] * 7919 % 60_000, row[1]).tobytes()

    state = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in killed.iterdir()}
    assert not recover(killed).changed
    assert {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in killed.iterdir()} == state


def test_an_interrupted_recovery_is_run_again(killed: Path) -> None:
    torn = (killed / "index.msgpack").read_bytes()
    recover(killed)
    (killed / "index.msgpack").write_bytes(torn)  # the shards were done, the index was not
    assert recover(killed).committed
    assert verify(killed) == []


def test_bytes_that_the_machine_lost_are_missing_and_the_rest_is_kept(killed: Path) -> None:
    data = read_index(killed)
    growing = [(path, int(path.name[6:11])) for path in killed.glob("*.partial")]  # none where it died between two
    blobs_of = {number: [blob for blob in data.records(r.BLOB) if blob.shard == number] for _, number in growing}
    enough = [(path, number) for path, number in growing if len(blobs_of[number]) >= 3]
    if not enough:
        pytest.skip("killed right before or after a new shard")
    partial, number = enough[0]
    blobs = blobs_of[number]
    header_bytes = data.rows[r.SHARD][-1][2]
    with open(partial, "r+b") as file:
        file.truncate(header_bytes + blobs[-2].offset + 1 if blobs[-2].nbytes > 1 else header_bytes + blobs[-2].offset)
    report = recover(killed)
    assert report.lost_blobs == [blobs[-2].id, blobs[-1].id]
    reader = ShardReader(killed, read_index(killed).rows[r.SHARD])
    assert reader.read(blobs[-3]).tobytes() == noise(blobs[-3].nbytes, blobs[-3].id).tobytes()
    with pytest.raises(MissingDataError, match="were lost"):
        reader.read(blobs[-1])
    with safe_open(killed / shard_name(number), "np") as file:
        assert set(file.keys()) >= {str(blob.id) for blob in blobs[:-2]}
    assert len(verify(killed)) == 2


def test_a_shard_that_is_gone_is_reported_and_the_others_kept(killed: Path) -> None:
    (killed / shard_name(0)).unlink()
    report = recover(killed)
    assert report.missing_shards == [0]
    assert 0 not in report.completed_shards
    assert any("does not exist" in problem for problem in verify(killed))
    commit = read_index(killed).commit
    assert commit is not None
    assert commit.shards[0] == 0 and all(commit.shards[1:])


def test_a_running_dump_is_not_recovered(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", ENDLESS, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        deadline = time.monotonic() + 60
        while not (tmp_path / RANK / "index.msgpack").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        while not len(read_index(tmp_path / RANK).rows[r.CALL]) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert read_index(tmp_path / RANK).rows[r.CALL]
        with pytest.raises(StoreError, match="still being written"):
            recover(tmp_path / RANK)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert recover(tmp_path / RANK).committed


def test_recover_leaves_a_complete_dump_alone_but_for_bytes_after_it(tmp_path: Path) -> None:
    sink = writer(tmp_path)
    small_step(sink)
    sink.close()
    path = tmp_path / RANK / "index.msgpack"
    whole = path.read_bytes()
    assert not recover(tmp_path / RANK).changed
    assert path.read_bytes() == whole
    path.write_bytes(whole + b"\0" * 9)
    assert read_index(path).committed
    assert recover(tmp_path / RANK).dropped_index_bytes == 9
    assert path.read_bytes() == whole


def test_a_step_closed_without_its_end_is_recovered(tmp_path: Path) -> None:
    sink = writer(tmp_path)
    begin(sink)
    store(sink, noise(10), "U8")
    sink.emit(call(1))
    sink.close()
    report = recover(tmp_path / RANK)
    assert report.committed
    commit = read_index(tmp_path / RANK).commit
    assert commit is not None
    assert commit[1:5] == (1, 0, 1, 10)
    assert verify(tmp_path / RANK) == []


def test_a_partial_that_nothing_journals_is_removed(tmp_path: Path) -> None:
    sink = writer(tmp_path)
    begin(sink)
    sink.emit(call(1))
    sink.close()
    (tmp_path / RANK / (shard_name(0) + ".partial")).write_bytes(bytes(70_000))
    recover(tmp_path / RANK)
    assert [path.name for path in (tmp_path / RANK).iterdir()] == ["index.msgpack"]


def test_verify_finds_a_flipped_byte_in_data_and_in_a_header(tmp_path: Path) -> None:
    sink = writer(tmp_path)
    small_step(sink)
    sink.close()
    path = tmp_path / RANK / shard_name(0)
    whole = path.read_bytes()
    seen: list[tuple[int, int]] = []
    assert verify(tmp_path / RANK, lambda done, total: seen.append((done, total))) == []
    assert seen[-1] == (60, 60)
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    (problem,) = verify(tmp_path / RANK)
    assert problem.startswith("blob 5, 20 bytes") and "checksum" in problem
    path.write_bytes(whole.replace(b'"3"', b'"7"'))
    assert verify(tmp_path / RANK) == [f"{path}: its header is not the one that the Blob records call for"]
    path.write_bytes(whole[:-1])
    assert len(verify(tmp_path / RANK)) == 3  # size, header, blob
    path.unlink()
    assert "does not exist" in verify(tmp_path / RANK)[0]


@pytest.mark.parametrize("is_committed", [True, False])
@pytest.mark.parametrize("good_bytes", [0, 4, 40, 300])
def test_a_header_that_a_full_disk_cut_off_is_written_anew(tmp_path: Path, is_committed: bool, good_bytes: int) -> None:
    """As versions before this one left it: the shard has its name, and stock safetensors refuses it."""
    sink = writer(tmp_path)
    begin(sink)
    store(sink, noise(100), "U8")
    sink.emit(call(1))
    sink.flush()  # so that there is a check before that of the commit
    sink.end_step(1, 0, {})
    sink.close()
    folder = tmp_path / RANK
    shard = folder / shard_name(0)
    whole = shard.read_bytes()
    header_bytes = next(iter(read_index(folder).records(r.SHARD))).header_bytes
    shard.write_bytes(whole[:good_bytes].ljust(header_bytes, b"\0") + whole[header_bytes:])
    if not is_committed:
        index = (folder / "index.msgpack").read_bytes()
        (folder / "index.msgpack").write_bytes(index[:-1])
    report = recover(folder)
    assert report.changed and report.committed and report.completed_shards == [0] and not report.lost_blobs
    with safe_open(shard, "np") as file:
        assert file.keys()
    assert verify(folder) == [] and not recover(folder).changed
    if is_committed:
        assert shard.read_bytes() == whole and "headers of shards were damaged" in report.message


def test_what_has_the_name_of_a_shard_and_none_of_its_bytes_is_left_as_it_is(tmp_path: Path) -> None:
    sink = writer(tmp_path)
    small_step(sink)
    sink.close()
    shard = tmp_path / RANK / shard_name(0)
    shard.write_bytes(b"somebody else's" * 10_000)
    assert not recover(tmp_path / RANK).changed
    assert shard.read_bytes() == b"somebody else's" * 10_000 and verify(tmp_path / RANK) != []
