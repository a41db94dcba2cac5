"""The answer for one dump: what ran, what it cost, how many values are not finite, and why that is not known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from aten_dump import RankDump, open_dump
from aten_dump.report.html.payload.dump_answer import nonfinite_answer, rank_outline, run_facts
from aten_dump.store import records as r
from tests.browser import dumps
from tests.dump.building import Builder, value
from tests.export.made import small_step


def test_facts_of_the_run_are_those_that_are_shown_nowhere_else(tmp_path: Path) -> None:
    root = small_step(tmp_path / "dump")
    (root / "run.json").write_text(json.dumps({"world_size": 2, "python": "3.11", "config": {"a": 1}, "steps": "0"}))
    assert run_facts(open_dump(root)) == {"world_size": 2, "python": "3.11"}


def rank_of(b: Builder, **how: Any) -> RankDump:
    return open_dump(b.finish(**how)).step(0).rank(0)


def test_an_outline_has_sizes_notes_and_costs(tmp_path: Path) -> None:
    b = Builder(tmp_path / "dump", config={"sample": 3})
    number = b.value(torch.ones(2))
    b.call(b.op("aten", "aten::exp", "Aten", "exp"), args=[value(number)])
    b.emit(r.Saved(r.SAVED, 1, "ExpBackward0", [number]))
    b.emit(r.Note(r.NOTE, "traced", "3 calls were traced", 3))
    rank = rank_of(b)
    found = rank_outline(rank)
    assert (found["step"], found["rank"], found["complete"], found["calls"], found["values"]) == (0, 0, True, 1, 1)
    assert {kind: count for kind, count in found["kinds"].items() if count} == {"aten": 1}
    assert found["notes"] == [{"code": "traced", "message": "3 calls were traced", "count": 3}]
    assert found["config"] == {
        "level": "mix",
        "data": "full",
        "io": "all",
        "stacks": None,
        "sample": 3,
        "trigger": None,
    }
    assert (found["saved_bytes"], found["loss_scales"], found["seconds"]) == (8, [], {"capture": 0.5})
    assert found["index_bytes"] == (rank.directory / "index.msgpack").stat().st_size


def test_an_interrupted_step_says_what_lacks(tmp_path: Path) -> None:
    b = Builder(tmp_path / "dump")
    b.call(b.op("aten", "aten::exp", "Aten", "exp"))
    found = rank_outline(rank_of(b, commit=False))
    assert not found["complete"] and found["missing"] and found["calls"] == 1


def counted(path: Path, names: list[str], *rows: list[Any]) -> int | None:
    b = Builder(path / "dump", config={"statistics": names})
    for row in rows:
        b.emit(r.Statistics(r.STATISTICS, b.value(torch.ones(2)), row))
    b.call(b.op("aten", "aten::exp", "Aten", "exp"))
    found: int | None = rank_outline(rank_of(b))["nonfinite_values"]
    return found


def test_values_with_nan_or_infinities_are_counted_once_each(tmp_path: Path) -> None:
    names = ["max", "nan", "posinf", "neginf"]
    assert counted(tmp_path / "a", names, [1.0, 0, 0, 0], [1.0, 2, 1, 0], [1.0, 0, 0, 1], [1.0, None, None, None]) == 2
    assert counted(tmp_path / "b", names) is None, "none were recorded"
    assert counted(tmp_path / "c", ["max"], [1.0]) is None, "they tell nothing of it"
    assert counted(tmp_path / "d", names, [1.0]) == 0, "a row that is cut short"


def test_where_nan_came_from(tmp_path: Path) -> None:
    b = Builder(tmp_path / "dump")
    good, bad = b.value(torch.ones(2)), b.value(torch.tensor([float("nan"), 1.0]))
    for number, nan in ((good, 0), (bad, 1)):
        b.emit(r.Statistics(r.STATISTICS, number, [2, 1.0, 1.0, 1.0, 1.0, None, nan, 0, 0, 0, 0, 2]))
    b.call(b.op("aten", "aten::log", "Aten", "log"), args=[value(good)], outputs=value(bad))
    found = nonfinite_answer(rank_of(b))
    assert found["first"]["call"] == "Aten.log.0.forward" and found["first"]["slots"] == [
        ["output.0", "float32", 2, 1, 0, 0]
    ]
    assert (found["counts"]["producers"], found["calls"], len(found["producers"])) == (1, 1, 1)
    assert found["lines"][0].startswith("first in")
    assert found["calls_by_kind"] == {"made": "0", "mask": ""}


def test_masks_and_what_made_nan_are_told_by_their_calls(tmp_path: Path) -> None:
    rank = open_dump(dumps.diverging(tmp_path)).rank(3, 0)
    found = nonfinite_answer(rank)
    named = {kind: rank.calls[int(text.split("|")[0])].name for kind, text in found["calls_by_kind"].items()}
    assert named == {"made": "Aten.div.0.forward", "mask": "Aten.masked_fill.0.forward"}


def test_what_cannot_be_known_says_why(tmp_path: Path) -> None:
    b = Builder(tmp_path / "dump", config={"data": "structure"})
    b.call(b.op("aten", "aten::log", "Aten", "log"))
    assert list(nonfinite_answer(rank_of(b))) == ["unknown"]
