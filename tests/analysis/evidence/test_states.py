"""States of values, of all inputs together, and judgements."""

from __future__ import annotations

from typing import Any

import pytest

from aten_dump.analysis.evidence.judgement import Inputs, Judgement, State, inputs_of


def test_without_inputs_all_agree() -> None:
    assert inputs_of([]) == Inputs("same", 0.0, 0, True, True, 0.0, False)
    assert inputs_of([]).agree


@pytest.mark.parametrize(
    ("statuses", "worst"),
    [
        (("same",), "same"),
        (("same", "within"), "within"),
        (("within", "unknown", "same"), "unknown"),
        (("unknown", "different", "within"), "different"),
        (("different", "unknown"), "different"),
    ],
)
def test_the_worst_status_counts(statuses: tuple[Any, ...], worst: str) -> None:
    found = inputs_of([State(status) for status in statuses])
    assert found.worst == worst
    assert found.agree == (worst in ("same", "within"))


def test_the_greatest_of_each_number_counts() -> None:
    found = inputs_of([State("within", 0.5, 1, 0.1), State("within", 0.1, 7, 0.2), State("same")])
    assert (found.error, found.depth, found.noise, found.undefined) == (0.5, 7, 0.2, False)
    assert inputs_of([State("same"), State("unknown", undefined=True)]).undefined
    assert not inputs_of([State("same")], same_shapes=False).same_shapes
    assert not inputs_of([State("same")], same_dtypes=False).same_dtypes


@pytest.mark.parametrize(
    ("said", "proven"),
    [
        (Judgement("same", floor_from="exact"), True),
        (Judgement("different", floor_from="replay"), True),
        (Judgement("within", floor_from="semantics"), True),
        (Judgement("within", floor_from="depth"), False),
        (Judgement("within", floor_from="dtype"), False),
        (Judgement("within", floor_from="control"), False),
        (Judgement("same", floor_from="rule"), False),
        (Judgement("same"), False),
        (Judgement("unknown", floor_from="exact"), False),
    ],
)
def test_what_was_estimated_or_not_known_is_not_proven(said: Judgement, proven: bool) -> None:
    assert said.proven == proven
