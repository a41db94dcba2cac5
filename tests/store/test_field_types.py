"""Fields of decoded rows have the types that records.py declares, or the row is refused with its field."""

from __future__ import annotations

from typing import Any

import pytest

from aten_dump.store import records as r
from aten_dump.store.field_types import MOST_LEVELS, ROW_TYPES, is_tree
from tests.store.recording import call, header

VALUE = r.Value(r.VALUE, 5, 1, 0, 0, 1, (2, 3), (3, 1), 0, None)
BLOB = r.Blob(r.BLOB, 1, 0, 0, 8, "F32", (2,), b"12345678")
CALL = call(1, args=(), outputs=None)._replace(args=((0, 1), 2))


def problem(record: Any, **fields: Any) -> str:
    return ROW_TYPES[record.kind].problem(tuple(record._replace(**fields)))


@pytest.mark.parametrize(
    "record", [VALUE, BLOB, CALL, header(), r.Text(r.TEXT, 1, "x"), r.Note(r.NOTE, "c", "m", 1)], ids=str
)
def test_what_the_recorder_writes_is_right(record: Any) -> None:
    assert problem(record) == ""
    assert ROW_TYPES[record.kind].problem((*record, "a field of a newer version")) == ""


@pytest.mark.parametrize(
    ("record", "fields", "said"),
    [
        (r.Text(r.TEXT, 1, "x"), {"text": 5}, "text is 5, it must be a text"),
        (VALUE, {"id": "5"}, "id is '5', it must be an int"),
        (VALUE, {"shape": (2, -3)}, "shape is"),
        (VALUE, {"shape": (2, True)}, "shape is"),
        (VALUE, {"shape": [2, 3]}, "it must be a list of ints of 0 or more"),
        (VALUE, {"stride": (3,)}, "another number of dimensions"),
        (VALUE, {"shape": (1 << 40, 1 << 40)}, "more elements than 64 bits count"),
        (VALUE, {"shape": (0, 1 << 40, 1 << 40), "stride": (1, 1, 1)}, "more elements than 64 bits count"),
        (VALUE, {"stride": (1 << 62, 1)}, "reaches further than 64 bits count"),
        (VALUE, {"extra": {"layout": 3}}, "extra['layout'] is 3"),
        (VALUE, {"extra": {"parts": {"values": 5}}}, "it is made of value 5, which is no earlier one"),
        (VALUE, {"extra": {"parts": {"values": 0}}}, "it is made of value 0"),
        (VALUE, {"extra": {"mesh": {"shape": (2,), "ranks": (0,)}}}, "another number of ranks"),
        (VALUE, {"extra": {"mesh": {"shape": (2,)}}}, "extra['mesh']"),
        (BLOB, {"offset": -1}, "neither may be negative"),
        (BLOB, {"nbytes": -8}, "neither may be negative"),
        (BLOB, {"offset": (1 << 63) - 8}, "beyond 64 bits"),
        (BLOB, {"dtype": "f32 "}, "is none of safetensors"),
        (BLOB, {"shape": (3,)}, "F32[3] is not 8 bytes"),
        (BLOB, {"checksum": b"123"}, "its checksum has 3 bytes, not 8"),
        (r.Shard(r.SHARD, 0, 4096), {"header_bytes": 7}, "header_bytes 7"),
        (r.Shard(r.SHARD, 0, 4096), {"header_bytes": 100_000_009}, "header_bytes 100000009"),
        (header(), {"config": {"data": 3}}, "config['data'] is no text"),
        (header(), {"config": {"statistics": ["min"]}}, "config['statistics'] is no list of texts"),
        (header(), {"config": {"statistics": (1,)}}, "config['statistics'] is no list of texts"),
        (header(), {"config": {1: 2}}, "config is {1: 2}, it must be a map from text"),
        (CALL, {"args": ((0, "x"),)}, "args is"),
        (CALL, {"kwargs": {"a": [1]}}, "kwargs is"),
        (CALL, {"outputs": b"x"}, "outputs is b'x', it must be an argument tree"),
        (CALL, {"written": ("self",)}, "written is"),
        (CALL, {"written": (1, (0, 1))}, "written is"),
        (CALL, {"error": 5}, "error is 5, it must be a text or nil"),
        (r.Statistics(r.STATISTICS, 1, (1, None, (1.0, 2.0))), {"numbers": (1, "x")}, "numbers is"),
        (r.Statistics(r.STATISTICS, 1, (1, None, (1.0, 2.0))), {"numbers": 1.0}, "numbers is"),
        (r.Statistics(r.STATISTICS, 1, (1, None, (1.0, 2.0))), {"numbers": ((1.0, 2.0, 3.0),)}, "numbers is"),
        (r.Commit(r.COMMIT, 1, 2, 3, 4, (5,), {"copy": 1.0}), {"seconds": {"copy": "x"}}, "seconds is"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(record: Any, fields: dict[str, Any], said: str) -> None:
    assert problem(record) == ""
    assert said in problem(record, **fields)
    assert problem(record) == "", "a right row stays right after a wrong one"


@pytest.mark.parametrize(
    "fields",
    [{"shape": (), "stride": ()}, {"shape": (0, 5), "stride": (5, 1)}, {"storage": 0, "stride": ()}, {"extra": {"parts": {"values": 4}}},
     {"extra": {"newer": object}}],
)  # fmt: skip
def test_values_at_the_edge_of_what_is_allowed(fields: dict[str, Any]) -> None:
    assert problem(VALUE, **fields) == ""


@pytest.mark.parametrize("edge", [8, 100_000_008])
def test_headers_at_the_edge(edge: int) -> None:
    assert problem(r.Shard(r.SHARD, 0, edge)) == ""


@pytest.mark.parametrize(
    ("tree", "right"),
    [
        (None, True), (2.5, True), ("x", True), (True, True), (b"x", False), ([1], False), ((), False), (("x",), False),
        ((0, 1), True), ((0, 1, 2), False), ((0, "1"), False), ((0, True), False),
        ((r.TREE_LIST, 1, (r.TREE_TUPLE, (0, 1))), True), ((r.TREE_LIST, b"x"), False),
        ((r.TREE_DICT, "a", 1, 2, 3), True), ((r.TREE_DICT, "a"), False), ((r.TREE_DICT, 2.5, 1), False),
        ((r.TREE_DTYPE, "float32"), True), ((r.TREE_DTYPE, 1), False), ((r.TREE_DTYPE, "a", "b"), False),
        ((r.TREE_GENERATOR, "cpu", 5), True), ((r.TREE_GENERATOR, "cpu", None), True), ((r.TREE_GENERATOR, "cpu", "5"), False),
        ((r.TREE_COMPLEX, 1.0, 2), True), ((r.TREE_COMPLEX, 1.0, None), False), ((r.TREE_COMPLEX, 1.0), False),
        ((99, {"a": 1}), True), ((-1, {"a": 1}), True),
    ],
    ids=repr,
)  # fmt: skip
def test_trees(tree: Any, right: bool) -> None:
    assert is_tree(tree) is right


def test_trees_have_so_many_levels_and_no_more() -> None:
    tree: Any = 1
    for _ in range(MOST_LEVELS + 1):
        tree = (r.TREE_LIST, tree)
    assert is_tree(tree)
    assert not is_tree((r.TREE_LIST, tree))
