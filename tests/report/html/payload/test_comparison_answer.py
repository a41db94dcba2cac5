"""The answer of a comparison as plain values that JSON can hold."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from aten_dump import compare, open_dump
from aten_dump.report.html.payload.sections import _numbers, _rank, _shown, _travel, comparison_answer
from tests.browser import dumps
from tests.report.evidence import evidence, finding, place, row


def test_a_rank_is_counted_by_status_and_level() -> None:
    one = place(1)
    found = _rank(
        evidence([row(one, one, "same"), row(one, one), row(place(2), None, "unmatched"), row(one, one, "same")])
    )
    assert found["statuses"] == {"same": 2, "different": 1, "unmatched": 1}
    assert (found["levels"], found["pairs"], found["calls"]) == ({"tensor": 3}, 3, (4, 5))
    assert (found["target"], found["baseline"], found["cause"]) == ([0, 0], [0, 0], None)


def test_the_way_of_an_error_is_the_first_result_of_each_module_from_the_cause_on() -> None:
    cause = row(place(5, module="a"), place(5))
    rows = [
        row(place(2, module="early"), place(2)),  # before the cause
        cause,
        row(place(6, module="a"), place(6)),  # the same module again
        row(place(7, module="b"), place(7), slot="input.0"),
        row(place(8, module="b"), place(8), ratio=math.inf),
        row(place(9, module="c"), place(9), "within"),
        row(place(10, module="d", kind="api"), place(10)),
        row(place(11, module="a", phase="backward"), place(11)),
        row(None, place(12)),
    ]
    found = _travel(evidence(rows), finding(cause))
    assert [(one["module"], one["phase"]) for one in found] == [("a", "forward"), ("b", "forward"), ("a", "backward")]
    assert found[1]["ratio"] == 1e300 and json.dumps(found, allow_nan=False)


def test_a_long_way_is_cut_in_the_midst() -> None:
    rows = [row(place(n, module=f"m{n}"), place(n)) for n in range(1, 41)]
    found = _travel(evidence(rows), finding(rows[0]))
    assert len(found) == 25 and found[16] == {"left_out": 16}
    assert (found[0]["module"], found[15]["module"], found[17]["module"], found[-1]["module"]) == (
        "m1",
        "m16",
        "m33",
        "m40",
    )
    assert len(_travel(evidence(rows[:24]), finding(rows[0]))) == 24


@pytest.mark.parametrize(("number", "shown"), [(1.5, 1.5), (None, None), (math.inf, "inf"), (0.0, 0.0)])
def test_numbers_that_json_has_not_are_texts(number: Any, shown: Any) -> None:
    assert _shown(number) == shown


def test_what_was_measured_is_told_by_name() -> None:
    cells = {
        "level": "tensor", "error": 0.5, "floor": None, "ratio": 3.0, "target_shape": [2], "baseline_shape": [3],
        "max_abs_at": [1], "nonfinite": 2, "nonfinite_at": [3], "nonfinite_values": ["nan", "1.5"],
    }  # fmt: skip
    assert list(_numbers(cells)) == [
        ("shape", "[2] against [3]"), ("relative L2", "0.5"), ("times the floor", "3"), ("found at", "[1]"),
        ("NaN or Inf, the other side not", "2 elements"), ("at [3]", "nan against 1.5"),
    ]  # fmt: skip
    assert list(_numbers({"level": "statistic", "error": 0.5, "nonfinite": 0})) == [("difference over rms", "0.5")]


def test_a_dump_against_itself_has_no_cause(tmp_path: Path) -> None:
    path = dumps.inference(tmp_path)
    found = comparison_answer(compare(path, open_dump(path)))
    assert found["cause"] is None and "travel" not in found and found["verdict"] == "same" == found["verdict"]
    assert found["text"] and len(found["ranks"]) == 1
