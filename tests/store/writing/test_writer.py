"""Writer: what goes in comes out, in order, within its memory, from any thread."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgpack
import numpy as np
import pytest
import xxhash
from safetensors import safe_open

from aten_dump.errors import FormatError, StoreError
from aten_dump.store import records as r
from aten_dump.store.checking.verification import verify
from aten_dump.store.index_reader import read_index
from aten_dump.store.threads import bounded_thread
from aten_dump.store.writing.host_bytes import HostBytes
from tests.checkout import ROOT
from tests.store.memory_sink import MemorySink
from tests.store.recording import (
    RANK,
    begin,
    blobs_of,
    call,
    fill_from,
    header,
    in_threads,
    noise,
    small_step,
    store,
    writer,
)


def test_round_trip_of_records_and_bytes(tmp_path: Path) -> None:
    sink, memory = writer(tmp_path), MemorySink()
    for target in (sink, memory):
        small_step(target)
        target.close()
    data = read_index(tmp_path / RANK)
    assert data.problem is None
    assert data.header == header()
    for kind in (r.TEXT, r.OP, r.STORAGE, r.VALUE, r.DATA, r.CALL):
        assert msgpack.packb(list(data.rows[kind])) == msgpack.packb(memory.of(kind))
    assert blobs_of(tmp_path / RANK) == memory.blobs
    assert data.commit is not None
    assert data.commit[1:5] == (5, 5, 5, 60)
    assert data.commit.shards == (os.path.getsize(tmp_path / RANK / "shard-00000.safetensors"),)
    assert set(data.commit.seconds) == {"copy", "wait", "write"}
    assert verify(tmp_path / RANK) == []


def test_a_blob_is_journaled_after_its_bytes_and_before_its_data(tmp_path: Path) -> None:
    sink = writer(tmp_path)
    small_step(sink, calls=300)
    sink.close()
    unpacker = msgpack.Unpacker(use_list=False)
    unpacker.feed((tmp_path / RANK / "index.msgpack").read_bytes())
    rows = list(unpacker)
    seen: set[int] = set()
    for row in rows:
        if row[0] == r.BLOB:
            seen.add(row[1])
        if row[0] == r.DATA:
            assert row[2] in seen
    assert [row[0] for row in rows[-2:]] == [r.COMMIT, r.CHECK]
    assert [row[1] for row in rows if row[0] == r.CALL] == list(range(1, 301))


def test_steps_go_to_folders_of_their_own_and_those_that_were_dropped_or_never_ended_leave_none(tmp_path: Path) -> None:
    sink = writer(tmp_path, rank=3, recording=range(8))
    small_step(sink, step=4)
    sink.begin_step(header(5))
    sink.drop_step()
    small_step(sink, step=10)
    sink.begin_step(header(11))
    sink.close()
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/*")) == ["step10/rank3", "step4/rank3"]
    assert all(read_index(path).committed for path in tmp_path.glob("*/*"))
    assert blobs_of(tmp_path / "step10/rank3")[1] == np.array([10], np.float32).tobytes()


def test_records_reach_the_file_while_the_step_runs(tmp_path: Path) -> None:
    sink = writer(tmp_path)
    sink.begin_step(header())
    sink.emit(call(1))
    store(sink, np.ones(3, np.float32), "F32")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if (tmp_path / RANK / "index.msgpack").exists():
            data = read_index(tmp_path / RANK)
            if data.rows[r.BLOB]:
                break
        time.sleep(0.01)
    assert len(data.rows[r.CALL]) == 1
    assert not data.committed
    assert blobs_of(tmp_path / RANK) == {1: np.ones(3, np.float32).tobytes()}
    sink.close()


def test_a_step_that_never_ended_is_finished_without_a_commit(tmp_path: Path) -> None:
    sink = writer(tmp_path)
    sink.begin_step(header())
    store(sink, np.ones(3, np.float32), "F32")
    sink.close()
    data = read_index(tmp_path / RANK)
    assert not data.committed
    assert data.problem is not None and "cut short" in data.problem
    assert [note.code for note in data.records(r.NOTE)] == ["interrupted"]
    assert list(safe_open(tmp_path / RANK / "shard-00000.safetensors", "np").keys()) == ["1"]


@pytest.mark.parametrize("dtype_and_size", [("BOOL", 1), ("F16", 2), ("F32", 4), ("F64", 8), ("C64", 8)])
def test_misaligned_blobs_get_pads(tmp_path: Path, dtype_and_size: tuple[str, int]) -> None:
    dtype, size = dtype_and_size
    sink = writer(tmp_path)
    sink.begin_step(header())
    for seed in range(4):
        store(sink, noise(3, seed), "U8")
        store(sink, noise(5 * size, seed) & 1, dtype, [5])
    sink.end_step(0, 0, {})
    sink.close()
    path = tmp_path / RANK / "shard-00000.safetensors"
    data = read_index(tmp_path / RANK)
    assert all(blob.offset % size == 0 for blob in data.records(r.BLOB) if blob.dtype == dtype)
    stored = blobs_of(tmp_path / RANK)
    assert stored == {
        k + 1: (noise(3, k // 2) if k % 2 == 0 else noise(5 * size, k // 2) & 1).tobytes() for k in range(8)
    }
    with safe_open(path, "pt") as file:
        names = set(file.keys())
        for number, expected in stored.items():
            assert bytes(file.get_tensor(str(number)).untyped_storage())[: len(expected)] is not None
            assert file.get_tensor(str(number)).contiguous().view(-1).numpy().tobytes() == expected
    assert {name for name in names if name.isdecimal()} == set(map(str, stored))
    assert any(name.startswith("pad.") for name in names) == (size > 1)
    assert verify(tmp_path / RANK) == []


def test_blobs_of_no_bytes(tmp_path: Path) -> None:
    sink = writer(tmp_path)
    sink.begin_step(header())

    def never(offset: int, address: int, nbytes: int) -> None:
        raise AssertionError("fill was called")

    ids = [
        sink.store("F32", [0, 3], 0, never),
        store(sink, np.ones(2, np.float32), "F32"),
        sink.store("F64", [0], 0, never),
    ]
    sink.end_step(0, 0, {})
    sink.close()
    assert ids == [1, 2, 3]
    assert blobs_of(tmp_path / RANK) == {1: b"", 2: np.ones(2, np.float32).tobytes(), 3: b""}
    with safe_open(tmp_path / RANK / "shard-00000.safetensors", "np") as file:
        assert {name: file.get_tensor(name).shape for name in file.keys()} == {"1": (0, 3), "2": (2,), "3": (0,)}  # noqa: SIM118
    assert verify(tmp_path / RANK) == []


def test_a_blob_longer_than_the_queue_streams_through_it(tmp_path: Path) -> None:
    queue_bytes = 64 << 10
    sink = writer(tmp_path, queue_bytes=queue_bytes)
    sink.begin_step(header())
    sizes = [1_000_003, 100, 300_000, 5, 16_384, 16_385]
    for seed, size in enumerate(sizes):
        store(sink, noise(size, seed), "U8")
        assert 0 < sink.allocated_bytes <= queue_bytes
    sink.end_step(0, 0, {})
    sink.close()
    assert blobs_of(tmp_path / RANK) == {seed + 1: noise(size, seed).tobytes() for seed, size in enumerate(sizes)}


class _Checked(HostBytes):
    """Says that it knows the checksum of what it has copied."""

    def __call__(self, offset: int, address: int, nbytes: int) -> None:
        super().__call__(offset, address, nbytes)
        self.checksum = b"of piece"


def test_a_checksum_that_comes_with_all_bytes_of_a_blob_is_its_own_and_one_of_a_part_is_not(tmp_path: Path) -> None:
    sink = writer(tmp_path, queue_bytes=64 << 10)
    sink.begin_step(header())
    contents = [noise(size, size).tobytes() for size in (500, 100_000)]  # the second in pieces
    for content in contents:
        sink.store("U8", [len(content)], len(content), _Checked(HostBytes.of(content)._address, content))
    sink.end_step(0, 0, {})
    sink.close()
    found = [blob.checksum for blob in read_index(tmp_path / RANK).records(r.BLOB)]
    assert found == [b"of piece", xxhash.xxh3_64_digest(contents[1])]
    assert (tmp_path / RANK / "shard-00000.safetensors").read_bytes().endswith(b"".join(contents))


def test_store_waits_when_the_disk_is_slow_and_counts_the_seconds(tmp_path: Path) -> None:
    gate = threading.Event()
    sink = writer(tmp_path, queue_bytes=4096)
    sink.begin_step(header())
    source = noise(20_000)
    filled: list[int] = []

    def fill(offset: int, address: int, nbytes: int) -> object:
        filled.append(nbytes)
        ctypes.memmove(address, source.ctypes.data + offset, nbytes)
        return gate.wait

    thread = threading.Thread(target=sink.store, args=("U8", [20_000], 20_000, fill))
    thread.start()
    while not filled:
        time.sleep(0.001)
    time.sleep(0.3)
    assert 0 < sum(filled) <= 4096
    assert thread.is_alive()
    gate.set()
    thread.join(10)
    sink.end_step(0, 0, {})
    sink.close()
    commit = read_index(tmp_path / RANK).commit
    assert commit is not None
    assert commit.seconds["wait"] > 0.15
    assert blobs_of(tmp_path / RANK) == {1: source.tobytes()}


def test_all_that_was_said_is_on_file_after_a_flush(tmp_path: Path) -> None:
    sink = writer(tmp_path)
    begin(sink)
    for number in range(1, 30):
        sink.later(lambda: time.sleep(0.01) or [], 8)
        store(sink, noise(1000, number), "U8")
        sink.emit(call(number))
        if number % 10 == 0:
            sink.flush()
            assert len(read_index(tmp_path / RANK).rows[r.CALL]) == number
            assert blobs_of(tmp_path / RANK)[number] == noise(1000, number).tobytes()
    sink.close()


def test_what_is_slow_and_moves_does_not_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_thread, "STILL_SECONDS", 1.0)
    sink = writer(tmp_path)
    begin(sink)
    for _ in range(6):
        sink.later(lambda: time.sleep(0.3) or [], 8)
    sink.end_step(0, 0, {})
    sink.close()
    assert read_index(tmp_path / RANK).commit is not None


def test_ready_is_waited_for_on_the_writers_thread_before_the_bytes_are_read(tmp_path: Path) -> None:
    sink = writer(tmp_path)
    sink.begin_step(header())
    threads: list[str] = []

    def fill(offset: int, address: int, nbytes: int) -> object:
        def ready() -> None:  # the "copy" happens only now
            threads.append(threading.current_thread().name)
            ctypes.memset(address, 7, nbytes)

        ctypes.memset(address, 1, nbytes)
        return ready

    sink.store("U8", [1000], 1000, fill)
    sink.end_step(0, 0, {})
    sink.close()
    assert threads == ["aten_dump-writer-0"]
    assert blobs_of(tmp_path / RANK) == {1: b"\7" * 1000}


def test_many_threads_do_not_mix_their_pieces(tmp_path: Path) -> None:
    sink = writer(tmp_path, queue_bytes=32 << 10)
    sink.begin_step(header())
    expected: dict[int, bytes] = {}

    def work(seed: int) -> None:
        for k in range(20):
            array = noise(1 + (seed * 7919 + k * 104_729) % 40_000, seed * 100 + k)
            expected[store(sink, array, "U8")] = array.tobytes()
            sink.emit(call(seed * 100 + k))

    in_threads(work)
    sink.end_step(120, 0, {})
    sink.close()
    assert len(expected) == 120
    assert blobs_of(tmp_path / RANK) == expected
    assert sorted(row[1] for row in read_index(tmp_path / RANK).rows[r.CALL]) == sorted(
        s * 100 + k for s in range(6) for k in range(20)
    )


def test_an_error_in_fill_takes_the_blob_back(tmp_path: Path) -> None:
    sink = writer(tmp_path, queue_bytes=8192)
    sink.begin_step(header())
    store(sink, noise(100), "U8")

    def fill(offset: int, address: int, nbytes: int) -> None:
        if offset > 6000:
            raise KeyboardInterrupt
        ctypes.memset(address, 0xEE, nbytes)

    for _ in range(10):  # more often than there are chunks: none may be lost
        with pytest.raises(KeyboardInterrupt):
            sink.store("U8", [20_000], 20_000, fill)
    store(sink, noise(77, 1), "U8")
    sink.end_step(0, 0, {})
    sink.close()
    assert sorted(blobs_of(tmp_path / RANK).values(), key=len) == [noise(77, 1).tobytes(), noise(100).tobytes()]
    assert verify(tmp_path / RANK) == []


def test_a_trailing_blob_taken_back_leaves_nothing(tmp_path: Path) -> None:
    sink = writer(tmp_path, queue_bytes=8192)
    sink.begin_step(header())
    store(sink, noise(3), "U8")

    def fill(offset: int, address: int, nbytes: int) -> None:
        if offset:
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        sink.store("F64", [4000], 32_000, fill)
    sink.end_step(0, 0, {})
    sink.close()
    assert verify(tmp_path / RANK) == []
    assert len(blobs_of(tmp_path / RANK)) == 1


def test_max_bytes_is_a_budget_over_all_steps(tmp_path: Path) -> None:
    sink = writer(tmp_path, max_bytes=70)
    small_step(sink, step=0)  # 60 bytes
    small_step(sink, step=1)  # 4, then 8 that do not fit, then nothing
    small_step(sink, step=2)
    sink.close()
    notes = []
    for step, blobs in ((0, 5), (1, 1), (2, 0)):
        data = read_index(tmp_path / f"step{step}/rank0")
        assert data.committed
        assert len(data.rows[r.BLOB]) == blobs
        assert len(data.rows[r.CALL]) == 5
        notes.append([(note.code, note.count) for note in data.records(r.NOTE)])
    assert notes == [[], [("max_bytes", 4)], [("max_bytes", 5)]]


@pytest.mark.parametrize("too_long", [1 << 70, 10**6000], ids=["70 bits", "6,001 digits"])
def test_a_record_that_msgpack_cannot_hold_is_replaced_by_a_note(tmp_path: Path, too_long: int) -> None:
    sink = writer(tmp_path)
    sink.begin_step(header())
    for number in range(1, 600):
        sink.emit(call(number, args=[too_long] if number == 300 else [1.5]))
    sink.emit(r.Text(r.TEXT, 1, "na\udc80me"))
    sink.end_step(0, 0, {})
    sink.close()
    data = read_index(tmp_path / RANK)
    assert [row[1] for row in data.rows[r.CALL]] == [n for n in range(1, 600) if n != 300]
    assert [note.code for note in data.records(r.NOTE)] == ["unwritable_record"]
    assert data.rows[r.TEXT][0][2] == "na\\udc80me"


def test_records_between_steps_are_counted_not_lost_in_silence(tmp_path: Path) -> None:
    sink = writer(tmp_path)
    small_step(sink, step=0)
    sink.emit(call(99))
    small_step(sink, step=1)
    sink.close()
    data = read_index(tmp_path / "step1/rank0")
    assert [(note.code, note.count) for note in data.records(r.NOTE)] == [("late_records", 1)]
    assert len(data.rows[r.CALL]) == 5


def test_shape_dtype_and_bytes_must_agree(tmp_path: Path) -> None:
    sink = writer(tmp_path)
    sink.begin_step(header())
    with pytest.raises(FormatError, match=r"'F32' and shape \[3\] cannot have 13 bytes"):
        sink.store("F32", [3], 13, fill_from(noise(13)))
    with pytest.raises(FormatError, match="C128"):
        sink.store("C128", [1], 16, fill_from(noise(16)))
    sink.close()


def test_calls_out_of_order_are_refused(tmp_path: Path) -> None:
    sink = writer(tmp_path)
    with pytest.raises(StoreError, match="outside of a step"):
        store(sink, noise(3), "U8")
    with pytest.raises(StoreError, match="outside of a step"):
        sink.end_step(0, 0, {})
    sink.begin_step(header(0))
    with pytest.raises(StoreError, match="end_step for step 0"):
        sink.begin_step(header(1))
    sink.close()
    with pytest.raises(StoreError, match="closed"):
        sink.begin_step(header(1))


def test_close_lets_go_of_threads_and_files(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd")), threading.active_count()
    sink = writer(tmp_path)
    small_step(sink)
    sink.begin_step(header(1))
    store(sink, noise(10), "U8")
    sink.close()
    sink.close()
    assert (set(os.listdir("/proc/self/fd")), threading.active_count()) == before


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_file_modes_follow_the_umask(tmp_path: Path, umask: int, mode: int) -> None:
    old = os.umask(umask)
    try:
        sink = writer(tmp_path / "dump")
        small_step(sink)
        sink.close()
    finally:
        os.umask(old)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "dump" / RANK).iterdir()} == {mode}


def test_a_forked_child_neither_writes_nor_hangs(tmp_path: Path) -> None:
    script = f"""
