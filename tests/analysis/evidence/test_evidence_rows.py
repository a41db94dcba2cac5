"""Rows and findings, and the names that they have for calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from aten_dump.analysis.distance.value_distance import Closeness
from aten_dump.analysis.evidence.evidence_rows import EvidenceRows, Pair, said_of
from aten_dump.analysis.evidence.findings import Finding, RankEvidence, Row, place_of
from aten_dump.analysis.evidence.judgement import Judgement
from aten_dump.analysis.rerun.op_errors import Replays
from aten_dump.choices import STATUS_TEXTS
from tests.analysis.by_hand import apart, inputs

X = torch.tensor([1.0, 2.0, 3.0, 4.0])


@pytest.fixture
def pair(record: Callable[..., Any]) -> Pair:
    def body() -> None:
        X.exp().add(1)

    target, baseline = record(body), record(body)
    return Pair(target["Aten.add.0.forward"], baseline["Aten.add.0.forward"], "order")


def test_a_place_says_where_a_call_was(record: Callable[..., Any]) -> None:
    model = nn.Sequential(nn.Linear(4, 2))
    rank = record(lambda: model(X).sum().backward(), model)
    forward, backward = rank["Aten.addmm.0.forward"], rank["Functional.linear.0.backward"]
    place = place_of(forward)
    assert (place.step, place.rank, place.id, place.call) == (0, 0, forward.id, "Aten.addmm.0.forward")
    assert (place.op, place.kind, place.phase, place.module) == ("aten::addmm", "aten", "forward", "0")
    assert "test_evidence_rows.py:" in place.source and place.forward == place.backward == ""
    assert place_of(backward).forward == "Functional.linear.0.forward"


def test_a_call_without_source_has_none(record: Callable[..., Any]) -> None:
    rank = record(lambda: X.exp(), stacks=False)
    assert place_of(rank["Aten.exp.0.forward"]).source == ""


def test_places_of_both_sides_are_kept_apart(pair: Pair) -> None:
    rows = EvidenceRows()
    rows.known(pair, "output.0", apart(0.0), "same")
    row = rows.rows[0]
    assert row.target is rows.place(pair.target) and row.baseline is rows.place(pair.baseline)
    assert row.target == row.baseline and row.target is not row.baseline


def test_rows_of_what_was_known_before(pair: Pair) -> None:
    rows = EvidenceRows()
    rows.known(pair, "input.0", Closeness("none", reason="no data"), "unknown")
    rows.known(pair, "input.1", Closeness("none", reason="no data"), "unknown", "a note")
    assert [(row.slot, row.status, row.how, row.note) for row in rows.rows] == [
        ("input.0", "unknown", "order", "no data"),
        ("input.1", "unknown", "order", "a note"),
    ]


def test_rows_of_what_was_judged_have_its_numbers(pair: Pair) -> None:
    rows = EvidenceRows()
    own = Replays().local_errors(pair.target, pair.baseline)
    assert isinstance(own, dict)
    said = Judgement("within", False, 0.5, "replay", 0.25, own["output.0"], "a note")
    row = rows.judged(pair, "output.0", apart(0.4), said, inputs("within", error=0.1))
    assert rows.rows == [row]
    assert (row.status, row.floor, row.floor_from, row.ratio, row.note) == ("within", 0.5, "replay", 0.25, "a note")
    assert row.own_error == own["output.0"].target.error
    assert row.amplification == pytest.approx(4.0)


def test_without_an_error_of_the_inputs_nothing_is_amplified(pair: Pair) -> None:
    rows, said = EvidenceRows(), Judgement("within")
    assert rows.judged(pair, "output.0", apart(0.4), said).amplification is None
    assert rows.judged(pair, "output.0", apart(0.4), said, inputs("same")).amplification is None
    hashed = Closeness("hash", reason="why")
    row = rows.judged(pair, "output.0", hashed, said, inputs("within", error=0.1))
    assert (row.amplification, row.own_error, row.note) == (None, None, "why")


def test_what_is_said_of_inputs() -> None:
    assert said_of(inputs("same")) == "its inputs are bitwise equal"
    assert said_of(inputs("within", error=0.0123)) == "its inputs agree within noise (up to 0.012 apart)"
    assert said_of(inputs("within")) == "its inputs agree as far as their data go"
    assert said_of(inputs("unknown")) == "its inputs could not be compared"
    assert said_of(inputs("different")) == "its inputs differ already, but its own error is too large for them"


def test_a_row_is_at_the_target_or_else_at_the_baseline(pair: Pair) -> None:
    here, there = place_of(pair.target), place_of(pair.target.rank["Aten.exp.0.forward"])
    assert Row(here, there, "", "", "same").place is here
    assert Row(None, there, "", "", "same").place is there


def test_evidence_counts_and_names_its_cause(pair: Pair) -> None:
    here = place_of(pair.target)
    rows = (
        *tuple(Row(here, here, "order", "", status) for status in STATUS_TEXTS),
        Row(here, here, "order", "", "same"),
    )
    findings = tuple(Finding("op", rows[0], text, "", (1, 1)) for text in ("first", "second"))
    evidence = RankEvidence("a", "b", (0, 0), (0, 0), "tensor", {}, (1, 1), {}, rows, findings, {}, {})
    assert (evidence.count("same"), evidence.count("different"), evidence.count("unknown")) == (2, 1, 1)
    assert evidence.cause is findings[0]
    none = RankEvidence("a", "b", (0, 0), (0, 0), "tensor", {}, (1, 1), {}, (), (), {}, {})
    assert (none.cause, none.count("same")) == (None, 0)
