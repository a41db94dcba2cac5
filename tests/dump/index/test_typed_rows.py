"""Rows as records, positions by id and by what they refer to."""

from __future__ import annotations

import msgpack
import numpy as np
import pytest

from aten_dump.dump.index.typed_rows import Facts, Groups, Places, Records, RecordTable
from aten_dump.store import records as r
from aten_dump.store.raw_rows import RawRows, split_records
from tests.store.recording import header


def rows_of(*records: tuple[object, ...]) -> dict[int, RawRows]:
    rows, _ = split_records(b"".join(map(msgpack.packb, [header(), *records])), "the index")
    return rows


@pytest.mark.parametrize(
    "ids", [[], [1, 2, 3], [7, 5, 6], [3, 1, 3, 2], [5, 10**12, 6], [-4, -5], [10**12, 10**12 + 1]]
)
def test_places_are_a_dict_of_the_last_positions(ids: list[int]) -> None:
    expected = {id: position for position, id in enumerate(ids)}
    places = Places(np.array(ids, np.int64))
    assert dict(places) == expected
    assert len(places) == len(expected)
    assert list(places.in_order()) == sorted(expected)
    assert [ids[at] for at in places.positions()] == list(expected)
    for other in (0, 4, -1, 8, 10**13):
        assert (other in places) == (other in expected)
        assert places.get(other) == expected.get(other)


def test_groups_keep_positions_in_order() -> None:
    groups = Groups(np.array([2, 0, 2, 9, 0, 2], np.int64))
    assert {key: list(group) for key, group in groups.items()} == {0: [1, 4], 2: [0, 2, 5], 9: [3]}
    assert list(groups.get(3, ())) == []
    assert len(Groups(np.empty(0, np.int64))) == 0


def test_records_are_made_when_looked_at() -> None:
    records = Records(rows_of(r.Note(r.NOTE, "a", "x", 1), r.Note(r.NOTE, "b", "y", 2))[r.NOTE], r.Note)
    assert [(note.code, note.count) for note in records] == [("a", 1), ("b", 2)]
    assert (len(records), records[1].message, type(records[0])) == (2, "y", r.Note)


def test_of_rows_with_one_id_the_last_counts() -> None:
    rows = rows_of(r.Storage(r.STORAGE, 5, 10, 1), r.Storage(r.STORAGE, 9, 20, 1), r.Storage(r.STORAGE, 5, 30, 1))
    table = RecordTable(rows[r.STORAGE], r.Storage)
    assert table[5].nbytes == 30 and table[9].nbytes == 20
    assert {record.id: record.nbytes for record in table.records()} == {5: 30, 9: 20}
    assert (list(table), len(table), 5 in table, 6 in table) == ([5, 9], 2, True, False)
    with pytest.raises(KeyError):
        table[6]


def test_fields_of_a_newer_version_stay_out_of_reach() -> None:
    table = RecordTable(rows_of((*r.Storage(r.STORAGE, 1, 10, 2), "new"))[r.STORAGE], r.Storage)
    assert table[1].device == 2 and table[1][-1] == "new"


def test_facts_are_what_a_row_says_of_a_value() -> None:
    facts = Facts(rows_of(r.Hash(r.HASH, 7, b"ab"), r.Hash(r.HASH, 8, b"cd"))[r.HASH], r.Hash)
    assert (dict(facts), len(facts), 7 in facts, 1 in facts) == ({7: b"ab", 8: b"cd"}, 2, True, False)
