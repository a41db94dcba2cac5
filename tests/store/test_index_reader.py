"""Reading an index: foreign files, newer versions, unknown kinds, the garbage collector."""

from __future__ import annotations

import gc
from pathlib import Path

import msgpack
import pytest
import xxhash

from aten_dump.errors import FormatError, MissingDataError
from aten_dump.store import index_reader
from aten_dump.store import records as r
from aten_dump.store.index_reader import read_index
from aten_dump.store.writing.index_writer import IndexWriter
from tests.store.recording import call, header


def write(path: Path, *batches: list[tuple[object, ...]]) -> Path:
    index = IndexWriter.create(path / "index.msgpack")
    for batch in batches:
        index.add(batch)
        index.flush()
    index.close()
    return path / "index.msgpack"


def test_unknown_kinds_are_counted_and_new_fields_kept_in_rows_and_cut_from_records(tmp_path: Path) -> None:
    path = write(tmp_path, [header(), (77, "x"), (*call(1), "new field"), (77, "y"), (200,)])
    data = read_index(path)
    assert data.unknown == {77: 2, 200: 1}
    assert data.rows[r.CALL][0][-1] == "new field"
    assert list(data.records(r.CALL)) == [call(1)._replace(args=())]


@pytest.mark.parametrize(
    "record", [call(3, args=[1], outputs=[0, 2], error="E"), r.Value(7, 2, 1, 0, 0, 1, [3], [1], 8, {"a": 1})]
)
def test_trailing_fields_that_were_left_out_have_their_defaults(tmp_path: Path, record: r.Record) -> None:
    defaults = type(record)._field_defaults  # type: ignore[attr-defined]
    least = len(record) - len(defaults)
    path = write(tmp_path, [header()], [record[:size] for size in range(least, len(record) + 1)])
    found = list(read_index(path).records(record[0]))
    assert len(found) == len(defaults) + 1
    for size, row in enumerate(found, least):
        assert msgpack.packb(row) == msgpack.packb(record[:size] + tuple(defaults.values())[size - least :])


def test_the_last_record_of_a_newer_version_is_read_too(tmp_path: Path) -> None:
    commit = r.Commit(r.COMMIT, 0, 0, 0, 0, [], {"copy": 0.5})
    data = read_index(write(tmp_path, [(*header(), "new field"), (*commit, "new field")]))
    assert (data.header, data.commit) == (header(), commit._replace(shards=()))


@pytest.mark.parametrize("at_once", [1, 64, 1000])
def test_an_index_is_read_to_its_end_however_much_comes_at_once(
    tmp_path: Path, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, [header()], *([call(k)] for k in range(1, 20)))
    monkeypatch.setattr(index_reader, "_READ_BYTES", max(at_once, len(msgpack.packb(header()))))
    data = read_index(path)
    assert [row[1] for row in data.rows[r.CALL]] == list(range(1, 20))
    assert data.dropped_bytes == 0


def test_a_folder_may_be_named_instead_of_the_file(tmp_path: Path) -> None:
    write(tmp_path, [header()])
    assert read_index(tmp_path).rows.keys() == read_index(tmp_path / "index.msgpack").rows.keys()
    assert set(read_index(tmp_path).rows) == set(r.RECORD_TYPES)


def test_a_map_with_a_map_for_a_key_is_no_index(tmp_path: Path) -> None:
    (tmp_path / "index.msgpack").write_bytes(b"\x97\x81\x81\x01\x02\x03" * 20)
    with pytest.raises(FormatError):
        read_index(tmp_path)


def test_a_missing_index_is_missing_data(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="was not recorded"):
        read_index(tmp_path / "step9" / "rank0")


def test_a_newer_version_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = write(tmp_path, [header()._replace(format_version=2)])
    with pytest.raises(FormatError, match=r"format version 2, .* reads up to 1; update aten_dump"):
        read_index(path)


@pytest.mark.parametrize(
    "data", [b"PK\x03\x04 a zip", b"\0" * 100, msgpack.packb([2, 1, "text"]), b"{}", msgpack.packb([1, "one"])]
)
def test_a_foreign_file_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "index.msgpack"
    path.write_bytes(data)
    with pytest.raises(FormatError, match=r"is not an index|damaged Header"):
        read_index(path)


@pytest.mark.parametrize("data", [b"", b"\x98", b"\x98\x01\x01"])
def test_an_index_cut_short_at_once_is_empty(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "index.msgpack"
    path.write_bytes(data)
    found = read_index(path)
    assert (found.header, found.committed, found.dropped_bytes) == (None, False, len(data))
    assert found.problem is not None and "cut short" in found.problem


def test_checks_that_are_data_of_other_records_are_not_taken_for_checks(tmp_path: Path) -> None:
    fakes = [b"\x93\x13" + bytes([n, 0xC4, 8]) + b"\x93\x13\x05\xc4\x08\x01\x02\x03" for n in range(128)]
    path = write(tmp_path, [header()], [r.Hash(r.HASH, n, fake) for n, fake in enumerate(fakes)])
    data = read_index(path)
    assert [row[2] for row in data.rows[r.HASH]] == fakes
    assert data.dropped_bytes == 0


@pytest.mark.parametrize("size", [0x60, 0xF0, 0xFFF0, 0x1_0000, 0x2_0000])
def test_checks_with_positions_of_any_width(tmp_path: Path, size: int) -> None:
    path = write(tmp_path, [header()], *([call(n, args=["x" * (size // 4)])] for n in range(6)))
    data = read_index(path)
    assert len(data.rows[r.CALL]) == 6
    assert data.dropped_bytes == 0


def test_the_checksums_are_those_of_the_specification(tmp_path: Path) -> None:
    path = write(tmp_path, [header()], [call(1)], [call(2)])
    data = path.read_bytes()
    start = 0
    for row in read_index(path).records(r.CHECK):
        assert row.checksum == xxhash.xxh3_64_digest(data[start : row.nbytes])
        start = row.nbytes
    assert read_index(path).good_bytes == len(data)


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_is_left_as_it_was(tmp_path: Path, enabled: bool) -> None:
    path = write(tmp_path, [header()])
    was = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        read_index(path)
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if was else gc.disable)()


def test_good_checksums_over_bytes_that_are_no_records_are_a_format_error(tmp_path: Path) -> None:
    path = write(tmp_path, [header()])
    good = path.read_bytes()
    check = good[read_index(path).last_check :]
    junk = b"\xc1\xc1"
    digest = xxhash.xxh3_64_digest(check + junk)
    path.write_bytes(good + junk + msgpack.packb([19, len(good) + len(junk), digest]))
    with pytest.raises(FormatError, match="are no record"):
        read_index(path)
