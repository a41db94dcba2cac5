"""One growing shard, and how long headers should be."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
import xxhash
from safetensors import safe_open

from aten_dump.errors import StoreError
from aten_dump.store.shards import ALIGNMENT, MAX_HEADER_BYTES, partial_name, shard_name
from aten_dump.store.writing import shard_writer as module
from aten_dump.store.writing.shard_writer import (
    FIRST_HEADER_BYTES,
    FREE_MARGIN_BYTES,
    LEAST_HEADER_BYTES,
    PLENTY_BYTES,
    TRUSTED_SECONDS,
    WRITE_BYTES,
    WRITE_PIECES,
    FreeSpace,
    HeaderBudget,
    ShardWriter,
)


def add(
    shard: ShardWriter, number: int, content: bytes, dtype: str = "U8", shape: list[int] | None = None, hash_of: int = 0
) -> None:
    shard.begin(dtype)
    shard.add(None, memoryview(content))
    shard.end(number, dtype, [len(content)] if shape is None else shape, hash_of)


def test_a_shard_that_stock_safetensors_opens(tmp_path: Path) -> None:
    shard = ShardWriter(tmp_path, 0, 4096, lambda chunks: None)
    assert shard.is_empty
    add(shard, 1, b"abc")
    add(shard, 2, bytes(8), "F32", [2], hash_of=7)
    assert shard.data_bytes == shard.queued_bytes == 12 and shard.record[1:] == (0, 4096) and not shard.is_empty
    assert shard.take_written() == [], "nothing is journaled before it is written"
    shard.flush()
    assert shard.queued_bytes == 0
    (first, first_hash_of), (second, second_hash_of) = shard.take_written()
    assert (first.offset, first.nbytes, second.offset, second.nbytes) == (0, 3, 4, 8), "aligned to the item"
    assert first.checksum == xxhash.xxh3_64_digest(b"abc") and second.checksum == xxhash.xxh3_64_digest(bytes(8))
    assert (first_hash_of, second_hash_of) == (0, 7) and shard.take_written() == []
    assert shard.finish() == 4096 + 12 == (tmp_path / shard_name(0)).stat().st_size
    assert not (tmp_path / partial_name(0)).exists()
    with safe_open(tmp_path / shard_name(0), "np") as file:
        assert set(file.keys()) == {"1", "2", "pad.3"}
        assert bytes(file.get_tensor("1")) == b"abc"


@pytest.mark.parametrize("flushed", [False, True])
def test_a_shard_is_made_when_something_is_written_and_is_the_same_whole_or_in_parts(
    tmp_path: Path, flushed: bool
) -> None:
    shard = ShardWriter(tmp_path, 0, 4096, lambda chunks: None)
    for number in (1, 2):
        add(shard, number, b"abc")
        assert not list(tmp_path.iterdir()) or flushed
        if flushed:
            shard.flush()
    assert shard.finish() == 4096 + 6
    content = (tmp_path / shard_name(0)).read_bytes()
    assert content[4096:] == b"abcabc" and len(list(tmp_path.iterdir())) == 1
    with safe_open(tmp_path / shard_name(0), "np") as file:
        assert set(file.keys()) == {"1", "2"}


def test_a_blob_that_was_not_ended_is_forgotten(tmp_path: Path) -> None:
    shard = ShardWriter(tmp_path, 0, 4096, lambda chunks: None)
    add(shard, 1, b"abc")
    shard.begin("U8")
    shard.add(None, memoryview(b"half of it"))
    assert shard.is_inside_blob
    shard.rewind()
    assert not shard.is_inside_blob and shard.data_bytes == 3
    add(shard, 2, b"de")
    shard.flush()
    (first, _), (second, _) = shard.take_written()
    assert (first.offset, second.offset) == (0, 3) and second.checksum == xxhash.xxh3_64_digest(b"de")
    assert shard.finish() == 4096 + 5
    assert (tmp_path / shard_name(0)).read_bytes()[4096:] == b"abcde"


@pytest.mark.parametrize("nbytes", [0, 1, WRITE_BYTES, 3 * WRITE_BYTES + 5])
def test_long_blobs_are_written_in_parts_that_stay_in_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nbytes: int
) -> None:
    longest, real = [], os.pwritev
    monkeypatch.setattr(
        os, "pwritev", lambda fd, parts, at: longest.append(sum(map(len, parts))) or real(fd, parts, at)
    )
    content = np.random.default_rng(0).bytes(nbytes)
    shard = ShardWriter(tmp_path, 0, 4096, lambda chunks: None)
    add(shard, 1, content)
    add(shard, 2, b"abc")
    shard.flush()
    found = [blob.record.checksum for blob in shard.take_written()]
    assert found == [xxhash.xxh3_64_digest(content), xxhash.xxh3_64_digest(b"abc")]
    assert shard.finish() == 4096 + nbytes + 3 and max(longest) <= 2 * WRITE_BYTES
    assert (tmp_path / shard_name(0)).read_bytes()[4096:] == content + b"abc"


def test_a_checksum_that_is_known_is_not_taken_again_nor_mixed_with_others(tmp_path: Path) -> None:
    shard = ShardWriter(tmp_path, 0, 4096, lambda chunks: None)
    contents = [b"abc", bytes(3 * WRITE_BYTES), b"defg"]
    for number, content in enumerate(contents, 1):
        shard.begin("U8")
        is_known = number == 2
        shard.add(None, memoryview(content), is_checked=is_known)
        shard.end(number, "U8", [len(content)], 0, b"as known" if is_known else b"")
    shard.flush()
    found = [blob.record.checksum for blob in shard.take_written()]
    assert found == [xxhash.xxh3_64_digest(b"abc"), b"as known", xxhash.xxh3_64_digest(b"defg")]
    assert shard.finish() == 4096 + sum(map(len, contents))
    assert (tmp_path / shard_name(0)).read_bytes()[4096:] == b"".join(contents)


def test_any_number_of_pieces_can_be_written(tmp_path: Path) -> None:
    shard = ShardWriter(tmp_path, 0, 1 << 20, lambda chunks: None)
    for number in range(1, 4 * WRITE_PIECES):  # more than the system takes at once
        add(shard, number, b"%d" % number)
    shard.finish()
    expected = b"".join(b"%d" % number for number in range(1, 4 * WRITE_PIECES))
    assert (tmp_path / shard_name(0)).read_bytes()[1 << 20 :] == expected
    assert len(shard.take_written()) == 4 * WRITE_PIECES - 1


@pytest.mark.parametrize("is_longer", [False, True])
def test_of_a_write_that_failed_midway_what_is_in_the_file_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_longer: bool
) -> None:
    """Of a file that was longer before, since a blob was forgotten, nobody knows what is new."""
    shard = ShardWriter(tmp_path, 0, 4096, lambda chunks: None)
    if is_longer:
        shard.begin("U8")
        shard.add(None, memoryview(bytes(10)))
        shard.rewind()
    for number in (1, 2, 3):
        add(shard, number, b"abc")

    def cut_off(fd: int, parts: list[bytes], offset: int) -> None:
        os.pwrite(fd, b"".join(map(bytes, parts))[:-1], offset)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "write_all", cut_off)
    with pytest.raises(OSError, match="No space"):
        shard.flush()
    assert [blob.record.id for blob in shard.take_written()] == ([] if is_longer else [1, 2])
    shard.close()


def test_room_in_the_header(tmp_path: Path) -> None:
    shard = ShardWriter(tmp_path, 0, 4096, lambda chunks: None)
    rest = 4096 - shard.header_used - 100
    assert shard.has_header_room(rest) and not shard.has_header_room(rest + 1)
    add(shard, 1, b"abc")
    assert not shard.has_header_room(rest)
    shard.close()
    shard.close()


def test_header_budget() -> None:
    budget = HeaderBudget()
    assert budget.reserve(10) == FIRST_HEADER_BYTES
    assert budget.reserve(FIRST_HEADER_BYTES) == FIRST_HEADER_BYTES + 1024
    assert budget.reserve(FIRST_HEADER_BYTES + 1) % ALIGNMENT == 0
    assert budget.reserve(FIRST_HEADER_BYTES + 1024) > FIRST_HEADER_BYTES + 1024, "the entry is not all of a header"
    budget.overflowed()
    assert budget.reserve(10) == 4 * FIRST_HEADER_BYTES
    budget.used(1000)
    budget.end_step()
    assert budget.reserve(10) == 4 * FIRST_HEADER_BYTES, "in a step that overflowed nothing shrinks"
    budget.used(1000)
    budget.used(400)
    budget.end_step()
    assert budget.reserve(10) == FIRST_HEADER_BYTES, "to a quarter at the most"
    budget.end_step()
    assert budget.reserve(10) == FIRST_HEADER_BYTES, "a step without shards teaches nothing"
    budget.used(1000)
    budget.end_step()
    assert budget.reserve(10) == LEAST_HEADER_BYTES
    budget.used(100_000)
    budget.end_step()
    assert budget.reserve(10) == -(-(125_000 + 1024) // ALIGNMENT) * ALIGNMENT
    for _ in range(20):
        budget.overflowed()
    assert budget.reserve(10) == MAX_HEADER_BYTES


class Disk:
    """A disk with so many bytes free, that counts how often it is asked."""

    def __init__(self, free: int) -> None:
        self.free, self.asked = free, 0

    def usage(self, folder: Path) -> Disk:
        self.asked += 1
        return self


def test_free_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(FREE_MARGIN_BYTES + 100)
    monkeypatch.setattr(module.shutil, "disk_usage", disk.usage)
    space = FreeSpace()
    space.check(tmp_path, 100)
    with pytest.raises(StoreError, match=r"are free, .* are needed .*set max_bytes") as caught:
        space.check(tmp_path, 101)
    assert caught.value.errno == errno.ENOSPC
    monkeypatch.undo()
    space.check(tmp_path / "moved away", 1 << 60)


def test_a_disk_with_plenty_of_room_is_asked_once_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, now = Disk(PLENTY_BYTES), 1000.0
    monkeypatch.setattr(module.shutil, "disk_usage", disk.usage)
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    space = FreeSpace()
    for _ in range(3):
        space.check(tmp_path, 100)
    assert disk.asked == 1
    with pytest.raises(StoreError):
        space.check(tmp_path, PLENTY_BYTES)
    disk.free -= 1
    now += TRUSTED_SECONDS
    for _ in range(3):
        space.check(tmp_path, 100)
    assert disk.asked == 5, "of less than plenty each shard asks"
