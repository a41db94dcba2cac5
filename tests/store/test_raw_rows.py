"""Records are found in bytes without decoding them; columns of integers, at once."""

from __future__ import annotations

import msgpack
import pytest

from aten_dump.errors import FormatError
from aten_dump.store import records as r
from aten_dump.store.raw_rows import MadeRows, split_records
from tests.store.recording import call, header


def test_a_field_that_is_no_integer_is_a_format_error() -> None:
    data = msgpack.packb(header()) + msgpack.packb(call(1)._replace(op="aten::relu"))
    rows, _ = split_records(data, "the index")
    with pytest.raises(FormatError, match="field 3 is not an integer"):
        rows[r.CALL].column(4)
    assert rows[r.CALL].column(2).tolist() == [0]


@pytest.mark.parametrize("number", [0, 127, 128, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**63 - 1, -1, -32, -33, -128, -129, -(2**15) - 1, -(2**31) - 1, -(2**63), None])  # fmt: skip
def test_integers_of_any_size_in_columns(number: int | None) -> None:
    data = b"".join(msgpack.packb(call(k, sequence_nr=number if k == 2 else k, stack=k * 1000)) for k in range(1, 5))
    rows, _ = split_records(data, "the index")
    assert rows[r.CALL].columns(10, 11)[0].tolist() == [1, number or 0, 3, 4]
    assert rows[r.CALL].column(11).tolist() == [1000, 2000, 3000, 4000]


@pytest.mark.parametrize("record", [call(1), r.Value(r.VALUE, 1, 1, 0, 0, 1, (2,), (1,), 0, None), r.Text(r.TEXT, 1, "x")])  # fmt: skip
def test_a_whole_row_is_what_was_written(record: r.Record) -> None:
    rows, _ = split_records(msgpack.packb(record), "the index")
    assert rows[record[0]][0] == tuple(tuple(field) if isinstance(field, list) else field for field in record)


def test_made_rows_have_the_columns_of_read_ones() -> None:
    calls = [call(3), call(1, sequence_nr=None)]
    rows, _ = split_records(b"".join(map(msgpack.packb, calls)), "the index")
    assert [c.tolist() for c in MadeRows(calls).columns(1, 10)] == [c.tolist() for c in rows[r.CALL].columns(1, 10)]
