"""Bytes for which the storing thread waits where many have come: the same files, few that wait, whatever interrupts."""

from __future__ import annotations

import _thread
import contextlib
import errno
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from aten_dump.errors import StoreError
from aten_dump.store import records as r
from aten_dump.store.checking.verification import verify
from aten_dump.store.index_reader import read_index
from aten_dump.store.recovery import recover
from aten_dump.store.writing.step_files import LANE_BYTES, QUEUED_BYTES
from aten_dump.store.writing.writer import LEAST_AWAITED_BYTES
from tests.checkout import ROOT
from tests.store.recording import (
    RANK,
    bare_value,
    begin,
    blobs_of,
    call,
    header,
    in_threads,
    noise,
    store_in_place,
    writer,
)

LONG = LANE_BYTES + 5
COUNT = 100  # of blobs of 1 MiB


@pytest.mark.parametrize("shard_bytes", [pytest.param(1 << 30, marks=pytest.mark.slow), 2 * LONG])
def test_the_files_are_those_of_the_queue(tmp_path: Path, shard_bytes: int) -> None:
    found = []
    for at_once in (False, True):
        sink = writer(tmp_path / str(at_once), at_once=at_once, shard_bytes=shard_bytes)
        for step in (0, 1):
            begin(sink, step)
            for number in range(1, 40):
                sink.emit(call(number))
                sink.emit(bare_value(number))
                blob = store_in_place(sink, noise(LONG + number, number), number)
                sink.emit(r.Data(r.DATA, number, blob, 0, 0))
            sink.end_step(39, 39, {})
        sink.close()
        for step in (0, 1):
            folder = tmp_path / str(at_once) / f"step{step}/rank0"
            assert verify(folder) == []
            data = read_index(folder)
            assert data.committed
            hashes = {row[1]: row[2] for row in data.rows[r.HASH]}
            found.append((blobs_of(folder), hashes, sorted(row[1:] for row in data.rows[r.DATA])))
    assert found[0] == found[2]
    assert found[1] == found[3]
    assert len(found[0][0]) == 39


def test_steps_that_follow_at_once_keep_their_own(tmp_path: Path) -> None:
    sink = writer(tmp_path, at_once=True)
    array = noise(LONG)
    for step in range(100):
        sink.begin_step(header(step))
        for number in range(2 + step % 3):
            array[:2] = step, number
            store_in_place(sink, array)
            time.sleep(step % 7 / 5000)  # the writer's thread is at any point of the step before
        sink.end_step(0, 0, {})
    sink.close()
    for step in range(100):
        blobs = blobs_of(tmp_path / f"step{step}/rank0")
        assert {(blob[0], blob[1]) for blob in blobs.values()} == {(step, number) for number in range(2 + step % 3)}


