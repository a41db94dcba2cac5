"""The tree section: names by differences, places by distance, damage without circles."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aten_dump import FormatError, open_dump
from aten_dump.report.html.payload.call_tree import positions_of, tree_section
from tests.dump.building import Builder
from tests.export.made import FILE, small_step
from tests.report.sections_read import Read


def read(root: Path) -> Read:
    return Read(tree_section(open_dump(root).step(0).rank(0)))


def test_positions_of_ids_and_of_those_that_are_not_there() -> None:
    ids = np.array([2, 5, 9])
    assert positions_of(ids, np.array([5, 2, 9, 0, 3, 10])).tolist() == [1, 0, 2, -1, -1, -1]
    assert positions_of(np.array([], np.int64), np.array([0, 1])).tolist() == [-1, -1]


def test_parents_are_told_by_distance_and_forward_calls_by_place(tmp_path: Path) -> None:
    tree = read(small_step(tmp_path / "dump"))
    assert tree.columns["parent"] == [0, 1, 1, 0, 0, 0, 0]
    assert tree.columns["forward"] == [-1, -1, -1, 2, 1, 1, 0]
    assert tree.columns["id"] == [1] * 7, "less the place"
    assert tree.columns["repeat"] == [0, 0, 0, 0, 0, 1, 0]
    assert [tree.json["modules"][at] for at in tree.columns["module"]] == ["fc"] * 7
    assert tree.json["ops"][tree.columns["op"][2]] == [
        "Aten.addmm_", "aten::addmm_", "aten", ["self", "mat1", "mat2", "beta"],
    ]  # fmt: skip


def test_a_number_is_the_difference_from_the_last_of_its_name_and_phase(tmp_path: Path) -> None:
    b = Builder(tmp_path / "dump")
    add, add_ = b.op("aten", "aten::add.Tensor", "Aten", "add"), b.op("aten", "aten::add.Scalar", "Aten", "add")
    for op, n, phase in ((add, 0, "forward"), (add_, 1, "forward"), (add, 4, "forward"), (add, 0, "backward")):
        b.call(op, n=n, phase=phase)
    assert read(b.finish()).columns["number"] == [0, 0, 2, 0], "overloads count on together"


@pytest.mark.parametrize("phase", ["forward", "recompute", "backward", "optimizer"])
def test_the_first_of_a_name_and_phase_may_have_any_number(tmp_path: Path, phase: str) -> None:
    b = Builder(tmp_path / "dump")
    b.call(b.op("aten", "aten::add", "Aten", "add"), n=4, phase=phase)
    assert read(b.finish()).columns["number"] == [4]


def test_a_call_whose_parent_is_not_recorded_has_none(tmp_path: Path) -> None:
    b = Builder(tmp_path / "dump")
    op = b.op("aten", "aten::add", "Aten", "add")
    for number, parent in ((2, 1), (4, 3), (5, 2)):
        b.call(op, id=number, n=number, parent=parent)
    assert read(b.finish()).columns["parent"] == [0, 0, 2]


def test_a_circle_of_parents_is_refused_before_it_gets_here(tmp_path: Path) -> None:
    b = Builder(tmp_path / "dump")
    op = b.op("aten", "aten::add", "Aten", "add")
    for number, parent in ((1, 2), (2, 1)):
        b.call(op, id=number, n=number, parent=parent)
    with pytest.raises(FormatError, match="whose parent is 2"):
        read(b.finish())


@pytest.mark.parametrize(
    ("duration", "digits", "exponent"),
    [
        (0, 0, 0),
        (7, 7, 0),
        (99_999, 99_999, 0),
        (123_456, 12_346, 1),
        (999_999, 100_000, 1),
        (12_345_678_949, 12_346, 6),
    ],
)
def test_durations_have_five_digits(tmp_path: Path, duration: int, digits: int, exponent: int) -> None:
    b = Builder(tmp_path / "dump")
    b.call(b.op("aten", "aten::add", "Aten", "add"), duration_ns=duration)
    tree = read(b.finish())
    assert (tree.columns["duration.digits"], tree.columns["duration.exponent"]) == ([digits], [exponent])


def test_stacks_are_chains_of_frames_that_are_shared(tmp_path: Path) -> None:
    tree = read(small_step(tmp_path / "dump"))
    chains = tree.columns["stack"]
    assert chains[1] == chains[2] != 0 and chains[0] == chains[3] == 0
    inner = tree.columns["chain.frame"][chains[1]]
    outer = tree.columns["chain.frame"][tree.columns["chain.parent"][chains[1]]]
    files = [tree.json["texts"][tree.columns["frame.file"][at]] for at in (inner, outer)]
    assert files == [FILE, "/lib/torch/nn.py"]
    assert [tree.columns["frame.line"][at] for at in (inner, outer)] == [7, 9]
    assert [tree.columns["frame.user"][at] for at in (inner, outer)] == [1, 0]


def test_calls_that_were_cut_short_are_named(tmp_path: Path) -> None:
    b = Builder(tmp_path / "dump")
    b.call(b.op("aten", "aten::add", "Aten", "add"), id=2, parent=1)
    b.open(b.op("module", "Linear", "Module", "fc"), id=1)
    tree = read(b.finish(commit=False))
    assert tree.json["unfinished"] == [0] and tree.columns["parent"] == [0, 1]


def test_a_recomputed_call_names_the_one_it_repeats(tmp_path: Path) -> None:
    b = Builder(tmp_path / "dump")
    op = b.op("aten", "aten::exp", "Aten", "exp")
    b.call(op, id=1)
    b.call(
        b.op("node", "CheckpointFunctionBackward", "Node", "CheckpointFunctionBackward"),
        id=2,
        phase="backward",
        forward=1,
    )
    b.call(op, id=3, n=1, parent=2, phase="recompute")
    rank = open_dump(b.finish()).step(0).rank(0)
    original = rank.calls[2].forward
    tree = Read(tree_section(rank))
    assert tree.columns["forward"][2] == (-1 if original is None else 0)
