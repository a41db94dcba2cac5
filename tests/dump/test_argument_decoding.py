"""Argument trees become Python values, also those that this torch or this version does not know."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from aten_dump.dump.argument_decoding import (
    Frame,
    GeneratorRef,
    ObjectRef,
    ReprRef,
    UnknownDevice,
    decode,
    read_device,
)
from aten_dump.errors import FormatError
from aten_dump.store import records as r

CASES: list[tuple[Any, Any]] = [
    (None, None), (True, True), (3, 3), (2.5, 2.5), ("same", "same"),
    ((r.TREE_VALUE, 7), "value 7"),
    ((r.TREE_LIST, 1, (r.TREE_TUPLE, 2, (r.TREE_VALUE, 3))), [1, (2, "value 3")]),
    ((r.TREE_LIST,), []), ((r.TREE_TUPLE,), ()), ((r.TREE_DICT,), {}),
    ((r.TREE_DICT, "a.b", 1, 7, (r.TREE_LIST,)), {"a.b": 1, 7: []}),
    ((r.TREE_DTYPE, "bfloat16"), torch.bfloat16),
    ((r.TREE_DTYPE, "float3"), ReprRef("torch.float3")),
    ((r.TREE_DTYPE, "nn"), ReprRef("torch.nn")),
    ((r.TREE_DEVICE, "cpu"), torch.device("cpu")),
    ((r.TREE_DEVICE, "nosuch:3"), UnknownDevice("nosuch:3")),
    ((r.TREE_MEMORY_FORMAT, "channels_last"), torch.channels_last),
    ((r.TREE_LAYOUT, "sparse_csr"), torch.sparse_csr),
    ((r.TREE_GENERATOR, "cpu", 5), GeneratorRef(torch.device("cpu"), 5)),
    ((r.TREE_COMPLEX, 1.0, -2.0), complex(1, -2)),
    ((r.TREE_OBJECT, "a.B"), ObjectRef("a.B")),
    ((r.TREE_BYTES, "slice(1, 2, None)"), ReprRef("slice(1, 2, None)")),
]  # fmt: skip


@pytest.mark.parametrize(("tree", "expected"), CASES, ids=[str(tree) for tree, _ in CASES])
def test_every_kind_of_leaf_and_container(tree: Any, expected: Any) -> None:
    found = decode(tree, lambda number: f"value {number}")
    assert found == expected
    assert type(found) is type(expected)


def test_a_tag_of_a_newer_version_is_a_format_error() -> None:
    with pytest.raises(FormatError, match=r"tag 77; known are 0 to \d+: read it with a newer aten_dump"):
        decode((r.TREE_LIST, (77, "x")), str)


def test_a_tree_as_deep_as_a_recorder_writes_them() -> None:
    tree: Any = 1
    for _ in range(256):
        tree = (r.TREE_LIST, tree)
    found = decode(tree, str)
    for _ in range(256):
        (found,) = found
    assert found == 1


def test_devices_and_frames() -> None:
    assert read_device("cpu") == torch.device("cpu")
    assert read_device("no device") == "no device"
    assert str(Frame("a.py", 3, "f", True)) == "a.py:3 in f"
