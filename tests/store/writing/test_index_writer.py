"""Records are appended in batches, each with a check record; defaults at the end of frequent kinds are left out."""

from __future__ import annotations

import itertools
import os
import resource
from pathlib import Path
from typing import Any

import msgpack
import pytest
import xxhash

from aten_dump.errors import AtenDumpError
from aten_dump.store import records as r
from aten_dump.store.index_reader import read_index
from aten_dump.store.regular_files import GrowingFile
from aten_dump.store.writing.index_writer import CHECK_BYTES, CHECKED_RECORDS, INDEX_FILE, IndexWriter
from tests.store.recording import call, header


def rows_of(path: Path) -> list[Any]:
    unpacker = msgpack.Unpacker(use_list=False, strict_map_key=False)
    unpacker.feed(path.read_bytes())
    return list(unpacker)


@pytest.mark.parametrize("count", [1, 15, 16, 300, 5000])
def test_batches_of_any_size(tmp_path: Path, count: int) -> None:
    index = IndexWriter.create(tmp_path / INDEX_FILE)
    index.add([(r.TEXT, n, "x") for n in range(count)])
    assert index.waiting_bytes > 0
    index.flush()
    assert index.waiting_bytes == 0
    index.close()
    rows = rows_of(tmp_path / INDEX_FILE)
    assert [row for row in rows if row[0] != r.CHECK] == [(r.TEXT, n, "x") for n in range(count)]
    content = (tmp_path / INDEX_FILE).read_bytes()
    starts = [0, *(row[1] for row in rows if row[0] == r.CHECK)]
    assert rows[-1] == (r.CHECK, starts[-1], xxhash.xxh3_64_digest(content[starts[-2] : starts[-1]]))
    assert all(b - a < CHECK_BYTES + 100 * CHECKED_RECORDS for a, b in itertools.pairwise(starts))


def test_each_check_is_over_what_came_after_the_one_before(tmp_path: Path) -> None:
    index = IndexWriter.create(tmp_path / INDEX_FILE)
    for n in range(3):
        index.add([(r.TEXT, n, "x")])
        index.flush()
    index.flush()  # nothing waits
    index.add([])
    index.flush()
    index.close()
    content = (tmp_path / INDEX_FILE).read_bytes()
    checks = [row for row in rows_of(tmp_path / INDEX_FILE) if row[0] == r.CHECK]
    starts = [0, *(check[1] for check in checks)]
    assert [check[2] for check in checks] == [
        xxhash.xxh3_64_digest(content[start : check[1]]) for start, check in zip(starts, checks, strict=False)
    ]
    assert len(checks) == 3


def test_it_goes_on_after_a_check_of_another_run(tmp_path: Path) -> None:
    path = tmp_path / INDEX_FILE
    first = IndexWriter.create(path)
    first.add([header()])
    first.flush()
    first.close()
    content = path.read_bytes()
    at = rows_of(path)[-1][1]
    again = IndexWriter(GrowingFile.opened(os.open(path, os.O_WRONLY | os.O_APPEND)), len(content), content[at:])
    again.add([(r.TEXT, 1, "x")])
    again.flush()
    again.close()
    whole, check = path.read_bytes(), rows_of(path)[-1]
    assert check[1:] == (check[1], xxhash.xxh3_64_digest(whole[at : check[1]]))


def test_defaults_are_left_out_and_nothing_else(tmp_path: Path) -> None:
    value = r.Value(r.VALUE, 1, 1, 0, 0, 1, [2], [1], 0, None)
    sent: list[Any] = [
        call(1), call(2, error="x"), call(3, written=["a", 1]), value, value._replace(flags=1), value._replace(extra={}),
        (r.CALL, 5, None), (*value, None),
    ]  # fmt: skip
    index = IndexWriter.create(tmp_path / INDEX_FILE)
    index.add(sent)
    index.flush()
    index.close()
    lengths = [len(row) for row in rows_of(tmp_path / INDEX_FILE)[:-1]]
    calls, values = len(r.Call._fields), len(r.Value._fields)
    assert lengths == [calls - 2, calls, calls - 1, values - 2, values - 1, values, 3, values + 1]


def test_a_record_that_cannot_be_packed_does_not_take_the_others_along(tmp_path: Path) -> None:
    index = IndexWriter.create(tmp_path / INDEX_FILE)
    try:
        index.add([(r.TEXT, 1, "a"), (r.TEXT, 2, object()), (r.TEXT, 3, 1 << 70), (r.TEXT, 4, "d")])
    except AtenDumpError:
        pytest.fail("one bad record is not the end of a dump")
    index.flush()
    index.close()
    rows = rows_of(tmp_path / INDEX_FILE)
    assert [row[1] for row in rows if row[0] == r.TEXT and row[2] in ("a", "d")] == [1, 4]
    assert any(row[0] == r.NOTE for row in rows), "what could not be written is told"


