"""Steps of a rank, one after the other: files when there is something to write, notes of what came late."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from aten_dump.errors import StoreError
from aten_dump.store import records as r
from aten_dump.store.index_reader import read_index
from aten_dump.store.writing import step_sequence
from aten_dump.store.writing.index_writer import CHECK_BYTES, CHECKED_RECORDS
from aten_dump.store.writing.packed_records import packed
from aten_dump.store.writing.settings import WriterSettings
from aten_dump.store.writing.step_files import BlobStart, Piece, StepEnd
from aten_dump.store.writing.step_sequence import Steps
from tests.store.recording import call, header


def end(calls: int = 0) -> StepEnd:
    fields = StepEnd.__dataclass_fields__
    known = {"calls": calls, "values": 0, "seconds": {}, "notes": []}
    return StepEnd(**{name: known.get(name, 0) for name in fields})  # type: ignore[arg-type]


def steps(root: Path) -> Steps:
    return Steps(root, 3, WriterSettings(queue_bytes=1 << 20, shard_bytes=1 << 20), lambda chunks: None)


def test_a_step_without_records_is_there_when_it_was_ended(tmp_path: Path) -> None:
    found = steps(tmp_path)
    found.begin(header(0, 3))
    found.flush()
    assert list(tmp_path.glob("step*")) == []
    found.end(end())
    data = read_index(tmp_path / "step0" / "rank3")
    assert data.committed and not data.rows[r.CALL]


def test_a_step_that_is_dropped_leaves_no_files_unless_something_was_on_file(tmp_path: Path) -> None:
    found = steps(tmp_path)
    text = r.Text(r.TEXT, 1, "a name that nothing uses")
    found.begin(header(0, 3))
    found.records(packed([text]))
    found.flush()
    found.drop(None)
    assert list(tmp_path.glob("step*")) == []
    found.begin(header(1, 3))
    found.records(packed([text]))
    found.records(packed([call(1)]))
    found.drop(None)
    data = read_index(tmp_path / "step1" / "rank3")
    assert data.committed and len(data.rows[r.TEXT]) == len(data.rows[r.CALL]) == 1
    assert not (tmp_path / "step0").exists()


def test_records_and_blobs_of_each_step_are_in_its_folder(tmp_path: Path) -> None:
    found = steps(tmp_path)
    for step in (4, 7):
        found.begin(header(step, 3))
        found.records(packed([call(step)]))
        found.piece(Piece(BlobStart(1, "U8", [3], 3), None, 0, 3, True, True, None, lambda: b"abc"))
        found.end(end(1))
    for step in (4, 7):
        data = read_index(tmp_path / f"step{step}" / "rank3")
        assert data.committed and [row[1] for row in data.rows[r.CALL]] == [step]
        assert len(data.rows[r.BLOB]) == 1


def test_records_after_the_end_are_told_of_in_the_next_step(tmp_path: Path) -> None:
    found = steps(tmp_path)
    found.begin(header(0, 3))
    found.records(packed([call(1)]))
    found.end(end(1))
    found.records(packed([call(2), call(3)]))
    found.begin(header(1, 3))
    found.records(packed([call(4)]))
    found.end(end(1))
    (note,) = list(read_index(tmp_path / "step1" / "rank3").records(r.NOTE))
    assert (note.code, note.count) == ("late_records", 2)
    found.begin(header(2, 3))
    found.records(packed([call(5)]))
    found.end(end(1))
    assert list(read_index(tmp_path / "step2" / "rank3").records(r.NOTE)) == [], "it is told once"


def test_an_interrupted_step_keeps_what_it_has_and_what_is_to_be_said(tmp_path: Path) -> None:
    found = steps(tmp_path)
    found.begin(header(0, 3))
    found.records(packed([call(1)]))
    found.interrupt([r.Note(r.NOTE, "code", "said", 1)])
    data = read_index(tmp_path / "step0" / "rank3")
    assert not data.committed and [note.code for note in data.records(r.NOTE)] == ["code", "interrupted"]
    found.interrupt([])


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device"),
            "No space left on device; .*free space or choose another path",
        ),
        (StoreError("no room"), "no room; what was written before stays readable"),
        (ValueError("odd"), r"ValueError\('odd'\); what was written"),
    ],
)
def test_errors_say_where_and_what_stays(tmp_path: Path, error: Exception, said: str) -> None:
    found = steps(tmp_path)
    found.begin(header(5, 3))
    found.records(packed([call(1)]))
    told = found.error_of(error)
    assert told.__cause__ is error
    with pytest.raises(StoreError, match=rf"cannot write step 5 of rank 3 in .*: {said}"):
        raise told
    assert getattr(told, "errno", None) == getattr(error, "errno", None)


def test_a_write_that_is_torn_loses_what_came_since_the_check_before(tmp_path: Path) -> None:
    found = steps(tmp_path)
    found.begin(header(0, 3))
    found.records(packed(call(n) for n in range(1, 6001)))
    found.end(end(6000))
    folder = tmp_path / "step0" / "rank3"
    content = (folder / "index.msgpack").read_bytes()
    most = CHECK_BYTES + CHECKED_RECORDS * len(packed([call(1)])[0]) + 100
    assert len(content) > 5 * most
    for part in (0.3, 0.5, 0.9):
        cut = int(len(content) * part)
        (folder / "index.msgpack").write_bytes(content[:cut])
        assert cut - most < read_index(folder).good_bytes <= cut


def test_steps_are_told_of_now_and_then_and_when_somebody_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[list[int]] = []
    now = 1000.0
    monkeypatch.setattr(step_sequence.time, "monotonic", lambda: now)
    settings = WriterSettings(queue_bytes=1 << 20, shard_bytes=1 << 20, on_steps=told.append)
    found = Steps(tmp_path, 3, settings, lambda chunks: None)

    def step(number: int) -> None:
        found.begin(header(number, 3))
        found.records(packed([call(1)]))
        assert all(number not in steps for steps in told)
        found.end(end(1))

    for number in (0, 1, 2):
        step(number)
    assert told == [[0]]
    now += step_sequence.TELL_SECONDS
    found.flush()
    assert told == [[0], [1, 2]]
    step(3)
    found.flush(to_disk=True)
    step(4)
    found.interrupt([])
    assert told == [[0], [1, 2], [3], [4]]
