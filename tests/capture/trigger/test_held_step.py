"""A step that is held back: what a window writes of it, in which order, and what is forgotten."""

from __future__ import annotations

from aten_dump.capture.trigger.held_bytes import HeldBytes
from aten_dump.capture.trigger.held_step import HeldStep
from aten_dump.store import records as r
from aten_dump.store.memory_sink import MemorySink
from tests.capture.trigger.recording import Ring, call, header, statistics, storage, stored, value

NOTE = r.Note(r.NOTE, "trigger", "why", 1)


def filled(ring: Ring) -> None:
    """Two calls: 1 makes value 2 of value 1, both on storage 1; 2 makes value 3 of value 2, on storage 2."""
    blob = stored(ring.bytes, b"held")
    ring.take(storage(1), value(1, on=1), r.Data(r.DATA, 1, blob, 0, 0), value(2, on=1, version=1))
    ring.take(call(1, (1,), 2), storage(2), value(3, on=2), statistics(3, 7.0), call(2, (2,), 3))


def test_a_window_writes_what_its_calls_name_and_nothing_else() -> None:
    ring = Ring()
    filled(ring)
    ring.step.write(2, 2, NOTE)
    assert ring.written() == [
        (r.HEADER, r.FORMAT_VERSION), (r.OP, 1), (r.NOTE, "trigger"),
        (r.STORAGE, 1), (r.VALUE, 2), (r.STORAGE, 2), (r.VALUE, 3), (r.STATISTICS, 3), (r.CALL, 2),
    ]  # fmt: skip
    assert ring.sink.blobs == {}


def test_a_second_window_writes_nothing_twice() -> None:
    ring = Ring()
    filled(ring)
    ring.step.write(2, 2, NOTE)
    before = len(ring.sink.records)
    ring.step.write(1, 2, NOTE)
    assert ring.written()[before:] == [(r.NOTE, "trigger"), (r.VALUE, 1), (r.BLOB, 1), (r.DATA, 1), (r.CALL, 1)]
    assert ring.sink.blobs == {1: b"held"}


def test_what_comes_later_for_a_written_value_is_passed_on() -> None:
    ring = Ring()
    filled(ring)
    ring.step.write(2, 2, NOTE)
    before = len(ring.sink.records)
    ring.take(r.Hash(r.HASH, 3, b"x"), r.Hash(r.HASH, 1, b"y"), r.Saved(r.SAVED, 2, "Node", [1, 3]))
    ring.take(r.Saved(r.SAVED, 1, "Node", [1]), r.Text(r.TEXT, 5, "new"))
    assert ring.written()[before:] == [
        (r.HASH, 3), (r.VALUE, 1), (r.BLOB, 1), (r.DATA, 1), (r.HASH, 1), (r.SAVED, 2), (r.TEXT, 5),
    ]  # fmt: skip


def test_callers_of_a_written_call_are_told_of() -> None:
    ring = Ring()
    ring.take(r.Open(r.OPEN, 1, 0, 1, 0, 0, 0, 0, 0, 0), r.Open(r.OPEN, 2, 1, 1, 0, 0, 0, 0, 0, 0))
    ring.take(call(3), call(2))  # 2 has ended, 1 is under way
    ring.step.write(1, 1, NOTE)
    assert ring.written()[-3:] == [(r.CALL, 3), (r.CALL, 2), (r.OPEN, 1)]
    assert ring.step.is_around_written(call(1))
    assert not ring.step.is_around_written(call(4))


def test_facts_go_with_the_last_call_that_names_memory_which_was_written() -> None:
    ring = Ring()
    filled(ring)
    ring.take(call(3, (1,)))
    ring.step.drop_oldest()
    held = ring.step.values.get(1)
    assert held is not None and len(held.facts) == 1, "call 3 still names it"
    ring.step.drop_oldest()
    ring.step.drop_oldest()
    assert held.facts == []
    of_third = ring.step.values.get(3)
    assert of_third is not None and len(of_third.facts) == 1, "its memory was not written: a call may name it again"


def test_bytes_that_had_gone_are_told_of() -> None:
    ring = Ring(most_bytes=8)
    gone, kept = stored(ring.bytes, b"12345678"), stored(ring.bytes, b"abcdefgh")
    ring.take(storage(1), value(1, on=1), r.Data(r.DATA, 1, gone, 0, 0), value(2, on=1), r.Data(r.DATA, 2, kept, 0, 0))
    ring.take(call(1, (1,), 2))
    ring.step.write(1, 1, NOTE)
    ring.step.end({})
    assert ring.sink.blobs == {1: b"abcdefgh"}
    assert [note[2] for note in ring.sink.of(r.DATA)] == [1]
    assert [(note.code, note.count) for note in ring.sink.of(r.NOTE)][-1] == ("trigger_bytes", 1)


