"""Classes of values that stand for the same thing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from aten_dump import open_dump
from aten_dump.analysis.evidence.judgement import State
from aten_dump.analysis.flow.counterparts import Counterparts
from aten_dump.dump import Value
from tests.dump.building import Builder

Side = list[Value]


@pytest.fixture
def sides(tmp_path: Path) -> tuple[Side, Side]:
    """Five values of each side, whose ids are the same on both."""

    def make(name: str, factor: float) -> Side:
        b = Builder(tmp_path / name)
        for number in range(5):
            b.value(torch.full((3,), number * factor))
        return list(open_dump(b.finish()).rank(0, 0).values)

    return make("target", 1.0), make("baseline", 1.5)


def test_nothing_is_known_at_first(sides: tuple[Side, Side]) -> None:
    t, b = sides
    known = Counterparts(read_data=True)
    assert known.find(t[0], b[0]) is None and known.partner(0, t[0]) is None
    assert known.depth == 0


def test_the_depth_is_the_greatest(sides: tuple[Side, Side]) -> None:
    t, b = sides
    known = Counterparts(read_data=True)
    for number, depth in enumerate((2, 7, 4)):
        known.keep(t[number], b[number], State("within", depth=depth))
    assert known.depth == 7


def test_closeness_is_found_once_and_by_what_may_be_read(sides: tuple[Side, Side]) -> None:
    t, b = sides
    reads, reads_not = Counterparts(read_data=True), Counterparts(read_data=False)
    assert reads.close(t[2], b[2]) is reads.close(t[2], b[2])
    assert reads.close(t[2], b[2]).error == pytest.approx(1 / 3)
    assert reads.close(t[2], b[3]).error != reads.close(t[2], b[2]).error
    assert reads_not.close(t[2], b[2]).level == "none"
    assert reads_not.close(t[0], b[0]).bitwise, "the index tells equal bytes"
