"""Rows of many step-ranks are kept small, and what the answer asks of them is counted before."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from aten_dump import DumpConfig, DumpMode, compare
from aten_dump.analysis.comparison import Comparison
from aten_dump.analysis.distance.value_distance import Closeness
from aten_dump.analysis.evidence.findings import Place, Row, Status
from aten_dump.analysis.evidence.row_summary import MOST_WHOLE, NOT_COMPARED, PackedRows, RowSummary, summary_of

PLACE = Place(0, 0, 5, "Aten.add.0.forward", "aten::add.Tensor", "aten", "forward", "fc", "train.py:7 in f", "", "")
NOTHING = Closeness("none", reason="it was not recorded")
BLANK = Closeness("none", reason="memory", undefined=True)


def row(status: Status, closeness: Closeness | None = None, note: str = "", rule: str = "") -> Row:
    return Row(
        PLACE, PLACE, "order", "output", status, closeness, None, "rule" if rule else "", note=note, floor_reason=rule
    )


ROWS = (
    row("same", Closeness("tensor", bitwise=True)),
    row("same", NOTHING),
    row("within", Closeness("tensor"), rule="relu: ignore"),
    row("within", Closeness("tensor")),
    row("different", NOTHING, "the first"),
    row("different", Closeness("tensor"), "the second"),
    row("unmatched", None, NOT_COMPARED),
    row("unmatched", None, "what it leads to differs"),
    row("unknown", NOTHING),
    row("unknown", NOTHING),
    row("unknown", BLANK),
)


def assert_counts(found: RowSummary, times: int) -> None:
    assert found.statuses == {
        "same": 2 * times, "within": 2 * times, "different": 2 * times, "unmatched": 2 * times, "unknown": 3 * times,
    }  # fmt: skip
    assert found.judged == {"same": times, "within": 2 * times, "different": 2 * times, "unmatched": 2 * times}
    assert found.let_through == {"relu: ignore": times} and found.not_compared == times and found.undefined == times
    assert found.why_unknown == {"it was not recorded": 2 * times, "memory": times}
    assert found.first_different is not None and found.first_different.note == "the first"


def test_rows_are_counted() -> None:
    assert_counts(summary_of(ROWS), 1)
    assert summary_of(()) == RowSummary()


def test_counts_are_added_up() -> None:
    whole = RowSummary()
    for rows in ((), ROWS, PackedRows(ROWS)):
        whole.add_all(summary_of(rows))
    assert_counts(whole, 2)


def test_packed_rows_are_those_that_were_packed() -> None:
    packed = PackedRows(ROWS)
    assert tuple(packed) == ROWS and len(packed) == len(ROWS)
    assert packed[4] == ROWS[4] and packed[-2:] == ROWS[-2:]
    assert_counts(summary_of(packed), 1)


def test_packed_rows_take_a_tenth_of_the_memory() -> None:
    rows = [Row(Place(0, 0, n, f"Aten.add.{n}.forward", *PLACE.op.split(), "", "", "", "", "", ""), PLACE, "order", "output",
                "same", Closeness("statistic", error=n / 7)) for n in range(1000)]  # fmt: skip
    packed = PackedRows(rows)
    size = sum(sys.getsizeof(one) + sys.getsizeof(one.closeness) + sys.getsizeof(one.target) for one in rows)
    assert sys.getsizeof(packed._packed) * 10 < size


@pytest.mark.parametrize("wrong", [False, True])
def test_an_answer_is_the_same_whether_rows_are_packed(tmp_path: Path, wrong: bool) -> None:
    def record(path: Path, factor: float) -> None:
        with DumpMode(DumpConfig(path, data="statistic", level="aten")) as dump:
            for step in range(MOST_WHOLE + 1):
                torch.arange(4.0).mul(factor if step == 3 else 2.0).sum()
                dump.step()

    record(tmp_path / "a", 2.5 if wrong else 2.0)
    record(tmp_path / "b", 2.0)
    found = compare(tmp_path / "a", tmp_path / "b")
    assert all(isinstance(evidence.rows, PackedRows) for evidence in found.ranks)
    few = [compare(tmp_path / "a", tmp_path / "b", step=step).ranks[0] for step in (2, 3, 4)]
    assert [tuple(evidence.rows) for evidence in found.ranks[2:5]] == [evidence.rows for evidence in few]
    whole = Comparison(found.target, found.baseline, (*found.ranks[:2], *few, *found.ranks[5:]), found.notes)
    assert (found.verdict, found.answer(), found.exit_code) == (whole.verdict, whole.answer(), int(wrong))


def test_calls_with_other_arguments_are_counted_once_however_many_results_they_have() -> None:
    """Those beyond the ones that are named were counted once for each result."""
    places = [replace(PLACE, id=number) for number in range(6)]
    rows = [replace(row("unknown", NOTHING), target=place, seen="eps is 1") for place in places for _ in range(3)]
    found = summary_of(rows).seen_otherwise
    assert found.count == 6 and [r.place.id for r in found.rows] == [0, 1, 2, 3]
