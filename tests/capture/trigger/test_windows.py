"""Windows, quotas, and what a dump says of why calls were written."""

from __future__ import annotations

import pytest

from aten_dump.capture.trigger.conditions import Cause
from aten_dump.capture.trigger.rank_signals import Signal
from aten_dump.capture.trigger.windows import Quota, Window, why_written

SIGNAL = Signal(rank=2, step=5, position=30, call=41, why="aten::log made NaN")


def test_a_window_holds_its_ends() -> None:
    window = Window(3, 5, SIGNAL)
    assert [window.holds(position) for position in range(2, 7)] == [False, True, True, True, False]


def test_each_kind_of_cause_has_a_quota_of_its_own() -> None:
    quota, one, other = Quota(2), Cause("log made NaN", "log"), Cause("exp made Inf", "exp")
    assert quota.lets(one) == "log made NaN"
    assert quota.lets(one) == "log made NaN (for the 2nd time; trigger_times=2 lets this cause write no more)"
    assert quota.lets(one) is None
    assert quota.lets(other) == "exp made Inf"


def test_causes_that_never_come_again_have_no_quota() -> None:
    quota = Quota(1)
    assert [quota.lets(Cause("a spike")) for _ in range(3)] == ["a spike"] * 3
    assert [Quota(None).lets(Cause("NaN", "log")) for _ in range(3)] == ["NaN"] * 3


@pytest.mark.parametrize(
    ("times", "text"), [(1, "1st"), (3, "3rd"), (4, "4th"), (11, "11th"), (13, "13th"), (22, "22nd"), (111, "111th")]
)
def test_the_last_time_is_counted_in_words(times: int, text: str) -> None:
    quota, cause = Quota(times), Cause("NaN", "log")
    last = [quota.lets(cause) for _ in range(times)][-1]
    assert last is not None and f"for the {text} time" in last


def test_a_note_names_the_step_only_where_it_is_another() -> None:
    here, there = why_written(SIGNAL, 5, "all calls"), why_written(SIGNAL, 6, "all calls")
    assert here.message == "aten::log made NaN: call 41, rank 2; all calls were written"
    assert there.message == "aten::log made NaN: call 41 of step 5, rank 2; all calls were written"
    assert why_written(SIGNAL, None, "no calls").message.startswith("aten::log made NaN: call 41 of step 5")
