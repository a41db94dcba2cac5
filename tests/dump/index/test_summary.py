"""The two ends of an index say what a step holds, whatever lies between them."""

from __future__ import annotations

from pathlib import Path

import msgpack
import pytest

from aten_dump.dump.index.summary import find_commit, summarize
from aten_dump.errors import StoreError
from aten_dump.store import records as r
from tests.dump.building import Builder

FOLDER = Path("step0/rank0")


def summary_of(builder: Builder, **options: object):  # type: ignore[no-untyped-def]
    return summarize(builder.finish(**options) / FOLDER)  # type: ignore[arg-type]


def test_a_whole_step(builder: Builder) -> None:
    builder.blob(b"12345678")
    found = summary_of(builder)
    assert found.header is not None and found.header.step == 0
    assert found.commit is not None and found.commit.blob_bytes == 8
    assert found.index_bytes == (builder.directory / "index.msgpack").stat().st_size
    assert (found.shards, found.shard_bytes) == (1, (1 << 14) + 8)


def test_an_interrupted_step(builder: Builder) -> None:
    found = summary_of(builder, commit=False, torn=b"\xdc\x00")
    assert found.header is not None and found.commit is None


def test_a_header_before_damaged_records(builder: Builder) -> None:
    builder.finish()
    path = builder.directory / "index.msgpack"
    header = msgpack.packb(list(builder.records[0]))
    path.write_bytes(header + b"\xc1" * 100)
    found = summarize(builder.directory)
    assert found.header is not None and found.header.step == 0


@pytest.mark.parametrize("nbytes", [0, 5])
def test_without_a_header(builder: Builder, nbytes: int) -> None:
    builder.finish()
    path = builder.directory / "index.msgpack"
    path.write_bytes(path.read_bytes()[:nbytes])
    found = summarize(builder.directory)
    assert (found.header, found.commit, found.index_bytes) == (None, None, nbytes)


def test_another_record_in_place_of_the_header(builder: Builder) -> None:
    del builder.records[0]
    builder.text("float32")
    assert summary_of(builder).header is None


def test_the_middle_is_not_read(builder: Builder) -> None:
    for n in range(3000):
        builder.emit(r.Note(r.NOTE, "code", f"note {n} " * 10, 1))
    builder.finish()
    path = builder.directory / "index.msgpack"
    content = path.read_bytes()
    assert len(content) > 1 << 17
    path.write_bytes(content[:70_000] + b"\xc1" * 100 + content[70_100:])
    found = summarize(builder.directory)
    assert found.commit is not None and found.header is not None


def test_a_long_commit_is_found_in_the_longer_tail(builder: Builder) -> None:
    done = r.Commit(r.COMMIT, 1, 2, 3, 4, list(range(1, 2000)), {})
    body = msgpack.packb(list(r.Note(r.NOTE, "code", "text", 1))) + msgpack.packb(list(done))
    content = body + msgpack.packb([r.CHECK, len(body), b"12345678"])
    (builder.directory / "index.msgpack").write_bytes(content)
    found = summarize(builder.directory).commit
    assert len(content) > 1 << 10
    assert found is not None and len(found.shards) == 1999


def commit_and_check(start: int = 0, at: int | None = None) -> bytes:
    commit = msgpack.packb(list(r.Commit(r.COMMIT, 1, 2, 3, 4, [5], {})))
    return commit + msgpack.packb([r.CHECK, start + len(commit) if at is None else at, b"12345678"])


def test_the_check_after_a_commit_names_its_own_place() -> None:
    assert find_commit(commit_and_check(), 0) is not None
    assert find_commit(commit_and_check(1000), 1000) is not None
    assert find_commit(commit_and_check(), 1000) is None
    assert find_commit(commit_and_check(at=3), 0) is None


def test_a_commit_is_the_last_record_before_the_last_check() -> None:
    tail = commit_and_check()
    assert find_commit(tail + b"\x01", 0) is None
    assert find_commit(tail[:-1], 0) is None
    assert find_commit(b"", 0) is None
    twice = tail + commit_and_check(len(tail))
    assert find_commit(twice, 0) is not None


def test_a_newer_commit_has_fields_at_its_end() -> None:
    commit = msgpack.packb([*r.Commit(r.COMMIT, 1, 2, 3, 4, [5], {}), "new"])
    found = find_commit(commit + msgpack.packb([r.CHECK, len(commit), b"12345678"]), 0)
    assert found is not None and len(found) == len(r.Commit._fields)


def test_a_folder_without_an_index(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot read .*index.msgpack"):
        summarize(tmp_path)
