"""Arguments as templates: literals as text, a mark for each tensor, and which values fill the marks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from aten_dump import open_dump
from aten_dump.report.html.payload.call_arguments import MARK, arguments_section, tree_text
from aten_dump.report.html.payload.sections import value_ids
from aten_dump.store import records as r
from tests.dump.building import Builder, value
from tests.export.made import small_step
from tests.report.sections_read import Read


def read(root: Path) -> Read:
    rank = open_dump(root).step(0).rank(0)
    return Read(arguments_section(rank, value_ids(rank), 0))


def test_a_call_is_its_template_and_the_places_of_its_values(tmp_path: Path) -> None:
    section = read(small_step(tmp_path / "dump"))
    templates = [section.json["templates"][number] for number in section.columns["template"]]
    inputs, outputs, written, slots = templates[2]
    assert inputs == [["0", MARK], ["1", f"[{MARK}, 2]"], ["2", "1.5"], ["beta", "True"]]
    assert (outputs, written, slots) == (MARK, ["self"], ["input.0", "input.1.0", "output.0", "mutated.self"])
    before = sum(len(template[3]) for template in templates[:2])
    assert section.columns["refs"][before : before + 4] == [0, 1, 2, 2], "values 1, 2, 3, 3 by their places"
    assert section.json["errors"] == {"3": "RuntimeError: stopped"}
    assert section.columns["sequence_nr"] == [-1] * 7


def test_calls_with_the_same_literals_share_a_template(tmp_path: Path) -> None:
    b = Builder(tmp_path / "dump")
    one, two = (value(b.value(torch.ones(n))) for n in (1, 2))
    op = b.op("aten", "aten::add", "Aten", "add")
    for n, (args, nr) in enumerate((([one, 1], 5), ([two, 1], 6), ([one, 2], None))):
        b.call(op, n=n, args=args, sequence_nr=nr)
    section = read(b.finish())
    assert section.columns["template"] == [0, 0, 1] and len(section.json["templates"]) == 2
    assert section.columns["refs"] == [0, 1, 0] and section.columns["sequence_nr"] == [5, 6, -1]


def test_a_value_that_is_not_there_has_no_place(tmp_path: Path) -> None:
    b = Builder(tmp_path / "dump")
    b.value(torch.ones(1))
    b.call(b.op("aten", "aten::add", "Aten", "add"), args=[value(99)])
    rank = open_dump(b.finish()).step(0).rank(0)
    assert Read(arguments_section(rank, np.array([1], np.int64), 0)).columns["refs"] == [-1]


@pytest.mark.parametrize(
    ("tree", "text"),
    [
        ((r.TREE_VALUE, 3), MARK),
        (None, "None"),
        ("sum", "'sum'"),
        ((r.TREE_LIST, 1, (r.TREE_TUPLE, (r.TREE_VALUE, 3), 2.5)), f"[1, ({MARK}, 2.5)]"),
        ((r.TREE_DICT, "a", (r.TREE_VALUE, 1), "b", None), f"{{a: {MARK}, b: None}}"),
        ((r.TREE_LIST,), "[]"),
        ((r.TREE_DTYPE, "float16"), "torch.float16"),
    ],
)
def test_a_tree_as_text(tree: r.Tree, text: str) -> None:
    assert tree_text(tree) == text


def test_long_texts_are_cut_but_never_a_tensor_away() -> None:
    numbers: tuple[r.Tree, ...] = tuple(range(1000))
    text = tree_text((r.TREE_LIST, *numbers))
    assert len(text) == 2003 and text.endswith("...")
    with_tensor = tree_text((r.TREE_LIST, *numbers, (r.TREE_VALUE, 1)))
    assert with_tensor.count(MARK) == 1 and with_tensor.endswith(f"{MARK}]")
