"""Numbers over steps: one series for a name, a hole where a step has none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from aten_dump import open_dump
from aten_dump.report.html.payload import step_series
from aten_dump.report.html.payload.step_series import StepSeries
from aten_dump.store import records as r
from tests.dump.building import Builder, value
from tests.report.sections_read import Read


def recorded(
    root: Path, step: int, *, module: bool = True, loss: bool = True, stats: bool = True, rank: int = 0
) -> None:
    b = Builder(root, step, rank)
    numbers = [b.value(torch.ones(2)) for _ in range(3)]
    if stats:
        for at, number in enumerate(numbers):
            b.emit(
                r.Statistics(
                    r.STATISTICS, number, [2, 0.0, 1.0, step + at / 10, float(10 * step + at), None, 0, 0, 0, 0, 0, 2]
                )
            )
    if loss:
        b.call(b.op("api", "torch.Tensor.backward", "Tensor", "backward"), args=[value(numbers[0])])
    if module:
        outputs = [r.TREE_TUPLE, value(numbers[1]), value(numbers[2])]
        b.call(b.op("module", "Linear", "Module", "fc"), module="fc", outputs=outputs)
    b.emit(r.Gradient(r.GRADIENT, "fc.weight", numbers[2], 1))
    b.finish()


def series(root: Path) -> Read | None:
    dump = open_dump(root)
    found = StepSeries(dump.steps, dump.ranks)
    for rank in dump.all_ranks():
        found.add(rank)
    section = found.section()
    return None if section is None else Read(section)


def test_the_loss_gradients_and_first_results_of_modules_are_followed(tmp_path: Path) -> None:
    recorded(tmp_path / "dump", 0), recorded(tmp_path / "dump", 4)
    found = series(tmp_path / "dump")
    assert found is not None
    assert found.json["series"] == [
        ["loss", "loss"], ["fc.weight", "gradients"], ["Module.fc.0.forward.output.0", "module results"],
    ]  # fmt: skip
    assert (found.json["steps"], found.json["ranks"]) == ([0, 4], [0])
    assert found.numbers("l2norm") == [0.0, 40.0, 2.0, 42.0, 1.0, 41.0]
    assert found.numbers("std") == [None] * 6 and "count" not in found.json["statistics"]


def test_a_step_that_lacks_a_name_has_a_hole(tmp_path: Path) -> None:
    recorded(tmp_path / "dump", 0, module=False), recorded(tmp_path / "dump", 1, loss=False)
    found = series(tmp_path / "dump")
    assert found is not None
    names = [name for name, _ in found.json["series"]]
    numbers = found.numbers("l2norm")
    at = {name: numbers[2 * n : 2 * n + 2] for n, name in enumerate(names)}
    assert at["loss"] == [0.0, None] and at["Module.fc.0.forward.output.0"] == [None, 11.0]


def test_ranks_have_series_of_their_own(tmp_path: Path) -> None:
    recorded(tmp_path / "dump", 0), recorded(tmp_path / "dump", 0, rank=1, loss=False)
    found = series(tmp_path / "dump")
    assert found is not None and found.json["ranks"] == [0, 1]
    assert found.numbers("l2norm")[:2] == [0.0, None]


def test_without_statistics_there_are_none(tmp_path: Path) -> None:
    recorded(tmp_path / "dump", 0, stats=False)
    assert series(tmp_path / "dump") is None


def test_no_more_series_than_a_report_can_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_series, "_MOST_NUMBERS", 4)
    recorded(tmp_path / "dump", 0), recorded(tmp_path / "dump", 1)
    found = series(tmp_path / "dump")
    assert found is not None and [name for name, _ in found.json["series"]] == ["loss", "fc.weight"]
    assert found.numbers("l2norm") == [0.0, 10.0, 2.0, 12.0], "those that are followed are followed to the end"
