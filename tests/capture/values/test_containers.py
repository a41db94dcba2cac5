"""Which containers are entered, by which keys, and where that ends."""

from __future__ import annotations

from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from aten_dump.capture.values.containers import DEEPEST, is_mapping, is_too_deep, items_of, tensors_in

Pair = namedtuple("Pair", "first second")


@dataclass
class Options:
    scale: Any
    mask: Any = None
    later: Any = field(init=False)  # never set


@pytest.mark.parametrize(
    "item", [{}, OrderedDict(a=1), UserDict(a=1), Options(1)], ids=lambda item: type(item).__name__
)
def test_mappings_and_dataclasses_are_entered_by_keys(item: Any) -> None:
    assert is_mapping(item)


@pytest.mark.parametrize("item", [[], (), Options, "text", torch.ones(1), {1}], ids=str)
def test_others_are_not(item: Any) -> None:
    assert not is_mapping(item)


def test_keys_are_texts_or_integers() -> None:
    assert list(items_of({"a": 1, 2: 3, True: 4, (1, 2): 5, None: 6})) == [
        ("a", 1), (2, 3), ("True", 4), ("(1, 2)", 5), ("None", 6),
    ]  # fmt: skip


def test_of_a_dataclass_the_fields_in_order_also_one_that_was_never_set() -> None:
    assert list(items_of(Options(2))) == [("scale", 2), ("mask", None), ("later", None)]


def test_tensors_are_found_with_their_paths_in_order() -> None:
    a, b, c, d = (torch.ones(1) for _ in range(4))
    found = list(tensors_in([a, {"x": (b, 3), 4: "text"}, Options(c, mask=[None]), Pair(1, d)]))
    assert [path for path, _ in found] == [(0,), (1, "x", 0), (2, "scale"), (3, 1)]
    assert all(one is other for (_, one), other in zip(found, (a, b, c, d), strict=True))
    assert list(tensors_in(a)) == [((), a)] and list(tensors_in({1, 2})) == []


def test_a_tensor_twice_is_found_twice() -> None:
    x = torch.ones(1)
    assert [path for path, _ in tensors_in((x, x))] == [(0,), (1,)]


def test_a_container_in_itself_is_entered_once() -> None:
    x = torch.ones(1)
    inside: dict[str, Any] = {"x": x}
    inside["self"] = [inside]
    assert [path for path, _ in tensors_in(inside)] == [("x",)]
    shared = [x]
    assert [path for path, _ in tensors_in([shared, shared])] == [(0, 0), (1, 0)], "twice side by side is no circle"


@pytest.mark.parametrize(("depth", "found"), [(DEEPEST, 1), (DEEPEST + 1, 0)])
def test_so_deep_and_no_deeper(depth: int, found: int) -> None:
    item: Any = torch.ones(1)
    for _ in range(depth):
        item = [item]
    assert len(list(tensors_in(item))) == found


def test_the_outermost_is_never_too_deep() -> None:
    item: list[Any] = []
    assert not is_too_deep(item, ())
    assert not is_too_deep(item, (1, 2))
    assert is_too_deep(item, (1, id(item)))
    assert not is_too_deep(item, tuple(range(1, DEEPEST))) and is_too_deep(item, tuple(range(1, DEEPEST + 1)))
