"""Arguments as trees: every kind of literal, containers, and what is known already."""

from __future__ import annotations

import enum
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np
import pytest
import torch

from aten_dump.capture.values.argument_encoding import encode, encode_all, encode_arguments, encode_unless_known
from aten_dump.capture.values.value_table import ValueTable
from aten_dump.store import records as r
from tests.store.memory_sink import MemorySink

Pair = namedtuple("Pair", "first second")


class Color(enum.IntEnum):
    RED = 4


class Mode(str, enum.Enum):
    FAST = "fast"


@dataclass
class Options:
    scale: float
    mask: Any = None


@pytest.mark.parametrize(
    ("item", "tree"),
    [
        (None, None),
        (True, True),
        (-(2**63), -(2**63)),
        (2**63, (r.TREE_BYTES, str(2**63))),
        (-(2**63) - 1, (r.TREE_BYTES, str(-(2**63) - 1))),
        (1.5, 1.5),
        ("text", "text"),
        (1 + 2j, (r.TREE_COMPLEX, 1.0, 2.0)),
        (Color.RED, 4),
        (Mode.FAST, "fast"),
        (np.float64(2.5), 2.5),
        (torch.float16, (r.TREE_DTYPE, "float16")),
        (torch.device("cuda", 1), (r.TREE_DEVICE, "cuda:1")),
        (torch.channels_last, (r.TREE_MEMORY_FORMAT, "channels_last")),
        (torch.sparse_coo, (r.TREE_LAYOUT, "sparse_coo")),
        (slice(1, None, 2), (r.TREE_BYTES, "slice(1, None, 2)")),
        (slice(torch.tensor(1)), (r.TREE_OBJECT, "builtins.slice")),
        (Ellipsis, (r.TREE_BYTES, "Ellipsis")),
        (torch.Size([2, 3]), (r.TREE_TUPLE, 2, 3)),
        (Pair(1, [2]), (r.TREE_TUPLE, 1, (r.TREE_LIST, 2))),
        (OrderedDict(a=1), (r.TREE_DICT, "a", 1)),
        ({1: 3, (4,): 5}, (r.TREE_DICT, 1, 3, "(4,)", 5)),
        ({True: 3, None: 1}, (r.TREE_DICT, "True", 3, "None", 1)),
        (Options(0.5), (r.TREE_DICT, "scale", 0.5, "mask", None)),
        (Options, (r.TREE_OBJECT, "builtins.type")),
        ({1, 2}, (r.TREE_OBJECT, "builtins.set")),
        pytest.param(object(), (r.TREE_OBJECT, "builtins.object"), id="object"),
    ],
    ids=repr,
)
def test_literals(item: Any, tree: Any, values: ValueTable) -> None:
    found = encode(item, values, False)
    assert found == tree and type(found) is type(tree)
    assert msgpack.unpackb(msgpack.packb(found), strict_map_key=False, use_list=False) == found
    assert encode_all((item,), values, False) == [tree]
    assert encode_arguments((item,), {}, values, False)[0] == (tree,)


class Count(int):
    """An integer of the program's own."""


def test_integers_of_any_length_are_texts_wherever_they_are(values: ValueTable) -> None:
    long, text = 10**6000, hex(10**6000)  # more digits than Python writes
    assert encode(long, values, False) == encode(Count(long), values, False) == (r.TREE_BYTES, text)
    assert encode([long, {long: Count(1)}], values, False) == (
        r.TREE_LIST,
        (r.TREE_BYTES, text),
        (r.TREE_DICT, text, 1),
    )
    assert encode({Count(2**63): 0, -(2**63): 1}, values, False) == (r.TREE_DICT, str(2**63), 0, -(2**63), 1)
    assert encode({(long,): 0}, values, False) == (r.TREE_DICT, "tuple(...)", 0)


def refuse(*_: Any) -> Any:
    raise ValueError("no numbers of ours")


