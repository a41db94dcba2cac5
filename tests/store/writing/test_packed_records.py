"""Records are packed when they are added: what they are made of may change, or go, after that."""

from __future__ import annotations

import http
import threading
from typing import Any, NamedTuple

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aten_dump.store import records as r
from aten_dump.store.writing import packed_records
from aten_dump.store.writing.packed_records import PackedRecords, kind_of, packed

if packed_records.IS_COMPILED:
    from aten_dump.store.writing._pack_record import pack_record
needs_compiler = pytest.mark.skipif(
    not packed_records.IS_COMPILED, reason="nothing is compiled here: `make test-compiled` runs it"
)


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

    def items(self) -> Any:
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


class Named(NamedTuple):
    """A tuple of a class of its own."""

    kind: int
    text: str


ENDS = [n + more for bits in (5, 7, 8, 15, 16, 31, 32, 63, 64) for n in (2**bits, -(2**bits)) for more in (-1, 0, 1)]
SIZES = [0, 1, 15, 16, 31, 32, 255, 256, 65535, 65536]
TREES = st.recursive(
    st.none() | st.booleans() | st.sampled_from(ENDS) | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=40,
)


def as_msgpack(record: Any) -> bytes:
    return bytes(msgpack.Packer(use_bin_type=True, unicode_errors="backslashreplace").pack(record))


def check(record: tuple[Any, ...]) -> None:
    """Hold what is compiled against msgpack's packer; it may leave a record to that."""
    found = pack_record(record)
    try:
        expected = as_msgpack(record)
    except (TypeError, ValueError, OverflowError):
        expected = None
    assert found == expected or found is None
    if expected is not None:
        assert packed([(*record, 1)]) == [as_msgpack((*record, 1))]


@needs_compiler
@given(st.lists(TREES).map(tuple))
def test_what_is_compiled_packs_as_msgpack_does(record: tuple[Any, ...]) -> None:
    check(record)


@needs_compiler
def test_numbers_and_lengths_at_the_ends_of_their_forms() -> None:
    for n in ENDS:
        check((n,))
        assert (pack_record((n,)) is None) == (not -(2**63) <= n < 2**63)
    for size in SIZES:
        for item in (
            "x" * size,
            b"x" * size,
            [1] * size,
            (None,) * size,
            dict.fromkeys(range(size)),
            "é" * (size // 2),
        ):
            assert pack_record((item,)) == as_msgpack((item,))
        assert pack_record((1.5,) * size) == as_msgpack((1.5,) * size)


@needs_compiler
def test_what_is_not_plain_is_left_to_msgpack() -> None:
    deep: list[Any] = []
    for _ in range(100):
        deep = [deep]
    assert pack_record(Named(1, "x")) == as_msgpack((1, "x"))
    for item in (object(), "\ud800", 2**64, deep, bytearray(b"x"), http.HTTPStatus.OK, AddsMore(a=1), 1j):
        assert pack_record((item,)) is None
    assert rows(packed([(r.TEXT, "\ud800"), (r.TEXT, deep, 1), (r.TEXT, 2**63)])) == [
        [r.TEXT, "\\ud800"],
        [r.TEXT, deep, 1],
        [r.TEXT, 2**63],
    ]
