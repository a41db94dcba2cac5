"""What a written call names goes before it, and once; bytes by the number that they have in the file."""

from __future__ import annotations

from aten_dump.capture.trigger.held_bytes import HeldBytes
from aten_dump.capture.trigger.held_values import HeldValues
from aten_dump.capture.trigger.step_file import StepFile
from aten_dump.store import records as r
from aten_dump.store.memory_sink import MemorySink
from tests.capture.trigger.recording import call, header, statistics, storage, stored, value


class Written:
    """A step's file, not begun, and what it can be asked to write."""

    def __init__(self, most_bytes: int = 1 << 20) -> None:
        self.sink = MemorySink()
        self.bytes = HeldBytes(most_bytes)
        self.values = HeldValues(self.bytes, ())
        self.file = StepFile(header(), self.values, self.bytes, self.sink)

    def hold(self, *records: r.Value | r.Storage, facts: tuple[object, ...] = ()) -> None:
        for record in records:
            self.values.add(record) if isinstance(record, r.Value) else self.values.add_storage(record)
        for fact in facts:
            self.values.add_fact(fact)

    def kinds(self) -> list[tuple[int, int]]:
        return [(record[0], record[1]) for record in self.sink.records]


def test_a_file_can_be_begun_as_long_as_no_call_was_written_and_goes_on_while_it_is_open() -> None:
    written = Written()
    assert written.file.can_be_written and not written.file.is_open
    written.file.open([storage(1)])
    assert written.kinds() == [(r.HEADER, r.FORMAT_VERSION), (r.STORAGE, 1)] and written.file.is_open
    written.file.close({})
    assert written.file.can_be_written, "nothing of it is there"
    written.file.open([])
    written.file.write_call(call(3), (), None)
    assert written.file.can_be_written and written.file.has_call(3) and not written.file.has_call(2)
    written.file.close({})
    assert not written.file.can_be_written


def test_the_commit_counts_what_was_written() -> None:
    written = Written()
    written.hold(storage(1), value(1, on=1), value(2, on=1), value(3, on=1))
    written.file.open([])
    written.file.write_call(call(5, (1,), 2), (1, 2), None)
    written.file.write_call(call(4, (1,), 2), (1, 2), None)
    written.file.close({"capture": 1.5})
    (commit,) = written.sink.of(r.COMMIT)
    assert (commit.calls, commit.values, commit.seconds) == (2, 2, {"capture": 1.5})
    assert written.file.last_id == 5


def test_values_and_storages_go_once_before_what_names_them() -> None:
    written = Written()
    written.hold(storage(1), value(1, on=1), value(2, on=1), facts=(statistics(1, 7.0),))
    written.file.write_call(call(1, (1,), 2), (1, 2), None)
    written.file.write_call(call(2, (2,), 1), (2, 1), None)
    assert written.kinds() == [
        (r.STORAGE, 1), (r.VALUE, 1), (r.STATISTICS, 1), (r.VALUE, 2), (r.CALL, 1), (r.CALL, 2),
    ]  # fmt: skip


def test_a_value_that_is_made_of_others_comes_after_them() -> None:
    written = Written()
    written.hold(value(1), value(2), value(3, extra={"parts": {"indices": 1}, "local": 2}))
    written.file.write_value(3)
    written.file.write_value(9)  # nobody holds it
    assert written.kinds() == [(r.VALUE, 1), (r.VALUE, 2), (r.VALUE, 3)]


def test_a_value_that_is_the_same_as_another_brings_it_along() -> None:
    written = Written()
    written.hold(value(1), value(2), facts=(r.Same(r.SAME, 2, 1, 3), statistics(1, 5.0)))
    written.file.write_value(2)
    assert written.kinds() == [(r.VALUE, 2), (r.VALUE, 1), (r.STATISTICS, 1), (r.SAME, 2)]


def test_bytes_are_written_once_and_named_by_their_number_in_the_file() -> None:
    written = Written()
    stored(written.bytes, b"of another step")
    blob = stored(written.bytes, b"abcd")
    written.hold(value(1), value(2), facts=tuple(r.Data(r.DATA, v, blob, v, 0) for v in (1, 2)))
    written.file.write_value(1)
    written.file.write_value(2)
    assert written.sink.blobs == {1: b"abcd"}
    assert [(data.value, data.blob, data.offset) for data in written.sink.of(r.DATA)] == [(1, 1, 1), (2, 1, 2)]


def test_bytes_that_had_gone_are_counted_once_each_and_their_data_not_told() -> None:
    written = Written(most_bytes=4)
    gone = stored(written.bytes, b"abcd")
    stored(written.bytes, b"efgh")
    written.hold(value(1), value(2), facts=tuple(r.Data(r.DATA, v, gone, 0, 0) for v in (1, 2)))
    written.file.open([])
    written.file.write_value(1)
    written.file.write_value(2)
    written.file.close({})
    assert written.sink.of(r.DATA) == []
    assert [(note.code, note.count) for note in written.sink.of(r.NOTE)] == [("trigger_bytes", 1)]


def test_a_random_state_goes_before_its_call() -> None:
    written = Written()
    blob = stored(written.bytes, b"state")
    written.file.write_call(call(1), (), r.Random(r.RANDOM, 1, 0, blob))
    assert written.kinds() == [(r.BLOB, 1), (r.RANDOM, 1), (r.CALL, 1)]
    assert written.sink.of(r.RANDOM)[0].blob == 1


def test_of_what_a_node_saved_the_values_that_are_there_are_told() -> None:
    written = Written()
    written.hold(value(1))
    written.file.write_saved(r.Saved(r.SAVED, 1, "Node", [7, 1]))
    assert written.sink.of(r.SAVED)[0].values == [1] and written.file.has_value(1) and not written.file.has_value(7)


def test_a_gradient_that_is_gone_is_not_told() -> None:
    written = Written()
    written.hold(value(1))
    written.file.write_gradient(r.Gradient(r.GRADIENT, "w", 7, 1))
    written.file.write_gradient(r.Gradient(r.GRADIENT, "b", 1, 1))
    assert written.kinds() == [(r.VALUE, 1), (r.GRADIENT, "b")]
