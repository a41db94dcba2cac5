"""Where NaN and Inf came from, in words: the first cause, counts, and what excuses it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from aten_dump.analysis.nonfinite.explanations import Slot
from aten_dump.analysis.nonfinite.search import Event, NearOverflow, NonFinite
from aten_dump.analysis.nonfinite.value_range import Contents
from aten_dump.report.nonfinite import answer_lines, events_table, near_lines, short_lines, total_lines, what_next

CLEAN = Slot("input.0", 1, "float32", Contents(4, 0, 0, 0, -1.5, 2.0))
UNKNOWN = Slot("input.1", 2, "float32", Contents(4, 0, 0, 0, None, None))
BAD = Slot("output.0", 3, "float32", Contents(4, 2, 1, 0, None, None))


def event(number: int, kind: Any = "producer", phase: str = "forward", **more: Any) -> Event:
    fields: dict[str, Any] = {
        "kind": kind, "name": f"Aten.log.{number}.{phase}", "call_id": number, "op": "aten::log", "phase": phase,
        "module": "fc", "source": "train.py:3", "forward": "", "results": (BAD,), "inputs": (CLEAN, UNKNOWN), "why": "",
    }  # fmt: skip
    return Event(**{**fields, **more})


def found(step: int = 0, **more: Any) -> NonFinite:
    fields: dict[str, Any] = dict.fromkeys(("producers", "propagators", "masks", "outside", "near_overflow"), ())
    return NonFinite("dump", step, 0, **{**fields, "calls": 9, "unknown": 0, **more})


def test_the_first_cause_is_told_with_its_numbers_and_place() -> None:
    lines = list(answer_lines(found(producers=(event(7), event(5, why="log of 0")))))
    assert lines == [
        "first in dump (step 0, rank 0): Aten.log.5.forward (aten::log), output.0 has 2 NaN, 1 +Inf of 4 float32",
        "  log of 0",
        "  phase forward, module fc, train.py:3",
        "  input.0: float32 from -1.5 to 2",
        "9 calls: 2 producers",
    ]


def test_an_input_that_is_not_finite_is_told_by_its_counts() -> None:
    lines = list(
        answer_lines(found(producers=(event(5, inputs=(BAD,), module="", source="", forward="Aten.exp.0.forward"),)))
    )
    assert lines[1] == "  from finite inputs"
    assert lines[2:4] == ["  phase forward, belongs to Aten.exp.0.forward", "  output.0 has 2 NaN, 1 +Inf of 4 float32"]


def test_what_came_from_outside_leads_to_the_step_before() -> None:
    outside = found(step=3, outside=(event(2, "outside"),))
    assert "  step 1 of this rank had NaN or Inf already: look there first" in list(answer_lines(outside, 1))
    assert not any("look there first" in line for line in answer_lines(outside))
    assert not any("look there first" in line for line in answer_lines(found(step=3, producers=(event(2),)), 1))


@pytest.mark.parametrize(
    ("phase", "has_scaler", "said"), [("backward", True, True), ("forward", True, False), ("backward", False, False)]
)
def test_a_gradient_scaler_excuses_the_backward_alone(phase: str, has_scaler: bool, said: bool) -> None:
    lines = list(answer_lines(found(producers=(event(2, phase=phase),), has_scaler=has_scaler)))
    assert any("gradient scaler was at work" in line for line in lines) is said


def test_overflow_that_the_scaler_found_is_no_error() -> None:
    lines = list(answer_lines(found(scaled=(event(4, phase="backward"), event(6)))))
    assert lines[0].startswith(
        "no error in dump (step 0, rank 0), but gradients overflowed as a gradient scaler expects: "
    )
    assert "Aten.log.4.backward" in lines[0] and lines[-1] == "9 calls: 2 scaled overflows"


def test_nothing_found_says_so_and_what_could_not_be_judged() -> None:
    lines = list(answer_lines(found(masks=(event(1, "mask"),), unknown=1, calls=1)))
    assert lines[0] == "no call of dump (step 0, rank 0) is known to have made a NaN or Inf that was not a mask"
    assert lines[1] == "1 call: 1 mask"
    assert lines[2].startswith("1 floating result could not be judged")
    assert list(answer_lines(found(unknown=2)))[2].startswith("2 floating results could")


def test_of_several_steps_the_earliest_is_where_it_began_and_a_maker_goes_before_a_receiver() -> None:
    late, early = found(2, producers=(event(1),)), found(1, producers=(event(9),))
    received = found(1, outside=(event(3, "outside"),))
    assert list(total_lines([late, received, early], 4)) == [
        "it began in step 1, rank 0: Aten.log.9.forward (aten::log)",
        "4 of 3 step/rank folders have no NaN or Inf, masks ignored",
    ]
    reduced = found(1, producers=(event(2, op="c10d::allreduce_", name="Distributed.allreduce_.0.backward"),))
    for others in ([early], [received]):
        assert "allreduce" not in next(iter(total_lines([reduced, *others], 0))), "it may have come from the other rank"
    assert "allreduce" in next(iter(total_lines([reduced, late], 0)))
    assert list(total_lines([found(unknown=3)], 1))[1] == "of 1 of these not all could be judged"
    assert list(total_lines([found()], 1)) == ["1 of 1 step/rank folders have no NaN or Inf, masks ignored"]


def test_of_many_ranks_those_alike_are_one_line() -> None:
    many = [replace(found(2, producers=(event(1),)), rank=rank) for rank in range(1000) if rank != 7]
    other = replace(found(2, unknown=1), rank=7), replace(found(3, scaled=(event(4, phase="backward"),)), rank=2)
    assert list(short_lines([*many, *other])) == [
        "step 2 ranks 0-6|8-999: first in Aten.log.1.forward (aten::log)",
        "step 2 rank 7: not all could be judged",
        "step 3 rank 2: no error, but gradients overflowed as a gradient scaler expects",
    ]


@pytest.mark.parametrize(
    ("limit", "propagators", "names", "left"),
    [(None, False, [1, 2, 5], 0), (2, False, [1, 2], 1), (None, True, [1, 2, 4, 5], 0)],
)
def test_the_table_is_in_the_order_of_execution(
    limit: int | None, propagators: bool, names: list[int], left: int
) -> None:
    one = found(
        producers=(event(5),),
        masks=(event(1, "mask"),),
        outside=(event(2, "outside"),),
        propagators=(event(4, "propagator"),),
    )
    table, left_out = events_table(one, limit, propagators=propagators)
    rows = table.rows
    assert [row[0] for row in rows] == [f"Aten.log.{n}.forward" for n in names] and left_out == left
    assert rows[0][1:] == ["mask", "forward", "fc", "output.0", "2", "1", "0"]


def test_what_is_nearest_to_overflow_comes_first() -> None:
    values = tuple(
        NearOverflow(f"v{n}", n, "aten::exp", "float16", 65504 * share, share) for n, share in ((1, 0.6), (2, 0.9))
    )
    steps = [found(0, near_overflow=values[:1]), found(3, near_overflow=values[1:])]
    assert list(near_lines(steps, 1)) == [
        "near overflow: v2 (step 3, rank 0) reaches 5.9e+04, 90% of the greatest float16",
        "1 more values are near overflow; --all prints them",
    ]
    assert len(list(near_lines(steps, None))) == 2


def test_what_reaches_nothing_is_told_behind_and_is_no_finding() -> None:
    aside = event(1, "contained", why="a logarithm of zero or less: 0")
    lines = list(answer_lines(found(contained=(aside,))))
    assert lines[0].startswith("no NaN or Inf of dump (step 0, rank 0) reached a loss, a gradient or what the step ")
    assert lines[1].endswith("depends on that of Aten.log.1.forward (a logarithm of zero or less: 0)")
    both = found(producers=(event(7),), contained=(aside,))
    assert next(iter(answer_lines(both))).startswith("first in dump (step 0, rank 0): Aten.log.7.forward")
    assert list(what_next(both)) == ["Next: aten-dump show dump Aten.log.7.forward --step 0 --rank 0"]
    assert list(what_next(found())) == []
    assert list(total_lines([found(contained=(aside,))], 1)) == [
        "1 of 1 step/rank folders have no NaN or Inf, masks ignored (in 1 a NaN or Inf reached nothing)"
    ]
