"""Arguments in a few words: tensors by type, long lists cut, what is no literal by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from aten_dump import open_dump
from aten_dump.dump import GeneratorRef, ObjectRef, ReprRef
from aten_dump.plain_text import counted
from aten_dump.report.units import argument
from tests.dump.building import Builder


@pytest.mark.parametrize(
    ("tree", "text"),
    [
        (None, "None"), (True, "True"), (2.5, "2.5"), ("sum", "'sum'"), (1 + 2j, "(1+2j)"), (torch.float16, "torch.float16"),
        ([1, (2, "x")], "[1, (2, 'x')]"), ({"a": 1, 2: [None]}, "{a: 1, 2: [None]}"), ((), "()"),
        (ObjectRef("torch.classes.c10d.Work"), "<Work>"), (ReprRef("ReduceOp.SUM"), "ReduceOp.SUM"),
    ],
    ids=str,
)  # fmt: skip
def test_literals(tree: Any, text: str) -> None:
    assert argument(tree) == text


def test_a_generator_is_its_device_and_seed() -> None:
    assert argument(GeneratorRef("cpu", 7)) == "<Generator cpu seed 7>"


@pytest.mark.parametrize(("count", "text"), [(8, "[0, 1, 2, 3, 4, 5, 6, 7]"), (9, "[0, 1, 2, 3, 4, 5, 6, ... 2 more]")])
def test_of_many_numbers_the_first_are_shown(count: int, text: str) -> None:
    assert argument(list(range(count))) == text


def test_of_many_tensors_fewer_are_shown(tmp_path: Path) -> None:
    b = Builder(tmp_path / "dump")
    number = b.value(torch.ones(2, 3))
    x = open_dump(b.finish()).step(0).rank(0).value_by_id(number)
    assert argument(x) == "f32[2, 3]"
    assert argument([x] * 3) == "[f32[2, 3], f32[2, 3], f32[2, 3]]"
    assert argument((x, 1, x, x)) == "(f32[2, 3], 1, ... 2 more)"
    assert argument({"a": x, "b": x, "c": x, "d": x}) == "{a: f32[2, 3], b: f32[2, 3], ... 2 more}"


def test_one_is_not_many() -> None:
    assert [counted(n, "step") for n in (0, 1, 2)] == ["0 steps", "1 step", "2 steps"]
