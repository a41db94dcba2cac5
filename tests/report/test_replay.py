"""A replay in words: the suspect, or that there is none; counts; reasons."""

from __future__ import annotations

import math
from typing import Any

from aten_dump.analysis.replay_result import Replay, ReplayedOp, Skipped
from aten_dump.analysis.rerun.rounding_error import SUSPECT, LocalError
from aten_dump.report.replay import answer_lines, ops_table


def op(name: str, ratio: float, *, equal: bool = False, drew: bool = False, **more: Any) -> ReplayedOp:
    results = (
        LocalError("output.0", 0.001, 0.0005, ratio / 2, 0.25, (1, 2), equal),
        LocalError("output.1", 0.002, 0.0005, ratio, 0.5, (3,), equal),
    )
    fields: dict[str, Any] = {"module": "fc", "source": "train.py:3", "forward": ""}
    return ReplayedOp(
        name, 1, "aten::mm", "backward", **{**fields, **more}, reference="float64", results=results, drew=drew
    )


def replay(*ops: ReplayedOp, skipped: tuple[Skipped, ...] = (), dtype: str = "float64") -> Replay:
    return Replay("dump", 2, 1, "cpu", dtype, ops, skipped)


def test_the_worst_op_above_the_floor_is_the_suspect() -> None:
    lines = list(answer_lines(replay(op("Aten.mm.3.backward", 9 * SUSPECT, forward="Aten.mm.0.forward"), op("a", 0.5))))
    assert lines[0] == (
        "Aten.mm.3.backward (aten::mm) is the first suspect in dump (step 2, rank 1): output.1 has a relative error of 0.002 "
        f"from its own inputs, floor 0.0005, {9 * SUSPECT:.3g} times the floor; greatest 0.5 at [3]."
    )
    assert lines[1] == "  phase backward, module fc, belongs to Aten.mm.0.forward, train.py:3"
    assert lines[2] == "2 ops replayed on cpu: 0 bit-equal in the recorded dtype, 0 not replayed"


def test_other_suspects_are_counted() -> None:
    lines = list(answer_lines(replay(op("a", 3 * SUSPECT), op("b", 2 * SUSPECT), op("c", SUSPECT))))
    assert lines[2].startswith("  1 other ops have larger errors"), "an op at the limit is as good as an honest one"


def test_without_a_suspect_the_worst_is_told() -> None:
    lines = list(answer_lines(replay(op("a", SUSPECT, equal=True), op("b", 0.1, drew=True))))
    assert lines[0] == "no op of dump (step 2, rank 1) has a larger error than a correct implementation"
    assert lines[1].startswith("  the worst is a: output.1 has")
    assert lines[2].startswith(
        "2 ops replayed on cpu: 1 bit-equal in the recorded dtype (1 of all drew random numbers)"
    )
    assert len(list(answer_lines(replay(op("a", 0.5), dtype="recorded")))) == 2, "bits say nothing of errors"
    assert len(list(answer_lines(replay()))) == 2


def test_elements_that_are_not_finite_elsewhere_have_no_ratio() -> None:
    assert "at places that are not finite" in next(answer_lines(replay(op("a", math.inf))))


def test_reasons_are_told_by_how_many_with_a_few_names() -> None:
    skipped = tuple(Skipped(f"c{n}", "aten::x", "forward", "no bytes") for n in range(4))
    skipped += (Skipped("d", "aten::y", "forward", "a collective"),)
    lines = list(answer_lines(replay(skipped=skipped)))
    assert lines == [
        "no op of dump (step 2, rank 1) could be replayed",
        "0 ops replayed on cpu: 0 bit-equal in the recorded dtype, 5 not replayed",
        "  4: no bytes (c0, c1, c2, ... 1 more)",
        "  1: a collective (d)",
    ]


def test_the_table_has_the_worst_result_of_each_op() -> None:
    table = ops_table(replay(op("a", 4.0, module=""), op("b", 2.0, equal=True)), None)
    rows = table.rows
    assert rows[0] == ["a", "output.1", "-", "backward", "4", "0.002", "0.0005", "0.5", "differ", "float64"]
    assert rows[1][-2] == "equal"
    assert ops_table(replay(op("a", 4.0), op("b", 2.0)), 1).rows[1:] == []