def test_no_more_than_that_waits_when_store_returns(tmp_path: Path) -> None:
    """As seen by a process that is killed right then."""
    program = f"""
import os, signal, sys, time
from pathlib import Path
from tests.store.recording import header, noise, store_in_place, writer
sink = writer(Path({str(tmp_path)!r}), at_once=True, queue_bytes=1 << 26)
sink.begin_step(header())
time.sleep(0.2)  # the writer's thread comes to the step
for number in range({COUNT}):
    store_in_place(sink, noise(1 << 20, number))
os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False)
    assert ended.returncode == -signal.SIGKILL
    recover(tmp_path / RANK)
    found = blobs_of(tmp_path / RANK)
    assert found == {number + 1: noise(1 << 20, number).tobytes() for number in range(len(found))}
    assert COUNT - QUEUED_BYTES // (1 << 20) <= len(found) < COUNT


@pytest.mark.parametrize("is_little", [False, True])
def test_the_end_of_a_step_waits_for_what_is_much(tmp_path: Path, is_little: bool) -> None:
    """Written meanwhile, it would stop the program for longer; a little waits for what comes next."""
    sink = writer(tmp_path, at_once=True, queue_bytes=64 << 20)
    sink.begin_step(header())
    nbytes = LEAST_AWAITED_BYTES - is_little
    store_in_place(sink, noise(nbytes))
    assert not list(tmp_path.glob("step0/rank0/*.safetensors*"))
    sink.end_step(0, 0, {})
    if not is_little:
        assert read_index(tmp_path / RANK).committed and blobs_of(tmp_path / RANK) == {1: noise(nbytes).tobytes()}
    sink.close()
    assert blobs_of(tmp_path / RANK) == {1: noise(nbytes).tobytes()}


def test_bytes_that_nobody_waits_for_are_written_after_a_while(tmp_path: Path) -> None:
    sink = writer(tmp_path, at_once=True)
    sink.begin_step(header())
    store_in_place(sink, noise(1000))
    end, index = time.monotonic() + 60, tmp_path / RANK / "index.msgpack"
    while not (index.exists() and blobs_of(tmp_path / RANK)) and time.monotonic() < end:
        time.sleep(0.01)
    assert blobs_of(tmp_path / RANK) == {1: noise(1000).tobytes()}
    sink.close()


def test_many_threads_do_not_mix_their_bytes(tmp_path: Path) -> None:
    sink = writer(tmp_path, at_once=True, queue_bytes=32 << 10)
    begin(sink)
    expected: dict[int, bytes] = {}

    def work(seed: int) -> None:
        for k in range(15):
            array = noise(1 + (seed * 7919 + k * 104_729) % (128 << 10), seed * 100 + k)
            expected[store_in_place(sink, array)] = array.tobytes()
            sink.emit(call(seed * 100 + k + 1))

    in_threads(work)
    sink.end_step(90, 0, {})
    sink.close()
    assert len(expected) == 90
    assert blobs_of(tmp_path / RANK) == expected
    assert verify(tmp_path / RANK) == []


def test_interrupts_at_any_moment_leave_whole_files(tmp_path: Path) -> None:
    """Ctrl-C while blobs are stored, again and again: all that is kept is right."""
    sink = writer(tmp_path, at_once=True)
    sink.begin_step(header())
    kept: dict[int, bytes] = {}
    interrupts = 0
    with ThreadPoolExecutor(1) as other:
        for number in range(60):
            array = noise(1 << 20, number)
            try:
                pressed = other.submit(_press, number)
                for _ in range(20):
                    kept[store_in_place(sink, array)] = array.tobytes()
                    array[0] ^= 1
                pressed.result()
                time.sleep(0.01)
            except KeyboardInterrupt:
                interrupts += 1
    sink.end_step(0, 0, {})
    sink.close()
    assert interrupts > 30
    assert verify(tmp_path / RANK) == []
    found = blobs_of(tmp_path / RANK)
    assert kept.keys() <= found.keys()
    assert all(found[blob] == kept[blob] for blob in kept)


def _press(number: int) -> None:
    time.sleep(number / 20_000)
    _thread.interrupt_main()


def test_a_full_disk_is_told_by_the_call_that_finds_it(small_disk: Path) -> None:
    sink = writer(small_disk / "dump", at_once=True)
    sink.begin_step(header())
    with pytest.raises(StoreError) as caught:  # noqa: PT012
        for number in range(100):
            store_in_place(sink, noise(1 << 20, number))
    assert caught.value.errno == errno.ENOSPC
    assert "step 0 of rank 0" in str(caught.value) and str(small_disk) in str(caught.value)
    sink.close()
    folder = small_disk / "dump" / RANK
    assert not read_index(folder).committed
    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    recover(folder)
    blobs = blobs_of(folder)
    assert len(blobs) > 2
    assert all(blobs[n] == noise(1 << 20, n - 1).tobytes() for n in blobs)


def test_an_interrupt_while_the_program_waits_gives_no_bytes_back_that_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = writer(tmp_path, at_once=True, max_bytes=3 * QUEUED_BYTES, queue_bytes=256 << 20)
    sink.begin_step(header())
    array = noise(QUEUED_BYTES)

    def interrupted(bell: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sink._thread, "flush", interrupted)
        for _ in range(5):
            with contextlib.suppress(KeyboardInterrupt):
                store_in_place(sink, array)
    sink.end_step(0, 0, {})
    sink.close()
    assert len(blobs_of(tmp_path / RANK)) == 3


def test_max_bytes_counts_them(tmp_path: Path) -> None:
    sink = writer(tmp_path, at_once=True, max_bytes=2 * LONG)
    sink.begin_step(header())
    assert [bool(store_in_place(sink, noise(LONG, n))) for n in range(4)] == [True, True, False, False]
    sink.end_step(0, 0, {})
    sink.close()
    assert len(blobs_of(tmp_path / RANK)) == 2