def test_a_step_whose_files_are_complete_cannot_be_written() -> None:
    ring = Ring()
    filled(ring)
    assert ring.step.can_be_written
    ring.step.write(2, 2, NOTE)
    assert ring.step.can_be_written
    ring.step.end({"capture": 1.0})
    assert not ring.step.can_be_written
    commit = ring.sink.records[-1]
    assert (commit.calls, commit.values, commit.seconds) == (1, 2, {"capture": 1.0})


def test_a_window_of_a_step_that_is_over_completes_its_files() -> None:
    ring = Ring()
    filled(ring)
    ring.step.end({})
    assert ring.sink.records == []
    ring.step.write(1, 2, NOTE)
    assert ring.sink.records[-1].kind == r.COMMIT


def test_gradients_and_random_states_go_with_their_calls() -> None:
    ring = Ring()
    blob = stored(ring.bytes, b"state")
    ring.take(storage(1), value(1, on=1), r.Random(r.RANDOM, 1, 0, blob), call(1, (1,)), call(2))
    ring.take(r.Gradient(r.GRADIENT, "weight", 1, 0))
    ring.step.write(1, 2, NOTE)
    kinds = [kind for kind, _ in ring.written()]
    assert kinds.index(r.RANDOM) < kinds.index(r.CALL)
    assert ring.sink.of(r.RANDOM)[0].blob == 1
    assert kinds[-1] == r.GRADIENT


def test_parts_and_locals_are_written_before_what_is_made_of_them() -> None:
    ring = Ring()
    ring.take(value(1), value(2), value(3, extra={"parts": {"indices": 1}, "local": 2}), call(1, (3,)))
    ring.step.write(1, 1, NOTE)
    assert [number for kind, number in ring.written() if kind == r.VALUE] == [1, 2, 3]


def test_positions_go_on_from_the_steps_before_and_calls_count_as_they_end() -> None:
    step = HeldStep(header(4), 10, HeldBytes(64), MemorySink(), ())
    assert [step.add(call(number)).position for number in (2, 1)] == [11, 12]
    assert (step.number, step.before, step.count, [held.record.id for held in step.calls]) == (4, 10, 2, [2, 1])


def test_a_window_takes_positions_from_first_to_last_and_what_was_under_way_then() -> None:
    ring = Ring()
    ring.take(call(1), call(3), call(4), call(2), call(5))  # positions 1 to 5
    ring.step.write(2, 3, NOTE)
    assert [record[1] for record in ring.sink.of(r.CALL)] == [3, 4, 2], "2 was under way when 4 began"
    assert [held.record.id for held in ring.step.calls] == [1, 5]


def test_the_newest_call_is_written_with_what_it_names_and_told_of_no_more() -> None:
    ring = Ring()
    filled(ring)
    ring.step.open([])
    ring.step.write_newest()
    assert ring.written()[-1] == (r.CALL, 2) and [held.record.id for held in ring.step.calls] == [1]


def test_gradients_of_before_the_window_are_left_out() -> None:
    ring = Ring()
    ring.take(value(1), r.Gradient(r.GRADIENT, "early", 1, 0), call(1), value(2), r.Gradient(r.GRADIENT, "late", 2, 1))
    ring.take(call(2))
    ring.step.write(1, 2, NOTE)
    assert [record.name for record in ring.sink.of(r.GRADIENT)] == ["late"]


def test_what_is_dropped_takes_its_state_and_its_node_s_tensors_along() -> None:
    ring = Ring()
    blob = stored(ring.bytes, b"state")
    ring.take(r.Random(r.RANDOM, 1, 0, blob), r.Saved(r.SAVED, 1, "Node", [1]), value(1), call(1), call(2))
    ring.step.drop_oldest()
    ring.step.write(1, 2, NOTE)
    kinds = [record[0] for record in ring.sink.records]
    assert r.RANDOM not in kinds and r.SAVED not in kinds and [c.id for c in ring.sink.of(r.CALL)] == [2]


def test_a_record_of_a_kind_that_is_not_held_goes_straight_to_open_files() -> None:
    ring, record = Ring(), (99, 1)
    ring.take(record)
    assert ring.written() == []
    ring.step.open([])
    ring.take(record)
    assert ring.sink.records[-1] == record


def test_a_call_that_has_ended_is_not_under_way_any_more() -> None:
    ring = Ring()
    ring.take(r.Open(r.OPEN, 1, 0, 1, 0, 0, 0, 0, 0, 0), call(1), call(2))
    ring.step.write(2, 2, NOTE)
    assert ring.sink.of(r.OPEN) == []
