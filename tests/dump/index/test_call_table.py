"""Calls in order of id, those that were cut short among them; single fields of all of them."""

from __future__ import annotations

import msgpack

from aten_dump.dump.index.call_table import CallTable
from aten_dump.store import records as r
from aten_dump.store.raw_rows import MadeRows, RawRows, split_records
from tests.store.recording import call, header


def rows_of(*calls: r.Call) -> RawRows:
    rows, _ = split_records(b"".join(map(msgpack.packb, [header(), *calls])), "the index")
    return rows[r.CALL]


def test_calls_are_in_order_of_id_and_not_of_the_file() -> None:
    table = CallTable(rows_of(call(3, n=30), call(1, n=10)), MadeRows([call(2, n=20), call(5, n=50)]))
    assert [one.id for one in table] == [1, 2, 3, 5]
    assert [table[at].n for at in range(len(table))] == [10, 20, 30, 50]
    assert table[-1].id == 5 and type(table[0]) is r.Call
    assert dict(table.places) == {1: 0, 2: 1, 3: 2, 5: 3}


def test_columns_have_the_same_order() -> None:
    table = CallTable(
        rows_of(call(3, parent=1, sequence_nr=7), call(1, sequence_nr=None)), MadeRows([call(2, parent=3)])
    )
    assert table.column("id").tolist() == [1, 2, 3]
    assert table.column("parent").tolist() == [0, 3, 1]
    assert table.column("sequence_nr").tolist() == [0, 2, 7], "also of fields that are not kept; nil is 0"


def test_without_calls() -> None:
    table = CallTable(rows_of())
    assert len(table) == 0 and list(table) == [] and table.column("op").tolist() == []
