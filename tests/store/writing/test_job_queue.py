"""Records and jobs come out in the order in which they were said."""

from __future__ import annotations

from typing import Any

from aten_dump.store.writing.job_queue import JobQueue
from aten_dump.store.writing.packed_records import packed


def write(batch: list[Any]) -> None:
    raise AssertionError("the queue runs nothing itself")


def job(argument: Any) -> None:
    raise AssertionError


def test_records_come_in_batches_between_jobs() -> None:
    queue = JobQueue(write)
    queue.emit((1,))
    queue.emit((2,))
    queue.add(job, "a")
    queue.add(job, "b")
    queue.emit((3,))
    queue.drain()
    queue.emit((4,))
    found = []
    while (taken := queue.pop()) is not None:
        found.append(taken)
    assert found == [(write, packed([(1,), (2,)])), (job, "a"), (job, "b"), (write, packed([(3,)]))]


def test_waiting_records_are_those_not_yet_written() -> None:
    queue = JobQueue(write)
    for n in range(3):
        queue.emit((n,))
    assert queue.waiting_records == 3
    queue.drain()
    queue.emit((3,))
    assert queue.waiting_records == 4
    taken = queue.pop()
    assert taken is not None and queue.waiting_records == 4, "taken is not written"
    queue.done()
    assert queue.waiting_records == 1
    queue.forget()
    assert queue.waiting_records == 0 and queue.pop() is None


def test_a_job_that_is_over_counts_no_records() -> None:
    queue = JobQueue(write)
    queue.emit((1,))
    queue.add(job, "a")
    queue.pop()
    queue.done()
    queue.pop()
    queue.done()
    assert queue.waiting_records == 0


def test_nothing_is_queued_for_no_records() -> None:
    queue = JobQueue(write)
    queue.drain()
    assert queue.pop() is None
