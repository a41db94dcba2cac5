"""Argument trees: their leaves, slots and items, and the same tree with other leaves."""

from __future__ import annotations

from typing import Any

import pytest

from aten_dump.store import records as r
from aten_dump.store.argument_trees import (
    collect,
    fold,
    input_ids,
    items,
    output_slots,
    result_ids,
    slots,
    walk,
    with_leaves,
)
from tests.store.recording import call


def v(number: int) -> tuple[int, int]:
    return (r.TREE_VALUE, number)


NESTED = (r.TREE_DICT, "a.b", v(1), 7, (r.TREE_LIST, v(2), 5, (r.TREE_TUPLE, v(3))), "a", (r.TREE_DTYPE, "float32"))


def test_fold_goes_from_the_leaves_up() -> None:
    seen: list[Any] = []

    def branch(tree: Any, found: list[Any]) -> Any:
        seen.append((tree[0], found))
        return sum(found)

    assert fold(NESTED, lambda leaf: 1, branch) == 5
    assert seen == [(r.TREE_TUPLE, [1]), (r.TREE_LIST, [1, 1, 1]), (r.TREE_DICT, [1, 3, 1])]
    assert fold(3, lambda leaf: ("leaf", leaf), branch) == ("leaf", 3)


def test_other_leaves_same_keys() -> None:
    def renamed(leaf: Any) -> Any:
        return (0, leaf[1] + 10) if isinstance(leaf, tuple) and leaf[0] == r.TREE_VALUE else leaf

    assert with_leaves(NESTED, renamed) == (
        r.TREE_DICT, "a.b", v(11), 7, (r.TREE_LIST, v(12), 5, (r.TREE_TUPLE, v(13))), "a", (r.TREE_DTYPE, "float32"),
    )  # fmt: skip
    assert with_leaves(None, renamed) is None


def test_ids_in_order() -> None:
    found: list[int] = []
    collect(NESTED, found)
    collect(5, found)
    collect((r.TREE_DTYPE, "float32"), found)
    assert found == [1, 2, 3]
    one = call(
        1,
        args=[v(4), 5, (r.TREE_LIST, v(5))],
        kwargs={"out": v(6)},
        outputs=(r.TREE_TUPLE, v(7), None),
        written=["out", v(8)],
    )
    assert input_ids(one) == [4, 5, 6]
    assert result_ids(one) == [7, 8]
    assert input_ids(call(1)) == result_ids(call(1)) == []


def test_slots() -> None:
    assert list(slots(NESTED, "input.0")) == [("input.0.a.b", 1), ("input.0.7.0", 2), ("input.0.7.2.0", 3)]
    assert list(slots(5, "input.0")) == []
    assert list(output_slots(v(1))) == [("output.0", 1)]
    assert list(output_slots((r.TREE_TUPLE, v(1), None, v(2)))) == [("output.0", 1), ("output.2", 2)]
    assert list(output_slots((r.TREE_DICT, "k", v(1)))) == [("output.k", 1)]


def test_items_of_branches_alone() -> None:
    assert list(items(NESTED) or ()) == [("a.b", v(1)), ("7", NESTED[4]), ("a", (r.TREE_DTYPE, "float32"))]
    assert list(items((r.TREE_LIST, 5, 6)) or ()) == [("0", 5), ("1", 6)]
    assert items(v(1)) is None and items(5) is None and items((r.TREE_DTYPE, "x")) is None


@pytest.mark.parametrize(
    ("steps", "expected"),
    [("", NESTED), ("a.b", v(1)), ("a", (r.TREE_DTYPE, "float32")), ("7.0", v(2)), ("7.2.0", v(3))],
)
def test_walk(steps: str, expected: Any) -> None:
    assert walk(NESTED, steps) == expected


@pytest.mark.parametrize("steps", ["b", "7.3", "a.b.0", "a.c"])
def test_a_step_that_leads_nowhere_names_those_that_would_do(steps: str) -> None:
    with pytest.raises(KeyError) as caught:
        walk(NESTED, steps)
    assert isinstance(caught.value.args[0], list)


def test_a_longer_key_is_tried_before_a_shorter_one() -> None:
    tree = (r.TREE_DICT, "k", (r.TREE_DICT, "v", 1), "k.v", 2)
    assert walk(tree, "k.v") == 2
