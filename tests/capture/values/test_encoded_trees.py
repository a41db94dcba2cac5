"""Walks of encoded trees."""

from __future__ import annotations

import torch

from aten_dump.capture.values.argument_encoding import encode
from aten_dump.capture.values.encoded_trees import entries, mirror, values_in
from aten_dump.store.records import TREE_COMPLEX, TREE_DICT, TREE_DTYPE, TREE_LIST, TREE_OBJECT, TREE_TUPLE, TREE_VALUE
from tests.capture.values.tables import new_table
from tests.store.memory_sink import MemorySink

TREE = (
    TREE_TUPLE,
    (TREE_VALUE, 7),
    3,
    (TREE_LIST, (TREE_VALUE, 8), None, (TREE_DTYPE, "float32")),
    (TREE_DICT, "a", (TREE_VALUE, 7), 5, (TREE_TUPLE, (TREE_VALUE, 9)), "b", (TREE_COMPLEX, 0, 1)),
)


def test_entries_have_the_keys_that_lead_to_them() -> None:
    assert list(entries(TREE))[:2] == [(0, (TREE_VALUE, 7)), (1, 3)]
    assert [key for key, _ in entries(TREE[4])] == ["a", 5, "b"]
    for leaf in (None, 3, "text", (TREE_VALUE, 1), (TREE_OBJECT, "x.Y"), (TREE_COMPLEX, 0, 1)):
        assert list(entries(leaf)) == []


def test_values_come_in_order_and_as_often_as_they_stand_there() -> None:
    assert values_in([TREE, None, (TREE_VALUE, 1)]) == [7, 8, 7, 9, 1]


def test_a_mirror_has_the_shape_and_only_what_was_found() -> None:
    found = {(0,): "g0", (2, 0): "g1", (3, 5, 0): "g2", (1,): "no value stands there"}
    assert mirror(TREE, found) == (
        TREE_TUPLE,
        "g0",
        None,
        (TREE_LIST, "g1", None, None),
        (TREE_DICT, "a", None, 5, (TREE_TUPLE, "g2"), "b", None),
    )


def test_paths_are_those_of_the_arguments() -> None:
    x, y = torch.zeros(1), torch.ones(1)
    values = new_table(MemorySink())
    tree = encode({"k": [x, (y, 2)], 3: x}, values, False)
    values.clear()
    assert values_in([tree]) == [1, 2, 1]
    assert mirror(tree, {("k", 1, 0): "here"}) == (
        TREE_DICT, "k", (TREE_LIST, None, (TREE_TUPLE, "here", None)), 3, None,
    )  # fmt: skip
