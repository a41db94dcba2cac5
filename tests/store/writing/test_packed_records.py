"""Records are packed when they are added: what they are made of may change, or go, after that."""

from __future__ import annotations

import threading
from collections.abc import ItemsView
from typing import Any

import msgpack

from aten_dump.store import records as r
from aten_dump.store.writing.packed_records import PackedRecords, kind_of, packed


def rows(data: list[bytes]) -> list[Any]:
    return [msgpack.unpackb(one) for one in data]


def test_a_record_is_what_it_was_when_it_was_added() -> None:
    args = [1]
    found = PackedRecords()
    found.add((r.NOTE, args))
    args.append(2)
    assert rows(found.take()) == [[r.NOTE, [1]]] and found.take() == [] == found.waiting


def test_what_is_taken_is_in_the_order_in_which_it_came() -> None:
    found = PackedRecords()
    for number in range(5):
        found.add((r.TEXT, number))
    assert rows(found.take()) == [[r.TEXT, number] for number in range(5)]


class AddsMore(dict[str, int]):
    """Adds a record while it is packed, as a finalizer that Python's collector runs then may."""

    to: PackedRecords

    def items(self) -> ItemsView[str, int]:
        self.to.add((r.TEXT, 2, "in between"))
        return super().items()


def test_a_record_may_come_while_another_one_is_packed() -> None:
    found, outer = PackedRecords(), AddsMore(a=1)
    outer.to = found
    for _ in range(2):
        found.add((r.NOTE, "long enough to be there already", outer))
        assert rows(found.take()) == [
            [r.TEXT, 2, "in between"],
            [r.NOTE, "long enough to be there already", {"a": 1}],
        ]


def test_threads_may_add_at_once() -> None:
    found = PackedRecords()

    def add(thread: int) -> None:
        for number in range(2000):
            found.add((r.NOTE, thread, number, [thread] * 20))

    threads = [threading.Thread(target=add, args=(n,)) for n in range(4)]
    taken: list[bytes] = []
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        taken += found.take()
    taken += found.take()
    by_thread: dict[int, list[int]] = {}
    for _, thread_number, number, more in rows(taken):
        by_thread.setdefault(thread_number, []).append(number)
        assert more == [thread_number] * 20
    assert by_thread == {n: list(range(2000)) for n in range(4)}


def test_what_msgpack_cannot_write_is_told_of() -> None:
    kept, told = rows(packed([(r.TEXT, 1, "x"), (r.TEXT, 2, object())]))
    assert kept == [r.TEXT, 1, "x"]
    assert told[:2] == [r.NOTE, "unwritable_record"] and "<object object at" in told[2] and told[3] == 1
    (deep,) = rows(packed([(r.TEXT, 2**70)]))
    assert str(2**70) in deep[2]


def test_the_kind_of_a_record_is_read_from_its_bytes() -> None:
    for length in (1, 2, 15, 16, 19, 40):
        (data,) = packed([(r.CHECK, *range(length - 1))])
        assert kind_of(data) == r.CHECK
