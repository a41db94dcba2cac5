"""The answer in words."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from aten_dump.analysis.comparison import cause_sentences, compared, let_through, numbers, proofs, travel
from aten_dump.analysis.distance.value_distance import Closeness
from aten_dump.analysis.evidence.findings import Finding, Place, RankEvidence, Row
from aten_dump.analysis.evidence.row_summary import summary_of
from tests.analysis.by_hand import apart

PLACE = Place(0, 0, 5, "Aten.add.0.forward", "aten::add.Tensor", "aten", "forward", "fc", "train.py:7 in f", "", "")
THERE = replace(PLACE, id=4, call="Aten.add.1.forward")


def row(**changes: Any) -> Row:
    return replace(Row(PLACE, THERE, "order", "output.0", "different", apart(0.25)), **changes)


def finding(seen: Row | None = None, **changes: Any) -> Finding:
    return replace(Finding("op", seen or row(), "it is wrong", "its inputs agree", (5, 1)), **changes)


def evidence(*findings: Finding, **changes: Any) -> RankEvidence:
    made = RankEvidence("a", "b", (0, 0), (0, 0), "tensor", {}, (8, 9), {}, (), findings, {}, {})
    return replace(made, **changes)


# -- the cause -----------------------------------------------------------------------------------------------------


def sentences(one: Finding, *others: Finding) -> list[str]:
    return list(cause_sentences(one, evidence(one, *others)))


def test_a_cause_in_sentences() -> None:
    said = sentences(finding())
    assert said[0] == "First cause: Aten.add.0.forward (baseline Aten.add.1.forward), result output.0: it is wrong."
    assert said[1] == "Its inputs agree."
    assert said[2].startswith("Numbers: ")
    assert said[3] == "It is op aten::add.Tensor, phase forward, module fc, source train.py:7 in f."
    assert len(said) == 4


def test_an_input_is_called_one_unless_a_region_stands_behind_it() -> None:
    seen = row(slot="input.1")
    assert "input input.1: " in sentences(finding(seen, order=(5, 0)))[0]
    assert "result input.1: " in sentences(finding(seen, order=(5, 0), calls=("Aten.mul.0.forward",)))[0]


def test_what_is_not_known_is_left_out() -> None:
    bare = replace(PLACE, module="", source="")
    said = sentences(finding(row(target=bare, baseline=None, closeness=None), inputs=""))
    assert said[0] == "First cause: Aten.add.0.forward of the target, result output.0: it is wrong."
    assert said[-1] == "It is op aten::add.Tensor, phase forward."
    assert len(said) == 2  # there is nothing to compare it with
    there = sentences(finding(row(target=None)))[0]
    assert there == "First cause: Aten.add.1.forward of the baseline, result output.0: it is wrong."


def test_partners_are_named() -> None:
    known = replace(PLACE, forward="Aten.a.0.forward", backward="Aten.b.0.backward")
    assert sentences(finding(row(target=known)))[-1].endswith(
        ", belongs to Aten.a.0.forward, its backward is Aten.b.0.backward."
    )


def test_further_findings_are_counted_and_the_next_named_once() -> None:
    others = [finding(row(target=replace(PLACE, call=f"Aten.c.{n}.forward"))) for n in (0, 0, 1, 2, 3, 4, 5)]
    last = sentences(finding(), *others)[-1]
    named = ", ".join(f"Aten.c.{n}.forward" for n in (0, 1, 2, 3))
    assert last == f"7 more independent differences, the next: {named}."


# -- numbers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (row(closeness=None), "It was not compared."),
        (row(closeness=Closeness("hash")), "Numbers: the hashes differ."),
        (row(closeness=Closeness("none", reason="no data")), "Numbers: no data."),
        (row(closeness=Closeness("none")), "Numbers: nothing was measured."),
        (row(closeness=Closeness("none", shape=((2,), ()))), "Numbers: shape [2] against []."),
        (row(closeness=Closeness("statistic", error=0.5)), "Numbers: difference of statistics over rms 0.5."),
        (row(), "Numbers: relative L2 0.25; greatest difference 0; cosine 1."),
        (
            row(closeness=apart(0.25, max_abs=3.0, max_abs_at=(1, 2), cosine=0.5, nonfinite=2)),
            "Numbers: relative L2 0.25; greatest difference 3 at [1, 2]; cosine 0.5; "
            "NaN or Inf where the other side has something else: 2 elements.",
        ),
        (
            row(closeness=apart(0.0, nonfinite=1, nonfinite_at=(0, 2), nonfinite_values=(math.nan, 1.5))),
            "Numbers: relative L2 0; greatest difference 0; cosine 1; "
            "NaN or Inf where the other side has something else: 1 element, the first at [0, 2]: nan against 1.5.",
        ),
        (
            row(closeness=Closeness("hash"), own_error=0.5, ratio=3.0, floor_from="replay", floor=0.125),
            "Numbers: own error 0.5, 3 times the floor of 0.125 given by a float64 replay of the op.",
        ),
        (
            row(own_error=1e-8, ratio=0.07, floor_from="replay", floor=4e-7),
            "Numbers: relative L2 0.25; greatest difference 0; cosine 1; "
            "own error 1e-08, within the floor of 4e-07 given by a float64 replay of the op.",
        ),
        (
            row(closeness=Closeness("hash"), ratio=3.0, floor_from="depth", floor=0.125, floor_reason="9 ops deep"),
            "Numbers: 3 times the floor of 0.125 given by a bound that grows with depth (9 ops deep).",
        ),
        (
            row(closeness=apart(0.25, cosine=1 - 2.5e-8)),
            "Numbers: relative L2 0.25; greatest difference 0; cosine 1 - 2.5e-08.",
        ),
        (
            row(closeness=Closeness("hash"), ratio=3.0, floor_from="exact", floor=0.0),
            "Numbers: 3 times the floor given by exact equality.",
        ),
        (row(closeness=Closeness("hash"), ratio=3.0), "Numbers: the hashes differ."),
        (row(closeness=Closeness("hash"), amplification=2.5), "Numbers: 2.5 times the error of its inputs."),
    ],
)
def test_numbers(seen: Row, said: str) -> None:
    assert numbers(seen) == said


# -- how it travels ------------------------------------------------------------------------------------------------


def later(id: int, module: str, **changes: Any) -> Row:
    known = {name: changes.pop(name) for name in ("kind", "phase") if name in changes}
    place = replace(PLACE, id=id, call=f"Aten.call.{id}.forward", module=module, **known)
    return row(target=place, **changes)


def test_the_error_travels_by_phase_and_module() -> None:
    rows = [
        later(4, "before"),
        later(5, "fc"),
        later(6, "fc"),
        later(7, "", closeness=None),
        later(8, "out", closeness=Closeness("hash")),
        later(9, "fc", phase="backward"),
        later(10, "agrees", status="within"),
        later(11, "reads", slot="input.0"),
        later(12, "other", kind="module"),
        row(target=None),
    ]
    assert travel(rows, finding()) == [
        "Aten.call.5.forward 0.25 (fc, forward)",
        "Aten.call.7.forward (no module, forward)",
        "Aten.call.8.forward (out, forward)",
        "Aten.call.9.forward 0.25 (fc, backward)",
    ]


@pytest.mark.parametrize(("count", "shown"), [(0, 0), (12, 12), (13, 12), (40, 12)])
def test_a_long_way_is_shortened(count: int, shown: int) -> None:
    rows = [later(5 + n, f"m{n}") for n in range(count)]
    steps = travel(rows, finding())
    assert len(steps) == shown
    if count > 12:
        assert steps[9] == f"... {count - 11} more modules"
        assert steps[-1].startswith(f"Aten.call.{count + 4}.") and steps[-2].startswith(f"Aten.call.{count + 3}.")
        assert steps[8].startswith("Aten.call.13.")


def test_what_rules_let_through_is_counted_by_rule() -> None:
    passed = row(status="within", floor_from="rule", floor_reason="relu: ignore")
    others = row(status="same", floor_from="rule"), row(status="different", floor_from="rule"), row(status="within")
    assert let_through(summary_of(others)) == ""
    assert let_through(summary_of([*others, passed])) == "rule 'relu: ignore' 1 value not bitwise equal"
    both = [passed, passed, replace(passed, floor_reason="add: rel_l2 < 1")]
    assert (
        let_through(summary_of(both))
        == "rule 'relu: ignore' 2 values, rule 'add: rel_l2 < 1' 1 value not bitwise equal"
    )


# -- counts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("unproven", "said"),
    [
        ((), "proven for 3 of 7 calls"),
        (("a",), "proven for 3 of 7 calls, the others by distance (a)"),
        (("a", "b", "c"), "proven for 3 of 7 calls, the others by distance (a, b, c)"),
        (("a", "b", "c", "d", "e"), "proven for 3 of 7 calls, the others by distance (a, b, c and 2 more)"),
    ],
)
def test_what_was_proven(unproven: tuple[str, ...], said: str) -> None:
    assert proofs(evidence(proven=3, judged=7, unproven=unproven)) == said


def test_counts_of_calls_and_values() -> None:
    assert compared(evidence()) == ("proven for 0 of 0 calls; 8 calls against 9: 0 pairs (none); no values compared.")
    rows = (row(status="unmatched"), row(status="unmatched"), row(status="unknown"), row())
    said = compared(
        evidence(
            pairs={"in sequence": 5, "by order": 0, "by flow": 2},
            levels={"tensor": 4, "hash": 0},
            rows=rows,
        )
    )
    assert said == (
        "proven for 0 of 0 calls; 8 calls against 9: 7 pairs (5 in sequence, 2 by flow); values compared 4 by tensor; "
        "2 calls exist in one dump only; "
        "1 tensors could not be compared."
    )
