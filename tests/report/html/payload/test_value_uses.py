"""Who made and who reads each value, as positions of calls."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from aten_dump import open_dump
from aten_dump.report.html.payload.sections import value_ids
from aten_dump.report.html.payload.value_columns import uses_section
from tests.export.made import small_step
from tests.report.sections_read import Read


def test_makers_and_readers_are_told_by_place(tmp_path: Path) -> None:
    rank = open_dump(small_step(tmp_path / "dump")).step(0).rank(0)
    uses = Read(uses_section(rank, value_ids(rank), 0))
    assert uses.columns["count"] == [3, 3, 4, 0, 0], "x, w, y, the gradient, what nothing wrote"
    readers, at = [], 0
    for count in uses.columns["count"]:
        readers.append(np.cumsum(uses.columns["consumer"][at : at + count]).tolist())
        at += count
    assert readers == [[0, 1, 2], [0, 1, 2], [3, 4, 5, 6], [], []]
    made = {value.id: value.producer for value in rank.values}
    positions = {call.id: at for at, call in enumerate(rank.calls)}
    expected = [-1 if made[id] is None else positions[made[id][0].id] for id in sorted(made)]  # type: ignore[index]
    assert uses.columns["producer"] == expected
    assert uses.columns["producer"][0] == -1 and uses.columns["producer"][2] >= 0