REFUSED = (
    *("__int__", "__index__", "__float__", "__complex__", "__neg__", "__pos__"),
    *("__le__", "__lt__", "__ge__", "__gt__", "real", "imag"),
)
METHODS: dict[str, Any] = {name: property(refuse) if name in ("real", "imag") else refuse for name in REFUSED}
Id, Share, Phase = (type("Mine", (kind,), METHODS) for kind in (int, float, complex))


def test_numbers_of_the_program_s_own_classes_are_not_asked_for_their_number(values: ValueTable) -> None:
    numbers = Id(3), Share(-0.5), Phase(1 - 2j), {Id(4): Id(2**63)}
    trees = (3, -0.5, (r.TREE_COMPLEX, 1.0, -2.0), (r.TREE_DICT, 4, (r.TREE_BYTES, str(2**63))))
    assert encode(numbers, values, False) == (r.TREE_TUPLE, *trees)
    assert encode_arguments(numbers, {}, values, False)[0] == trees


def test_a_generator_is_its_device_and_seed(values: ValueTable) -> None:
    assert encode(torch.Generator().manual_seed(7), values, False) == (r.TREE_GENERATOR, "cpu", 7)


def test_containers_that_hold_themselves_are_named(values: ValueTable) -> None:
    inner: list[Any] = [1]
    inner.append(inner)
    assert encode(inner, values, False) == (r.TREE_LIST, 1, (r.TREE_OBJECT, "builtins.list"))
    twice = [2]
    assert encode([twice, twice], values, False) == (r.TREE_LIST, (r.TREE_LIST, 2), (r.TREE_LIST, 2))


def test_containers_too_deep_are_named(values: ValueTable) -> None:
    deep: list[Any] = [torch.zeros(1)]
    for _ in range(5000):
        deep = [deep]
    depth, tree = 0, encode(deep, values, False)
    while tree[0] == r.TREE_LIST:
        depth, tree = depth + 1, tree[1]
    assert (depth, tree) == (256, (r.TREE_OBJECT, "builtins.list"))
    assert encode_arguments((deep,), {}, values, False)[2] == []


def test_arguments_and_their_tensors_have_the_same_paths(values: ValueTable, sink: MemorySink) -> None:
    x, y = torch.zeros(1), torch.nn.Parameter(torch.ones(1))
    trees, kwargs, found, in_containers = encode_arguments((x, [1, y], 2), {"mask": {"a": x}}, values, True)
    assert in_containers and not encode_arguments((x, 2.0, None), {}, values, True)[3]
    assert trees == ((r.TREE_VALUE, 1), (r.TREE_LIST, 1, (r.TREE_VALUE, 2)), 2)
    assert kwargs == {"mask": (r.TREE_DICT, "a", (r.TREE_VALUE, 1))}
    assert [(path, tensor is x) for path, tensor in found] == [((0,), True), ((1, 1), False), (("mask", "a"), True)]
    values.clear()
    assert len(sink.of(r.DATA)) == 2, "both are kept, and once"


@pytest.mark.parametrize("keep", [True, False])
def test_data_are_kept_where_it_is_asked_for(values: ValueTable, sink: MemorySink, keep: bool) -> None:
    encode_all((torch.zeros(1), [torch.ones(1)], {"k": torch.ones(2)}), values, keep)
    encode_arguments((torch.zeros(1), (torch.ones(1),)), {"k": torch.ones(2)}, values, keep)
    values.clear()
    assert len(sink.of(r.DATA)) == (6 if keep else 0)


def test_what_is_known_is_not_encoded_again(values: ValueTable) -> None:
    x, y = torch.zeros(1), torch.ones(1)
    tree = (r.TREE_VALUE, 99)
    assert encode_unless_known((x, y, x), values, True, (x, x), [tree, tree]) == [
        tree,
        (r.TREE_VALUE, 1),
        (r.TREE_VALUE, 2),
    ], "the third is not known at its place"
