"""What a comparison says of each call: the worst of its slots, its rows, its partner."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from aten_dump import RankDump, open_dump
from aten_dump.report.html.payload.sections import STATUSES, judged_section
from tests.dump.building import Builder
from tests.report.evidence import place, row
from tests.report.sections_read import Read


@pytest.fixture
def rank(tmp_path: Path) -> RankDump:
    b = Builder(tmp_path / "dump")
    for number in range(1, 5):
        b.call(b.op("aten", "aten::add", "Aten", "add"), id=number, n=number)
    return open_dump(b.finish()).step(0).rank(0)


def read(rank: RankDump, rows: list[object], side: str = "target") -> Read:
    return Read(judged_section(rows, rank, rank, side))  # type: ignore[arg-type]


def said(section: Read) -> list[str]:
    return [section.json["statuses"][code] for code in section.columns["status"]]


def test_of_a_call_the_worst_of_its_slots_is_said(rank: RankDump) -> None:
    one, two = place(1), place(2)
    rows = [row(one, one, "same"), row(one, one, "different", "output.1"), row(one, one, "within", "output.2")]
    rows += [row(two, two, "same"), row(two, two, "within", "output.1")]
    assert said(read(rank, rows)) == ["different", "within", "", ""]


def test_every_status_has_its_rank(rank: RankDump) -> None:
    order = ["same", "within", "unknown", "unmatched", "different"]
    for milder, worse in itertools.pairwise(order):
        for pair in ((milder, worse), (worse, milder)):
            rows = [row(place(1), place(1), status, f"output.{n}") for n, status in enumerate(pair)]
            assert said(read(rank, rows))[0] == worse
    assert set(order) == set(STATUSES) - {""}


def test_rows_are_in_the_order_of_the_calls_with_their_partners(rank: RankDump) -> None:
    rows = [row(place(3), place(2), "same"), row(place(1), None, "unmatched", ""), row(None, place(4), "unmatched", "")]
    target = read(rank, rows)
    assert target.columns["row.call"] == [0, 2]
    assert said(target) == ["unmatched", "", "same", ""]
    assert target.columns["partner"] == [-1, -1, 1, -1]
    baseline = read(rank, rows, "baseline")
    assert baseline.columns["row.call"] == [1, 3] and baseline.columns["partner"] == [-1, 2, -1, -1]


def test_numbers_and_texts_of_a_row(rank: RankDump) -> None:
    rows = [row(place(1), place(1), "different", ratio=3.5, floor=0.5, floor_from="", note="odd")]
    found = read(rank, rows)
    assert (found.numbers("row.ratio"), found.numbers("row.floor"), found.numbers("row.cosine")) == (
        [3.5],
        [0.5],
        [None],
    )
    assert found.json["row.note"][found.columns["row.note"][0]] == "odd"
    assert found.json["row.slot"] == ["output.0"]


def test_a_row_of_a_call_that_is_not_there_is_of_none(rank: RankDump) -> None:
    found = read(rank, [row(place(9), None), row(place(2), place(2), "same")])
    assert found.columns["row.call"] == [-1, 1] and said(found) == ["", "same", "", ""]