import os, sys
from pathlib import Path
from tests.store.recording import *
sink = writer(Path({str(tmp_path)!r}))
sink.begin_step(header())
store(sink, noise(10), "U8")
child = os.fork()
if child == 0:
    assert store(sink, noise(10), "U8") == 0
    sink.emit(call(7))
    sink.end_step(0, 0, {{}})
    sink.close()
    sys.exit(5)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
sink.emit(call(1))
sink.end_step(1, 0, {{}})
sink.close()
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60, cwd=ROOT)
    data = read_index(tmp_path / RANK)
    assert data.committed
    assert [row[1] for row in data.rows[r.CALL]] == [1]
    assert blobs_of(tmp_path / RANK) == {1: noise(10).tobytes()}


def test_a_program_that_forgets_close_ends(tmp_path: Path) -> None:
    script = f"""
from pathlib import Path
from tests.store.recording import *
sink = writer(Path({str(tmp_path)!r}))
small_step(sink)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60, cwd=ROOT)


def test_the_store_works_without_torch() -> None:
    folder = ROOT / "aten_dump"
    files = [file.relative_to(folder.parent).with_suffix("") for file in sorted((folder / "store").rglob("*.py"))]
    assert len(files) > 10
    lines = [
        "import sys, types",
        "package = sys.modules['aten_dump'] = types.ModuleType('aten_dump')",  # its own __init__ may import torch
        f"package.__path__ = [{str(ROOT / 'aten_dump')!r}]",
        *("import " + ".".join(file.parts) for file in files if file.name != "__init__"),
        "assert 'torch' not in sys.modules",
    ]
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True, timeout=60, cwd=ROOT)
