"""Classes of values that stand for the same thing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from aten_dump import open_dump
from aten_dump.analysis.evidence.states import State
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
    assert known.find(t[0], b[0]) is None and known.state_of(t[0]) is None
    assert not known.is_known(0, t[0]) and not known.is_known(1, b[0])
    assert known.partner(0, t[0]) is None and known.pairs() == []
    assert (known.class_of(0, t[0]), known.class_of(1, b[0])) == ((0, 1), (1, 1)), "each side has classes of its own"
    assert known.depth == 0


def test_a_pair_is_one_class_and_has_a_state(sides: tuple[Side, Side]) -> None:
    t, b = sides
    known = Counterparts(read_data=True)
    state = State("within", 0.1, 3)
    known.keep(t[0], b[1], state)
    assert known.find(t[0], b[1]) == known.state_of(t[0]) == state
    assert known.find(t[0], b[0]) is None and known.find(t[1], b[0]) is None
    assert known.partner(0, t[0]) == b[1] and known.partner(1, b[1]) == t[0]
    assert known.is_known(0, t[0]) and known.is_known(1, b[1])
    assert not known.is_known(1, b[0]) and not known.is_known(0, t[1]), "ids of one side say nothing of the other"
    assert known.class_of(0, t[0]) == known.class_of(1, b[1]) != known.class_of(1, b[0])
    assert known.pairs() == [(t[0], b[1])]


def test_the_first_counterpart_stays_and_classes_join(sides: tuple[Side, Side]) -> None:
    t, b = sides
    known = Counterparts(read_data=True)
    first, second = State("same"), State("different", 1.0)
    known.keep(t[0], b[0], first)
    known.keep(t[0], b[1], second)
    known.keep(t[1], b[1], first)
    assert known.partner(0, t[0]) == b[0] and known.state_of(t[0]) == first
    assert known.partner(1, b[1]) == t[0]
    assert (known.find(t[0], b[1]), known.find(t[1], b[1])) == (second, first)
    classes = {known.class_of(0, t[0]), known.class_of(0, t[1]), known.class_of(1, b[0]), known.class_of(1, b[1])}
    assert len(classes) == 1
    assert known.class_of(0, t[2]) not in classes
    assert known.pairs() == [(t[0], b[0]), (t[1], b[1])]
    known.keep(t[0], b[0], second)
    assert known.find(t[0], b[0]) == second, "what is known last"


def test_long_chains_are_one_class_in_any_order(sides: tuple[Side, Side]) -> None:
    t, b = sides
    links = [(0, 0), (1, 1), (2, 2), (3, 3), (0, 1), (2, 3), (1, 2)]
    for order in (links, links[::-1], links[3:] + links[:3]):
        known = Counterparts(read_data=True)
        for one, other in order:
            known.keep(t[one], b[other], State("same"))
        found = {known.class_of(0, v) for v in t[:4]} | {known.class_of(1, v) for v in b[:4]}
        assert len(found) == 1
        assert known.class_of(0, t[4]) not in found and known.class_of(1, b[4]) not in found


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