def test_an_index_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    IndexWriter.create(tmp_path / INDEX_FILE).begin()
    again = IndexWriter.create(tmp_path / INDEX_FILE)
    again.add([header()])
    with pytest.raises(FileExistsError):
        again.flush()


def test_begun_it_has_its_header_and_nothing_that_waits_is_lost(tmp_path: Path) -> None:
    index = IndexWriter.create(tmp_path / INDEX_FILE)
    index.add([call(1)])
    index.add_first([header(), r.Shard(r.SHARD, 0, 64)])
    waiting = index.waiting_bytes
    index.begin()
    found = read_index(tmp_path / INDEX_FILE)
    assert found.header is not None and not found.rows[r.CALL] and found.problem is not None
    assert index.waiting_records == 2 and 0 < index.waiting_bytes < waiting
    index.flush()
    index.close()
    assert [row[0] for row in rows_of(tmp_path / INDEX_FILE)] == [r.HEADER, r.CHECK, r.SHARD, r.CALL, r.CHECK]


def test_what_a_write_has_failed_to_write_the_next_one_writes(tmp_path: Path) -> None:
    index = IndexWriter.create(tmp_path / INDEX_FILE)
    index.add_first([header(), r.Shard(r.SHARD, 0, 64)])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit, write in ((1, index.begin), (10**6, index.begin), (300, index.flush), (10**6, index.flush)):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        try:
            write()
            assert limit == 10**6
        except OSError as error:
            assert "File too large" in str(error) and limit < 10**6
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        index.add([call(n) for n in range(100)] if write == index.begin and limit > 1 else [])
    index.close()
    kinds = [row[0] for row in rows_of(tmp_path / INDEX_FILE)]
    assert kinds == [r.HEADER, r.CHECK, r.SHARD, *[r.CALL] * 100, r.CHECK]
    assert read_index(tmp_path).dropped_bytes == 0


def test_closing_twice_is_closing_once(tmp_path: Path) -> None:
    index = IndexWriter.create(tmp_path / INDEX_FILE)
    index.add_first([header()])
    index.begin()
    index.close()
    taken = os.open(tmp_path / "other", os.O_WRONLY | os.O_CREAT)  # may get the number of the file that was closed
    index.close()
    os.write(taken, b"still open")
    os.close(taken)
    assert (tmp_path / "other").read_bytes() == b"still open"


@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize(("share", "is_readable"), [(0.9, True), (0.5, True), (0.0001, False)])
def test_of_a_first_write_that_is_cut_off_the_begin_can_be_read(
    tmp_path: Path, share: float, is_readable: bool, is_last: bool
) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    index = IndexWriter.create(tmp_path / INDEX_FILE, lambda: folder)
    index.add_first([header()])
    index.add([call(n) for n in range(1, 3000)])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(index.waiting_bytes * share), before[1]))
    try:
        for write in (lambda: index.flush(is_last), index.begin, index.flush):  # as after an error
            try:
                write()
            except OSError as error:
                assert "File too large" in str(error)
            else:
                assert write == index.begin, "the disk is full"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    index.close()
    os.close(folder)
    assert (tmp_path / INDEX_FILE).exists() == is_readable
    if is_readable:
        assert 1000 * share < len(read_index(tmp_path).rows[r.CALL]) < 3000 * share


def test_all_of_an_index_at_once_is_what_it_is_bit_by_bit(tmp_path: Path) -> None:
    records = [header(), *(call(n) for n in range(1, 3000))]
    (tmp_path / "other").mkdir()
    for place, is_last in ((tmp_path, True), (tmp_path / "other", False)):
        folder = os.open(place, os.O_RDONLY)
        index = IndexWriter.create(place / INDEX_FILE, lambda folder=folder: folder)
        index.add(records)
        index.flush(is_last)
        index.close()
        os.close(folder)
    assert (tmp_path / INDEX_FILE).read_bytes() == (tmp_path / "other" / INDEX_FILE).read_bytes()


def test_what_others_refer_to_comes_first(tmp_path: Path) -> None:
    index = IndexWriter.create(tmp_path / INDEX_FILE)
    for flush in (0, 1):
        index.add([(r.TEXT, 10 * flush + n, "x") for n in range(2)])
        index.add_first([(r.TEXT, 10 * flush + n, "x") for n in (2, 3)])
        assert index.waiting_records == 4
        index.flush()
    index.close()
    assert [row[1] for row in rows_of(tmp_path / INDEX_FILE) if row[0] == r.TEXT] == [2, 3, 0, 1, 12, 13, 10, 11]
