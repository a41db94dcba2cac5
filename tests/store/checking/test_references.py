"""Ids, references and codes of an index are checked for all records at once."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from aten_dump.errors import FormatError
from aten_dump.store import records as r
from aten_dump.store.checking.references import check_references
from aten_dump.store.raw_rows import split_records
from tests.store.recording import call, header

GOOD: list[Any] = [
    header(),
    r.Text(r.TEXT, 1, "float32"),
    r.Text(r.TEXT, 2, "cpu"),
    r.Op(r.OP, 1, 0, "aten::exp", "Aten", "exp", []),
    r.Frame(r.FRAME, 1, 1, 5, 2, True),
    r.Stack(r.STACK, 1, 0, 1),
    r.Stack(r.STACK, 2, 1, 1),
    r.Shard(r.SHARD, 0, 4096),
    r.Shard(r.SHARD, 1, 4096),
    r.Storage(r.STORAGE, 1, 16, 2),
    r.Value(r.VALUE, 1, 1, 0, 0, 1, [4], [1], 0, None),
    r.Blob(r.BLOB, 1, 0, 0, 16, "F32", [4], b"12345678"),
    r.Data(r.DATA, 1, 1, 0, 0),
    r.Open(r.OPEN, 1, 0, 1, 0, 0, 0, 0, 2, 1),
    call(1, stack=2, module=1),
    call(2, parent=1, forward=1),
]


def check(records: list[Any]) -> None:
    rows, _ = split_records(b"".join(msgpack.packb(list(record)) for record in records), "here")
    check_references(rows, "here")


def test_what_the_recorder_writes_is_right() -> None:
    check(GOOD)
    check([header()])


@pytest.mark.parametrize(
    ("at", "fields", "said"),
    [
        (11, {"id": 0}, "Blob record, number 0 of its kind, whose id is 0; it must be 1 or more"),
        (3, {"call_kind": 4}, "Op record, number 0 of its kind, whose call_kind is 4; it must be 0 to 3"),
        (3, {"call_kind": -1}, "whose call_kind is -1"),
        (4, {"file": 3}, "Frame record, number 0 of its kind, whose file is 3; it must be the id of a Text record"),
        (4, {"function": 9}, "whose function is 9"),
        (6, {"frame": 0}, "Stack record, number 1 of its kind, whose frame is 0; it must be the id of a Frame record"),
        (6, {"parent": 2}, "whose parent is 2; it must be the id of an earlier one, or 0"),
        (6, {"parent": 7}, "Stack record, number 1 of its kind, whose parent is 7"),
        (8, {"number": 2}, "has shard 2 where number 1 must be"),
        (9, {"device": 3}, "Storage record, number 0 of its kind, whose device is 3"),
        (9, {"nbytes": -1}, "whose nbytes is -1; it must be 0 or more"),
        (10, {"storage": 2}, "Value record, number 0 of its kind, whose storage is 2"),
        (10, {"dtype": 3}, "whose dtype is 3"),
        (10, {"version": -1}, "whose version is -1; it must be 0 or more"),
        (10, {"offset": -1}, "whose offset is -1"),
        (11, {"shard": -1}, "Blob record, number 0 of its kind, whose shard is -1"),
        (12, {"value": 2}, "Data record, number 0 of its kind, whose value is 2; it must be the id of a Value record"),
        (12, {"layout": -1}, "whose layout is -1"),
        (13, {"op": 2}, "Open record, number 0 of its kind, whose op is 2"),
        (13, {"phase": 4}, "whose phase is 4; it must be 0 to 3"),
        (14, {"op": 0}, "Call record, number 0 of its kind, whose op is 0; it must be the id of a Op record"),
        (14, {"stack": 3}, "whose stack is 3"),
        (14, {"module": 3}, "whose module is 3"),
        (14, {"phase": 4}, "whose phase is 4"),
        (15, {"parent": 2}, "Call record, number 1 of its kind, whose parent is 2; it must be the id of an earlier one"),
        (15, {"forward": 3}, "whose forward is 3; it must be the id of an earlier one, or 0"),
        (15, {"forward": -1}, "whose forward is -1"),
        (15, {"n": -1}, "whose n is -1; it must be 0 or more"),
        (15, {"duration_ns": -5}, "whose duration_ns is -5"),
    ],
)  # fmt: skip
def test_each_reference_code_and_size(at: int, fields: dict[str, Any], said: str) -> None:
    records = list(GOOD)
    records[at] = records[at]._replace(**fields)
    with pytest.raises(FormatError) as caught:
        check(records)
    assert said in str(caught.value) and str(caught.value).startswith("here has ")


def test_what_an_interrupted_run_may_lack_is_no_error() -> None:
    check([record for record in GOOD if record.kind not in (r.BLOB, r.SHARD)])
    check([*GOOD, call(9, parent=5)])


def test_ids_far_apart_are_looked_up_as_well() -> None:
    far = 10**12
    check([*GOOD, r.Text(r.TEXT, far, "far"), call(5, module=far)])
    with pytest.raises(FormatError, match="whose module is 999"):
        check([*GOOD, r.Text(r.TEXT, far, "far"), call(5, module=999)])
