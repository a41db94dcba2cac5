"""Records are found in bytes without decoding them; columns of integers, at once."""

from __future__ import annotations

import msgpack
import pytest

from aten_dump.errors import FormatError
from aten_dump.store import raw_rows
from aten_dump.store import records as r
from aten_dump.store.raw_rows import MadeRows, split_records
from tests.store.recording import call, header


@pytest.fixture(autouse=True, params=["decoded whole", "stepped over"])
def _length(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read each index as a short one, and as a long one."""
    if request.param == "stepped over":
        monkeypatch.setattr(raw_rows, "_SHORT_BYTES", -1)


@pytest.mark.parametrize("odd", [True, 1.5, "1", [1], 2**63, 2**64 - 1])
def test_short_and_long_indexes_are_read_alike(odd: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what no writer of ours leaves: the same numbers, or the same error."""
    data = b"".join(map(msgpack.packb, [header(), call(1), call(2)._replace(op=odd), call(3)[:-1]]))

    def found() -> object:
        rows, unknown = split_records(data, "the index")
        try:
            return [column.tolist() for column in rows[r.CALL].columns(1, 3, 4)], list(rows[r.CALL]), unknown
        except FormatError as error:
            return str(error)

    first = found()
    monkeypatch.setattr(raw_rows, "_SHORT_BYTES", -1)
    assert found() == first


def test_bytes_that_no_text_has_are_an_error_of_their_row_alone() -> None:
    data = msgpack.packb(call(1)) + msgpack.packb([r.TEXT, 1, "x"]).replace(b"x", b"\xff")
    rows, _ = split_records(data, "the index")
    assert rows[r.CALL][0][1] == 1 and rows[r.TEXT].column(1).tolist() == [1]
    with pytest.raises(FormatError, match="no record"):
        rows[r.TEXT][0]


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
