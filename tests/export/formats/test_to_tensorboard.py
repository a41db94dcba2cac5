"""Each statistic of each tensor is a curve over the steps."""

from __future__ import annotations

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from aten_dump.export.formats.to_tensorboard import write
from aten_dump.store import records as r
from tests.dump.building import STATISTICS, Builder, value
from tests.export.made import X, chosen, small_step


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_a_tag_is_a_statistic_of_a_slot_over_the_steps_of_a_rank(tmp_path: Path) -> None:
    for step, rank in ((0, 0), (5, 0), (5, 1)):
        small_step(tmp_path / "dump", step, rank)
    write(chosen(tmp_path / "dump", ["module"]), tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["rank0", "rank1"]
    found = curves(tmp_path / "out" / "rank0")
    assert found["min/Module.fc.0.forward.output.0"] == [(0, -4.0), (5, -4.0)]
    assert "std/Module.fc.0.forward.output.0" not in found, "None is no number"
    assert not any("input.0" in tag and "forward" in tag for tag in found), "of which no statistics were recorded"
    assert curves(tmp_path / "out" / "rank1")["l2norm/Module.fc.0.forward.output.0"] == [(5, 5.0)]


def test_gradients_of_parameters_are_curves_too(tmp_path: Path) -> None:
    b = Builder(tmp_path / "dump")
    number = b.value(X)
    b.emit(r.Statistics(r.STATISTICS, number, [float(i) for i in range(len(STATISTICS))]))
    b.call(b.op("aten", "aten::exp", "Aten", "exp"), args=[value(number)])
    b.emit(r.Gradient(r.GRADIENT, "fc.weight", number, 1))
    write(chosen(b.finish(), ["module"]), tmp_path / "out")
    found = curves(tmp_path / "out" / "rank0")
    assert found["max/gradient.fc.weight"] == [(0, 2.0)] and all("gradient" in tag for tag in found)
