"""Shards: when a new one begins, how long headers are, reading with and without a finished header."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from aten_dump.errors import FormatError, MissingDataError
from aten_dump.store import records as r
from aten_dump.store.checking.verification import verify
from aten_dump.store.index_reader import read_index
from aten_dump.store.shard_reader import ShardReader
from aten_dump.store.shards import (
    DTYPE_BITS,
    MAX_HEADER_BYTES,
    header_entry,
    most_entry_bytes,
    partial_name,
    shard_name,
)
from aten_dump.store.writing.shard_writer import FIRST_HEADER_BYTES, HeaderBudget
from aten_dump.store.writing.step_files import LANES
from tests.store.recording import RANK, header, noise, store, writer


def tensors_step(root: Path, steps: list[int], nbytes: int = 8, **options: int) -> list[list[r.Shard]]:
    """Write steps of so many tensors each; return their Shard records."""
    sink = writer(root, queue_bytes=64 << 20, **options)
    array = noise(nbytes)
    for step, count in enumerate(steps):
        sink.begin_step(header(step))
        for _ in range(count):
            store(sink, array.view(np.float32), "F32")
        sink.end_step(0, 0, {})
    sink.close()
    return [list(read_index(root / f"step{step}/rank0").records(r.SHARD)) for step in range(len(steps))]


def test_shards_roll_at_shard_bytes(tmp_path: Path) -> None:
    sink = writer(tmp_path, shard_bytes=1000)
    sink.begin_step(header())
    for seed, size in enumerate([400, 600, 1, 5000, 999, 1, 2, 1000]):
        store(sink, noise(size, seed), "U8")
    sink.end_step(0, 0, {})
    sink.close()
    data = read_index(tmp_path / RANK)
    assert [(blob.shard, blob.offset) for blob in data.records(r.BLOB)] == [
        (0, 0), (0, 400), (1, 0), (2, 0), (3, 0), (3, 999), (4, 0), (5, 0),
    ]  # fmt: skip
    sizes = [(tmp_path / RANK / shard_name(number)).stat().st_size for number in range(6)]
    assert data.commit is not None and list(data.commit.shards) == sizes
    headers = {shard.number: shard.header_bytes for shard in data.records(r.SHARD)}
    assert [size - headers[number] for number, size in enumerate(sizes)] == [1000, 1, 5000, 1000, 2, 1000]
    assert verify(tmp_path / RANK) == []


def test_the_data_start_at_a_multiple_of_64(tmp_path: Path) -> None:
    for shards in tensors_step(tmp_path, [10, 900, 10, 10]):
        assert all(shard.header_bytes % 64 == 0 for shard in shards)


@pytest.mark.slow
def test_a_step_like_gpt2_is_one_shard_a_lane_from_the_start(tmp_path: Path) -> None:
    first, second = tensors_step(tmp_path, [600, 600], nbytes=500_000, shard_bytes=4 << 30)
    assert [shard.header_bytes for shard in first] == [FIRST_HEADER_BYTES] * LANES
    assert len(second) == LANES


def test_a_small_step_is_one_shard(tmp_path: Path) -> None:
    (only,) = tensors_step(tmp_path, [600], nbytes=1000, shard_bytes=4 << 30)
    assert len(only) == 1


def test_headers_grow_within_a_step_and_are_remembered(tmp_path: Path) -> None:
    steps = tensors_step(tmp_path, [6000, 6000, 6000, 20, 20, 20, 20, 150])
    first = [shard.header_bytes for shard in steps[0]]
    assert first == [64 << 10, 256 << 10, 1 << 20]
    assert [len(shards) for shards in steps[1:]] == [1] * 7
    assert steps[2][0].header_bytes < steps[1][0].header_bytes
    assert steps[6][0].header_bytes == 16 << 10  # small steps do not waste room
    assert all(verify(tmp_path / f"step{step}/rank0") == [] for step in range(8))


def test_no_header_is_longer_than_safetensors_allows() -> None:
    budget = HeaderBudget()
    for _ in range(20):
        budget.overflowed()
    assert budget.reserve(80) == MAX_HEADER_BYTES < 100_000_000
    budget.end_step()
    assert budget.reserve(80) == MAX_HEADER_BYTES


def test_many_empty_blobs_do_not_overflow_the_header(tmp_path: Path) -> None:
    (shards,) = tensors_step(tmp_path, [3000], nbytes=0)
    assert len(shards) > 1
    assert verify(tmp_path / RANK) == []


def test_stock_safetensors_reads_names_and_values(tmp_path: Path) -> None:
    sink = writer(tmp_path)
    sink.begin_step(header())
    arrays = {
        "F32": np.arange(6, dtype=np.float32).reshape(2, 3),
        "I64": np.arange(4),
        "BOOL": np.array([True, False, True]),
    }
    ids = {store(sink, array, dtype): array for dtype, array in arrays.items()}
    sink.end_step(0, 0, {})
    sink.close()
    with safe_open(tmp_path / RANK / shard_name(0), "np") as file:
        assert file.metadata() == {"format": "pt"}
        for number, array in ids.items():
            found = file.get_tensor(str(number))
            assert found.dtype == array.dtype
            np.testing.assert_array_equal(found, array)
    size = (tmp_path / RANK / shard_name(0)).stat().st_size
    assert size == read_index(tmp_path / RANK).rows[r.SHARD][0][2] + 24 + 32 + 3


def many_blobs(
    root: Path, count: int, verify: bool = True, *, nbytes: int = 100, **options: int
) -> tuple[Path, ShardReader]:
    """Write a step of so many blobs of noise; return its folder and a reader of it."""
    sink = writer(root, **options)
    sink.begin_step(header())
    for seed in range(count):
        store(sink, noise(nbytes, seed), "U8")
    sink.end_step(0, 0, {})
    sink.close()
    return root / RANK, ShardReader(root / RANK, read_index(root / RANK).rows[r.SHARD], verify)


def one_blob(root: Path) -> tuple[Path, ShardReader, r.Blob]:
    folder, reader = many_blobs(root, 1)
    return folder, reader, next(read_index(folder).records(r.BLOB))


def open_below(folder: Path) -> int:
    """Count the files in a folder that this process has open."""
    return sum(os.path.realpath(f"/proc/self/fd/{fd}").startswith(str(folder)) for fd in os.listdir("/proc/self/fd"))


def test_what_is_read_is_the_readers_own(tmp_path: Path) -> None:
    folder, reader, blob = one_blob(tmp_path)
    found = reader.read(blob)
    before = (folder / shard_name(0)).read_bytes()
    found[:] = 0
    assert (folder / shard_name(0)).read_bytes() == before
    reader.close()
    assert reader.read(blob).tobytes() == noise(100).tobytes()


@pytest.mark.parametrize("verify", [True, False])
def test_a_shard_that_is_cut_off_while_it_is_open_is_an_error(tmp_path: Path, verify: bool) -> None:
    """Through a map of the file this would end the process."""
    folder, reader = many_blobs(tmp_path, 2, verify, nbytes=1 << 20)
    first, second = read_index(folder).records(r.BLOB)
    assert reader.read(first).tobytes() == noise(1 << 20, 0).tobytes()
    with open(folder / shard_name(0), "r+b") as file:
        file.truncate(file.seek(0, os.SEEK_END) - (1 << 19))
    with pytest.raises(MissingDataError, match="they were lost when the run or its machine was cut short"):
        reader.read(second)


def test_a_shard_that_grows_is_read_by_the_same_reader(tmp_path: Path) -> None:
    folder, reader = many_blobs(tmp_path, 2)
    first, second = read_index(folder).records(r.BLOB)
    path = folder / shard_name(0)
    whole = path.read_bytes()
    partial = path.rename(folder / partial_name(0))
    partial.write_bytes(whole[:-50])
    assert reader.read(first).tobytes() == noise(100, 0).tobytes()
    with pytest.raises(MissingDataError, match="blob 2 in"):
        reader.read(second)
    partial.write_bytes(whole)
    partial.rename(path)
    assert reader.read(second).tobytes() == noise(100, 1).tobytes()


def test_few_shards_are_open_at_a_time_and_none_without_a_reader(tmp_path: Path) -> None:
    folder, reader = many_blobs(tmp_path, 10, shard_bytes=100)
    blobs = list(read_index(folder).records(r.BLOB))
    assert len({blob.shard for blob in blobs}) == 10
    for _ in range(2):
        assert [reader.read(blob).tobytes() for blob in blobs] == [noise(100, seed).tobytes() for seed in range(10)]
        assert 0 < open_below(folder) <= 4
    del reader
    assert open_below(folder) == 0


def test_an_empty_blob_needs_no_shard(tmp_path: Path) -> None:
    folder, reader = many_blobs(tmp_path, 1, nbytes=0)
    (folder / shard_name(0)).unlink()
    assert reader.read(next(read_index(folder).records(r.BLOB))).size == 0


def test_the_reader_takes_raw_rows_with_fields_of_newer_versions(tmp_path: Path) -> None:
    folder, _, blob = one_blob(tmp_path)
    shards = read_index(folder).rows[r.SHARD]
    reader = ShardReader(folder, [(*row, "new") for row in shards])
    assert reader.read((*blob, "new")).tobytes() == noise(100).tobytes()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"nbytes": 101}, MissingDataError),
        ({"nbytes": 1 << 60}, MissingDataError),
        ({"offset": 1}, MissingDataError),
        ({"offset": 1 << 60}, MissingDataError),
        ({"offset": -5}, FormatError),
        ({"nbytes": -5}, FormatError),
        ({"shard": 7}, FormatError),
    ],
)
def test_the_reader_checks_bounds(tmp_path: Path, change: dict[str, int], error: type[Exception]) -> None:
    folder, reader, blob = one_blob(tmp_path)
    with pytest.raises(error, match=f"blob 1 in {folder}"):
        reader.read(blob._replace(**change))


def test_the_reader_reads_a_part_of_a_blob_and_no_more_than_there_is(tmp_path: Path) -> None:
    _, reader, blob = one_blob(tmp_path)
    assert reader.read(blob, 3, 9).tobytes() == noise(100).tobytes()[3:9]
    assert reader.read(blob, 100, 100).size == 0
    for start, stop in ((-1, 5), (5, 4), (0, 101)):
        with pytest.raises(FormatError, match=f"bytes {start} to {stop} are asked for of blob 1"):
            reader.read(blob, start, stop)


def test_the_reader_says_which_shard_is_missing_or_foreign(tmp_path: Path) -> None:
    folder, _, blob = one_blob(tmp_path)
    shards = read_index(folder).rows[r.SHARD]
    path = folder / shard_name(0)
    moved = shutil.move(path, tmp_path)
    with pytest.raises(MissingDataError, match=r"shard-00000.safetensors does not exist"):
        ShardReader(folder, shards).read(blob)
    whole = Path(moved).read_bytes()
    path.write_bytes((8).to_bytes(8, "little") + whole[8:])
    with pytest.raises(FormatError, match="16 bytes before its data"):
        ShardReader(folder, shards).read(blob)
    path.write_bytes(b"")
    with pytest.raises(FormatError, match="8 bytes before its data"):
        ShardReader(folder, shards).read(blob)
    path.rename(path.with_name(path.name + ".partial"))
    with pytest.raises(MissingDataError, match="they were lost when the run or its machine was cut short"):
        ShardReader(folder, shards).read(blob)


@pytest.mark.parametrize("dtype", DTYPE_BITS)
@pytest.mark.parametrize("shape", [[], [0], [1, 2, 3], [2**63 - 1] * 64])
def test_no_item_of_a_header_is_longer_than_is_said_before_it_is_written(dtype: str, shape: list[int]) -> None:
    greatest = 2**64 - 1
    longest = header_entry(str(greatest), dtype, shape, greatest, greatest)
    assert len(header_entry("1", dtype, shape, 0, 8)) < len(longest) <= most_entry_bytes(dtype, shape)
