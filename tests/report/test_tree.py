"""The tree of calls: who is under whom, what leads to a match, how deep."""

from __future__ import annotations

from pathlib import Path

import pytest

from aten_dump import RankDump, open_dump
from aten_dump.report.tree import call_line, signature, tree_lines
from aten_dump.store import records as r
from tests.dump.building import Builder
from tests.dump.scenario import linear_step


@pytest.fixture
def rank(tmp_path: Path) -> RankDump:
    return open_dump(linear_step(tmp_path / "dump").builder.finish()).step(0).rank(0)


def shown(rank: RankDump, **how: object) -> list[tuple[int, int, bool]]:
    return [(line.depth, line.call.id, line.matched) for line in tree_lines(rank, **how)]  # type: ignore[arg-type]


def test_each_call_is_under_the_one_it_ran_in(rank: RankDump) -> None:
    assert [(depth, id) for depth, id, matched in shown(rank) if matched] == [
        (1, 1), (2, 2), (3, 3), (3, 4), (1, 5), (2, 6), (1, 7), (2, 8), (1, 9), (1, 10),
    ]  # fmt: skip


def test_of_a_selection_the_calls_that_lead_to_it_are_shown(rank: RankDump) -> None:
    matched = rank.calls.filter(op="aten::t")
    assert [call.id for call in matched] == [3]
    assert shown(rank, matched=matched) == [(1, 1, False), (2, 2, False), (3, 3, True)]
    assert shown(rank, matched=rank.calls.filter(op="nothing")) == []


@pytest.mark.parametrize(
    ("depth", "ids"), [(1, {1, 5, 7, 9, 10}), (2, {1, 2, 5, 6, 7, 8, 9, 10}), (3, set(range(1, 11)))]
)
def test_no_deeper_than_asked(rank: RankDump, depth: int, ids: set[int]) -> None:
    assert {id for _, id, _ in shown(rank, max_depth=depth)} == ids


def test_a_line_says_what_went_in_and_out_and_what_is_unusual(rank: RankDump, tmp_path: Path) -> None:
    lines = {line.call.id: call_line(line) for line in tree_lines(rank)}
    assert lines[4] == "    Aten.addmm.0.forward  (f32[3], f32[2, 4], f32[4, 3], alpha=2) -> f32[2, 3]  1.00 us"
    assert lines[6] == "  Aten.relu_.0.forward  (f32[2, 3]) -> f32[2, 3]  writes self  1.00 us"
    b = Builder(tmp_path / "cut")
    b.call(b.op("aten", "aten::exp", "Aten", "exp"), id=2, parent=1, error="RuntimeError: no", outputs=[r.TREE_LIST, 1])
    b.open(b.op("module", "Linear", "Module", "fc"), id=1)
    cut = [call_line(line) for line in tree_lines(open_dump(b.finish(commit=False)).step(0).rank(0))]
    assert cut == [
        "Module.fc.0.forward  () -> None  cut short",
        "  Aten.exp.0.forward  () -> [1]  1.00 us  raised RuntimeError: no",
    ]


def test_a_signature_has_lists_and_literals(rank: RankDump) -> None:
    assert signature(rank["Aten._foreach_add_.0.optimizer"]) == (
        "([f32[3, 4], f32[3]], [f32[3, 4], f32[2, 3]], alpha=(1+2j)) -> None"
    )
