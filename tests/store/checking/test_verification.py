"""Every byte of a step and rank is checked: what was changed is named, and of a whole one nothing is said."""

from __future__ import annotations

from pathlib import Path

import msgpack
import pytest
import xxhash

from aten_dump.store import records as r
from aten_dump.store.checking.verification import verify
from aten_dump.store.index_reader import read_index
from aten_dump.store.shards import shard_name
from tests.store.recording import RANK, begin, noise, small_step, store, writer


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    sink = writer(tmp_path)
    small_step(sink)
    sink.close()
    return tmp_path / RANK


def rewritten(folder: Path, change: dict[int, dict[str, object]]) -> list[str]:
    """Change the first record of some kinds, with right checksums around them; verify."""
    unpacker = msgpack.Unpacker(use_list=True, strict_map_key=False)
    unpacker.feed((folder / "index.msgpack").read_bytes())
    packed, start, changes = b"", 0, dict(change)
    for row in unpacker:
        kind = row[0]
        if kind == r.CHECK:
            row = [r.CHECK, len(packed), xxhash.xxh3_64_digest(packed[start:])]
            start = len(packed)
        elif kind in changes:
            fields = r.RECORD_TYPES[kind]._fields  # type: ignore[attr-defined]
            for name, found in changes.pop(kind).items():
                row[fields.index(name)] = found
        packed += msgpack.packb(row)
    (folder / "index.msgpack").write_bytes(packed)
    return verify(folder)


def test_a_whole_step(whole: Path) -> None:
    told: list[tuple[int, int]] = []
    assert verify(whole, lambda done, total: told.append((done, total))) == []
    nbytes = sum(blob.nbytes for blob in read_index(whole).records(r.BLOB))
    assert told[-1] == (nbytes, nbytes) and [done for done, _ in told] == sorted(done for done, _ in told)
    assert rewritten(whole, {}) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({r.COMMIT: {"calls": 77}}, "has 5 calls, the commit record says 77"),
        ({r.COMMIT: {"blobs": 77}}, "has 5 blobs, the commit record says 77"),
        ({r.COMMIT: {"shards": [5]}}, "bytes, the commit record says 5"),
        ({r.HEADER: {"step": 3}}, "is that of step 3, as its header says, and lies in step0"),
        ({r.HEADER: {"rank": 3}}, "is that of rank 3, as its header says, and lies in rank0"),
        ({r.CALL: {"args": [[0, 77]]}}, "call 1 names value 77, which has no record"),
        ({r.BLOB: {"checksum": b"12345678"}}, "has checksum"),
        ({r.DATA: {"offset": 1}}, "value 1 reaches to byte 5 of blob 1, which has 4"),
        ({r.VALUE: {"shape": [2]}}, "value 1 reaches to byte 8 of blob 1, which has 4"),
        ({r.VALUE: {"dtype": 99}}, "whose dtype is 99"),
    ],
)  # fmt: skip
def test_what_was_changed_is_named(whole: Path, change: dict[int, dict[str, object]], said: str) -> None:
    problems = rewritten(whole, change)
    assert any(said in problem for problem in problems), problems


def test_every_byte_of_a_shard_counts(whole: Path) -> None:
    path = whole / "shard-00000.safetensors"
    content = path.read_bytes()
    header_bytes = read_index(whole).rows[r.SHARD][0][2]
    for at in (9, header_bytes, len(content) - 1):
        changed = bytearray(content)
        changed[at] ^= 1
        path.write_bytes(bytes(changed))
        assert verify(whole), at
    path.write_bytes(content + b"x")
    assert any("the commit record says" in problem for problem in verify(whole))
    path.unlink()
    assert any("does not exist" in problem for problem in verify(whole))


def test_each_finished_shard_is_looked_at_though_one_is_gone(tmp_path: Path) -> None:
    sink = writer(tmp_path, shard_bytes=1 << 16)
    begin(sink)
    for number in range(1, 4):
        store(sink, noise(1 << 16, number), "U8")
    sink.end_step(0, 0, {})
    sink.close()
    folder = tmp_path / RANK
    assert verify(folder) == []
    (folder / shard_name(0)).unlink()
    damaged = bytearray((folder / shard_name(2)).read_bytes())
    damaged[20] ^= 1
    (folder / shard_name(2)).write_bytes(bytes(damaged))
    problems = verify(folder)
    assert any(shard_name(0) in problem and "does not exist" in problem for problem in problems)
    assert any(problem.startswith(f"{folder / shard_name(2)}: ") for problem in problems)


@pytest.mark.parametrize("note", [r.RECOVERED, "unseen", "zzz"])
def test_a_recovered_index_may_know_less_than_its_shards(whole: Path, note: str) -> None:
    """Another one that does is damaged."""
    data = read_index(whole)
    last = data.rows[r.BLOB][-1][1]
    rows = [list(row) for kind in (r.HEADER, r.TEXT, r.OP, r.SHARD) for row in data.rows[kind]]
    rows += [list(row) for row in data.rows[r.BLOB] if row[1] != last] + [[r.NOTE, note, "cut short", 1]]
    rows.append([r.COMMIT, 0, 0, last - 1, 0, list(data.rows[r.COMMIT][-1][5]), {}])
    packed = b"".join(map(msgpack.packb, rows))
    packed += msgpack.packb([r.CHECK, len(packed), xxhash.xxh3_64_digest(packed)])
    (whole / "index.msgpack").write_bytes(packed)
    assert [problem.partition("its header")[1] for problem in verify(whole)] == (
        [] if note == r.RECOVERED else ["its header"]
    )


def test_an_index_that_cannot_be_read(whole: Path) -> None:
    (whole / "index.msgpack").write_bytes(b"")
    assert any("no Header record" in problem for problem in verify(whole))
    (whole / "index.msgpack").unlink()
    (problem,) = verify(whole)
    assert "does not exist" in problem
